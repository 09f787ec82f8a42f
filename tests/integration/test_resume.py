"""A run is resumed from a step by hand, and recovered by hand: redone on a new line, audited, and no effect repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from agent_tasks import AgentTasksError, CannotResume, RunHandle, current_run, done, fail, tool
from agent_tasks.boundary import Point
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import Sweeper
from tests.duel import in_thread
from tests.histories import ALL, RUN, History
from tests.questions import turn_bits, unknown

KIM = {"who": "kim", "why": "the price was wrong"}


@pytest.fixture
def here(database_url: str) -> Iterator[History]:
    with closing(History(database_url)) as here:
        yield here


@pytest.fixture
def small(tmp_path: Path) -> Iterator[History]:
    with closing(History(f"sqlite:///{tmp_path / 'agent.db'}")) as here:
        yield here


# -- what resuming does -------------------------------------------------------------------------------------------------


def test_a_step_and_all_after_it_are_done_again_on_a_new_line_and_no_charge_is(here: History) -> None:
    agent = here.walker()
    run = here.begun(agent, 3)
    run.resume(from_seq=2, **KIM)
    assert here.place() == (1, 0, 1, 1)
    assert here.row()["next_step"] == "s2"
    here.sound()
    here.work(agent)
    assert run.get(timeout=0) == ALL
    assert here.bodies == [(0, "s1"), (0, "s2"), (0, "s3"), (1, "s2"), (1, "s3"), (1, "s4")]
    assert here.requests == ALL
    assert [(entry.who, entry.what, entry.why) for entry in run.audit()] == [
        ("kim", "resume from step 2 as line 1", "the price was wrong")
    ]
    assert here.runtime.store.load(RUN, 3, line=0).agent_state["made_on"] == 0
    here.sound()


def test_a_failed_run_goes_on_with_the_step_that_failed(here: History) -> None:
    def pay(state: Any) -> Any:
        return fail("sold out") if current_run.line == 0 else done("paid")

    agent = here.agent(create=lambda _state: agent.steps["pay"], pay=pay)
    run = here.run(agent)
    assert run.status is RunStatus.FAILED
    run.resume(**KIM)
    row = here.row()
    assert (row["status"], row["error"], row["finished_at"], row["next_step"]) == ("queued", None, None, "pay")
    assert here.place() == (1, 0, 1, 1)
    here.sound()
    here.work(agent)
    assert run.get(timeout=0) == "paid"
    here.sound()


def test_open_questions_are_closed_and_a_doubt_stays_one_until_the_next_attempt_asks_again(here: History) -> None:
    stopped = unknown(here)
    run, item = stopped.run, stopped.item
    run.resume(**KIM)
    assert run.inbox() == []
    assert [entry.what for entry in run.audit()] == [
        "unknown: closed by resume from step 1 as line 1",
        "resume from step 1 as line 1",
    ]
    here.sound()
    here.work(stopped.agent)
    assert stopped.item.item_id == item.item_id  # the same doubt is asked about again
    assert here.requests == ["kim@example.com"]
    stopped.answer("happened", "sent")
    assert run.get(timeout=0) == "sent"
    here.sound()


def test_a_waiting_run_is_resumed_and_still_waits_for_what_it_waited_for(small: History) -> None:
    @tool(effect="manual", timeout=timedelta(seconds=10))
    def mail() -> None:
        small.requests.append("mail")
        raise TimeoutError

    agent = small.agent(mail, create=lambda _state: agent.steps["send"], send=lambda _state: done(mail()))
    run = small.run(agent)
    assert run.status is RunStatus.WAITING
    run.resume(from_seq=1, **KIM)
    assert run.status is RunStatus.QUEUED
    small.work(agent)
    assert run.status is RunStatus.WAITING
    assert small.requests == ["mail"]
    small.sound()


@pytest.mark.parametrize(("fresh", "bought"), [(False, 2), (True, 3)])
def test_recorded_reads_are_returned_or_bought_again_from_that_step_on(here: History, fresh: bool, bought: int) -> None:
    @tool(effect="read")
    def price(item: str) -> int:
        here.requests.append(item)
        return len(here.requests)

    agent = here.agent(
        price,
        first=lambda state: (state.update(first=price("a")), agent.steps["second"])[1],
        second=lambda state: (state.update(second=price("b")), agent.steps["third"])[1],
        third=lambda state: done([state["first"], state["second"]]),
    )
    run = here.begun(agent, 2)
    run.resume(from_seq=2, fresh_reads=fresh, **KIM)
    here.work(agent)
    assert run.get(timeout=0) == [1, bought]
    assert here.requests == ["a", "b", "b"][:bought]
    here.sound()


def test_a_run_is_resumed_again_from_a_line_that_was_resumed(here: History) -> None:
    agent = here.walker()
    run = here.begun(agent, 3)
    run.resume(from_seq=3, **KIM)
    here.go(agent, 1)  # the stale doorbell of line 0
    run.resume(from_seq=3, **KIM)
    run.resume(from_seq=2, **KIM)
    assert here.place()[1:] == (0, 1, 1)
    here.sound()
    here.walk_on(agent, run)
    here.sound()


# -- said twice ---------------------------------------------------------------------------------------------------------


def test_a_resume_whose_answer_was_lost_begins_one_line(here: History) -> None:
    agent = here.walker()
    run = here.begun(agent, 2)
    lost: list[Point] = []

    def lose_the_answer(point: Point) -> None:
        if point == Point("commit", "resume", "after") and not lost:
            lost.append(point)
            here.go(agent, 1)  # a worker is quicker than the second sending
            raise OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))

    here.runtime.boundary.observer = lose_the_answer
    here.runtime.bell.rings.clear()  # type: ignore[attr-defined]
    here.runtime.ring(RUN)
    run.resume(from_seq=2, **KIM)
    here.runtime.boundary.observer = None
    assert lost
    assert here.row()["line"] == 1
    assert len(run.audit()) == 1
    here.walk_on(agent, run)


def test_the_same_words_said_twice_before_anything_happened_count_once(small: History) -> None:
    agent = small.walker()
    run = small.begun(agent, 3)
    run.resume(from_seq=2, **KIM)
    run.resume(from_seq=2, **KIM)
    run.resume(**KIM)
    assert small.place() == (1, 0, 1, 1)
    assert len(run.audit()) == 1
    run.resume(from_seq=2, who="lee", why="mine")  # another person's word is another one
    assert small.place() == (2, 0, 1, 1)
    assert len(run.audit()) == 2


class Crash(BaseException):
    pass


def test_a_crash_at_any_boundary_of_a_resume_leaves_it_done_or_not_begun(here: History) -> None:
    crossed: list[Point] = []
    agent = here.walker()
    index = 0
    while True:
        run = agent.enqueue({}, run_id=f"run-{index}")
        here.runtime.bell.rings.clear()  # type: ignore[attr-defined]
        here.runtime.ring(run.run_id)
        here.go(agent, 3)
        requests = len(here.requests)
        crossed.clear()

        def crash(point: Point, index: int = index) -> None:
            crossed.append(point)
            if len(crossed) == index + 1:
                raise Crash

        here.runtime.boundary.observer = crash
        with suppress(Crash):
            run.resume(from_seq=2, **KIM)
        here.runtime.boundary.observer = None
        run.resume(from_seq=2, **KIM)  # the person does not know, and says it again
        here.work(agent)
        assert run.get(timeout=0) == ALL
        assert len(here.requests) == requests + 1  # of the fourth step
        assert len(run.audit()) == 1
        here.sound()
        if index >= len(crossed):
            break
        index += 1
    assert [str(point) for point in crossed][:2] == ["before commit resume", "after commit resume"]


# -- refused ------------------------------------------------------------------------------------------------------------


def refused(here: History, run: RunHandle, message: str, **given: Any) -> None:
    before, row = here.counts(), here.row()
    with pytest.raises(CannotResume, match=message):
        run.resume(**{**KIM, **given})
    assert here.counts() == before
    assert {**here.row(), "now": None} == {**row, "now": None}


@pytest.mark.parametrize("from_seq", [0, 4, -1, True, 1.5, "2"])
def test_a_step_that_the_run_does_not_have_is_refused_with_those_it_has(small: History, from_seq: Any) -> None:
    run = small.begun(small.walker(), 2)
    refused(small, run, rf"from 1 to 3, got {from_seq!r}\. .*Its steps: 1 s1, 2 s2, 3 s3\.", from_seq=from_seq)


def test_a_running_run_is_refused(small: History) -> None:
    def pay(_state: Any) -> Any:
        in_thread(lambda: refused(small, run, "is running step 'pay'.*cancel it first, or wait", from_seq=1))
        return done("paid")

    agent = small.agent(pay=pay)
    run = agent.enqueue({}, run_id=RUN)
    small.work(agent)
    assert run.get(timeout=0) == "paid"
    refused(small, run, "has succeeded.*start a new run")
    cancelled = agent.enqueue({}, run_id="run-2")
    cancelled.cancel(**KIM)
    refused(small, cancelled, "was cancelled, and .*start a new run")


def test_a_damaged_checkpoint_is_no_place_to_resume_from(small: History) -> None:
    run = small.begun(small.walker(), 3)
    turn_bits(small.runtime, [2])
    refused(small, run, r"cannot resume from step 3: checkpoint \(line 0, seq 2\).*an earlier step", from_seq=3)
    small.lose(1)
    refused(small, run, r"cannot resume from step 2: .*no checkpoint at seq 1", from_seq=2)
    run.resume(from_seq=1, **KIM)
    assert small.place() == (1, 0, 0, 0)


@pytest.mark.parametrize("missing", ["who", "why"])
def test_nobody_and_for_no_reason_is_refused(small: History, missing: str) -> None:
    run = small.begun(small.walker(), 1)
    refused(small, run, f"{missing} must be a text", **{missing: " "})


# -- recovery by hand ---------------------------------------------------------------------------------------------------


def dying(here: History, **options: Any) -> Any:
    """Return an agent whose second step takes its first worker along."""

    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        if len(here.requests) == 1:
            raise MemoryError
        return done("paid")

    from agent_tasks import Agent

    agent = Agent("dying", app=here.app, **options)
    agent.step(lambda _state: agent.steps["pay"], name="create", start=True)
    agent.step(pay, name="pay")
    return agent


def test_a_run_that_is_recovered_by_hand_asks_at_once_and_shows_what_there_is_to_choose(here: History) -> None:
    agent = dying(here, recovery="manual")
    run = here.run(agent)
    (item,) = run.inbox()
    assert (run.status, item.question, run.waiting_for) == (
        RunStatus.NEEDS_ATTENTION,
        "crashes",
        "a person: step pay lost its worker",
    )
    shown = [(made["seq"], made["line"], made["step"]) for made in item.detail["checkpoints"]]
    assert (item.detail["step"], item.detail["seq"], shown) == ("pay", 2, [(1, 0, "create"), (0, 0, None)])
    here.sound()
    run.resolve(item.item_id, "retry", who="kim", why="it was the machine")
    here.work(agent)
    assert run.get(timeout=0) == "paid"
    assert here.place()[0] == 0


def test_a_person_picks_another_checkpoint(small: History) -> None:
    agent = dying(small, recovery="manual")
    run = small.run(agent)
    run.resume(from_seq=1, **KIM)
    assert run.inbox() == []
    small.work(agent)
    assert run.get(timeout=0) == "paid"
    assert small.place()[0] == 1
    small.sound()


def test_a_run_says_for_itself_how_it_is_recovered(small: History) -> None:
    by_hand, by_itself = dying(small), None
    run = by_hand.enqueue({}, run_id=RUN, recovery="manual")
    small.work(by_hand)
    assert run.status is RunStatus.NEEDS_ATTENTION
    small.requests.clear()
    by_itself = by_hand.enqueue({}, run_id="run-2")
    small.work(by_hand)
    assert by_itself.get(timeout=0) == "paid"


def test_a_lease_that_runs_out_parks_a_run_that_is_recovered_by_hand(small: History) -> None:
    agent = dying(small, recovery="manual")
    run = agent.enqueue({}, run_id=RUN)
    sweeper = Sweeper(small.runtime)
    sweeper.sweep()
    small.runtime.boundary.commit(
        "claim",
        small.runtime.engine,
        lambda connection: small.runtime.runs.claim(
            connection, RUN, 1, agent="dying", step="create", owner="a worker", token="token"
        ),
    )
    small.runtime.clock.advance(small.runtime.settings.lease_seconds + 1)
    sweeper.sweep()
    assert run.status is RunStatus.NEEDS_ATTENTION
    small.sound()


@pytest.mark.parametrize("where", ["agent", "enqueue"])
def test_another_word_for_recovery_is_refused_with_the_nearest(small: History, where: str) -> None:
    def make() -> Callable[[], Any]:
        if where == "agent":
            return lambda: dying(small, recovery="manuel")
        agent = dying(small)
        return lambda: agent.enqueue({}, recovery="manuel")

    before = small.counts()
    with pytest.raises(AgentTasksError, match=r"must be one of auto, manual, got 'manuel'\. Did you mean 'manual'\?"):
        make()()
    assert small.counts() == before
