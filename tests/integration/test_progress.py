"""What a body says while it runs, how far it came and what the vendor calls the effect: kept at once, read by who comes next (I2, I4)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import OperationalError

from agent_tasks import (
    AgentTask,
    Happened,
    LeaseLost,
    NotAwaited,
    NotHappened,
    NotKept,
    Operation,
    RunFailed,
    Tool,
    done,
    tool,
)
from agent_tasks.boundary import Point
from agent_tasks.inline import answer_all
from agent_tasks.states import RunStatus
from checkpoint.envelope import MAX_BYTES
from tests.duel import RUN, Duel, Outage, duel, observed

TIMEOUT = timedelta(seconds=10)
DAY = timedelta(hours=24)

#: Declarations of tools whose bodies may run again.
AGAIN: dict[str, dict[str, Any]] = {
    "keyed": {"key_lifetime": DAY},
    "repeatable": {"why": "the same pages are the same as once"},
    "probed": {"timeout": TIMEOUT},
    "manual": {"timeout": TIMEOUT},
}


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    """On SQLite only, for what asks nothing of the database."""
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        yield both


def tool_with(effect: str, body: Any, answer: Any = None, **options: Any) -> Tool[..., Any]:
    made: Tool[..., Any] = tool(effect=effect, bind=True, name="act", **AGAIN.get(effect, {}), **options)(body)
    if effect == "probed":
        made.probe(lambda operation: NotHappened() if answer is None else answer(operation))
    return made


def agent_with(here: Duel, act: Tool[..., Any]) -> Any:
    return here.agent(act, only=lambda _state: done(act()))


def evidence(here: Duel) -> list[tuple[str, Any]]:
    return [(fact["what"], fact.get("said")) for fact in here.operation().evidence]


# -- progress ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", AGAIN)
def test_the_next_attempt_goes_on_where_the_one_before_it_was(here: Duel, effect: str) -> None:
    pages: list[int] = []

    def body(operation: Operation) -> Any:
        for page in range(operation.progress or 0, 4):
            pages.append(page)
            if pages == [0, 1, 2]:
                raise MemoryError  # the worker dies, and with it page 2
            operation.save_progress(page + 1)
        return operation.progress

    agent = agent_with(here, tool_with(effect, body))
    run = here.run(agent)
    here.drive(agent)
    if effect == "manual":
        assert (here.questions(), here.operation().progress) == (["unknown"], 2)
        here.reply(agent, "did-not-happen")
    assert run.get(timeout=0) == 4
    assert pages == [0, 1, 2, 2, 3]
    here.sound()


def test_progress_is_there_for_others_before_the_body_ends(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        operation.save_progress({"page": 1, "cursor": (1, 2)})
        here.requests.append(here.operation().progress)
        return operation.progress

    assert here.run(agent_with(here, tool_with("manual", body))).get(timeout=0) == {"page": 1, "cursor": (1, 2)}
    assert here.requests == [{"page": 1, "cursor": (1, 2)}]


def test_what_a_zombie_saves_changes_nothing_and_tells_it_so(here: Duel) -> None:
    lost: list[str] = []

    def body(operation: Operation) -> Any:
        here.requests.append(operation.attempts)
        if operation.attempts == 1:
            operation.save_progress("half")
            here.meanwhile(agent)
            try:
                operation.save_progress("all of it, says the zombie")
            except LeaseLost as error:
                lost.append(str(error))
                raise
        operation.save_progress([operation.progress, "and more"])
        return "ended"

    agent = agent_with(here, tool_with("keyed", body))
    run = here.run(agent)
    assert run.get(timeout=0) == "ended"
    assert (here.requests, len(lost)) == ([1, 2], 1)
    assert "the lease was lost while act ran" in lost[0]
    assert here.operation().progress == ["half", "and more"]
    here.sound()


def test_what_a_body_saves_whose_call_others_have_settled_changes_nothing(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        operation.save_progress(1)
        settled = {"status": "succeeded", "result": b"", "ended": 1, "finished_at": 1}
        table = here.runtime.tables.operations
        with here.runtime.engine.connect() as connection, connection.begin():
            connection.execute(table.update().values(**settled))
        operation.save_progress(2)

    run = here.run(agent_with(here, tool_with("manual", body)))
    assert run.status is RunStatus.WAITING
    assert "others have written what became of act" in (run.waiting_for or "")
    assert here.operation().progress == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", ["progress", "external id"])
def test_a_write_whose_answer_is_lost_is_made_once_more(here: Duel, what: str, moment: str) -> None:
    def body(operation: Operation) -> Any:
        operation.save_progress("half")
        operation.record_external_id("pi_1")
        return [operation.progress, operation.external_id]

    outage = Outage(what, moment)
    observed(here.runtime, outage)
    assert here.run(agent_with(here, tool_with("manual", body))).get(timeout=0) == ["half", "pi_1"]
    assert (outage.hits, here.operation().progress, here.operation().external_id) == (1, "half", "pi_1")
    here.sound()


def test_a_time_limit_that_strikes_in_the_middle_of_a_write_lets_it_be_written_and_ends_the_attempt(here: Duel) -> None:
    def strike(point: Point) -> None:
        if (point.name, point.moment) == ("progress", "after") and not here.requests:
            here.requests.append("struck")
            raise SoftTimeLimitExceeded

    def body(operation: Operation) -> Any:
        if operation.progress is None:
            operation.save_progress("half")
            here.requests.append("not reached")
        return operation.progress

    observed(here.runtime, strike)
    agent = agent_with(here, tool_with("keyed", body))
    run = here.run(agent)
    assert (run.status, here.operation().progress) == (RunStatus.WAITING, "half")
    assert "its soft time limit struck at 'progress'" in (run.waiting_for or "")
    here.drive(agent)
    assert (run.get(timeout=0), here.requests) == ("half", ["struck"])


def test_a_step_that_is_over_its_time_limit_saves_nothing_more_and_the_next_one_goes_on(here: Duel) -> None:
    def away(point: Point) -> None:
        if (point.name, point.moment) == ("progress", "before") and here.requests == ["first", "over"]:
            here.runtime.clock.advance(here.runtime.settings.step_timeout_seconds)
            raise OperationalError("COMMIT", {}, ConnectionError("the database is away"))

    def body(operation: Operation) -> Any:
        here.requests.append("first" if operation.progress is None else "second")
        if operation.progress is None:
            operation.save_progress(1)
            here.requests.append("over")
            operation.save_progress(2)
            here.requests.append("not reached")
        return operation.progress

    observed(here.runtime, away)
    agent = agent_with(here, tool_with("repeatable", body))
    run = here.run(agent)
    assert (run.status, here.operation().progress) == (RunStatus.RUNNING, 1)  # its lease runs out
    here.later(agent, 0)
    here.later(agent, here.runtime.settings.lease_seconds + 1)
    assert (run.get(timeout=0), here.requests) == (1, ["first", "over", "second"])
    here.sound()


def test_a_cancel_lets_the_body_save_and_end(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        run.cancel(who="kim", why="not needed")
        operation.save_progress("all of it")
        return "ended"

    agent = agent_with(here, tool_with("manual", body))
    run = agent.enqueue({}, run_id=RUN)
    here.work(agent)
    assert (run.status, here.operation().progress, here.operation().result) == ("succeeded", "all of it", "ended")


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        ("read", "of a 'read' nothing is recorded before its result. .* declare the tool effect='repeatable'"),
        ("transactional", "is rolled back, and begins anew"),
    ],
)
@pytest.mark.parametrize("word", ["save_progress", "record_external_id"])
def test_where_nothing_is_left_after_a_crash_nothing_is_saved(one: Duel, effect: str, said: str, word: str) -> None:
    run = one.run(agent_with(one, tool_with(effect, lambda operation: getattr(operation, word)("half"))))
    with pytest.raises(RunFailed, match=f"NotKept.*operation.{word} of 'act'.*{said}"):
        run.get(timeout=0)


def test_nothing_is_saved_after_the_end_of_the_body(one: Duel) -> None:
    kept: list[Operation] = []
    one.run(agent_with(one, tool_with("manual", kept.append)))
    with pytest.raises(NotKept, match="outside of the call's body"):
        kept[0].save_progress(1)
    with pytest.raises(NotKept, match="outside of the call's body"):
        one.operation().record_external_id("pi_1")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), r"progress of 'act' \(operation op_\w+\) cannot be stored.*an object has no stored form"),
        ({"rows": [1, {2, object}]}, r"\['rows'\]\[1\].* in progress of 'act'"),
        (b"x" * (MAX_BYTES + 1), f"bytes and the limit is {MAX_BYTES}; store a reference"),
    ],
    ids=["an object", "something inside", "larger than a value may be"],
)
def test_progress_that_cannot_be_stored_is_refused_and_what_was_saved_stays(one: Duel, value: Any, said: str) -> None:
    def body(operation: Operation) -> Any:
        operation.save_progress("half")
        with pytest.raises(NotKept, match=said) as refused:
            operation.save_progress(value)
        assert "what was saved before stays" in str(refused.value)
        return operation.progress

    assert one.run(agent_with(one, tool_with("manual", body))).get(timeout=0) == "half"
    assert one.operation().progress == "half"


def test_threads_of_a_body_may_save(one: Duel) -> None:
    def body(operation: Operation) -> Any:
        threads = [threading.Thread(target=operation.save_progress, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return operation.progress

    assert one.run(agent_with(one, tool_with("manual", body))).get(timeout=0) in range(3)


def test_an_async_body_awaits_what_it_saves(one: Duel) -> None:
    async def body(operation: Operation) -> Any:
        with pytest.raises(NotAwaited, match=r"await operation\.aio\.save_progress"):
            operation.save_progress(1)
        with pytest.raises(NotAwaited, match=r"await operation\.aio\.record_external_id"):
            operation.record_external_id("pi_1")
        await operation.aio.save_progress("half")
        await operation.aio.record_external_id("pi_1")
        return [operation.progress, operation.external_id]

    act = tool_with("manual", body)

    async def step(_state: Any) -> Any:
        return done(await act())

    assert one.run(one.agent(act, only=step)).get(timeout=0) == ["half", "pi_1"]


def test_the_body_of_a_plain_task_saves_its_progress(one: Duel) -> None:
    @one.app.task(base=AgentTask, bind=True, effect="manual", timeout=TIMEOUT, name="long")
    def long(self: Any) -> Any:
        self.operation.save_progress("half")
        self.operation.record_external_id("pi_1")
        return [self.operation.progress, self.operation.external_id]

    handle = long.run_handle(long.delay())
    answer_all(one.runtime, long.job)
    assert handle.get(timeout=0) == ["half", "pi_1"]


# -- the vendor's name of an effect ---------------------------------------------------------------------------------------------


def test_a_probe_finds_an_effect_by_the_id_that_the_body_recorded(here: Duel) -> None:
    asked: list[str] = []

    def body(operation: Operation) -> Any:
        operation.record_external_id("pi_1")
        raise MemoryError

    def answer(operation: Operation) -> Any:
        asked.append(operation.external_id)
        return Happened("paid")

    agent = agent_with(here, tool_with("probed", body, answer))
    run = here.run(agent)
    here.drive(agent)
    assert (run.get(timeout=0), asked, here.operation().external_id) == ("paid", ["pi_1"], "pi_1")
    here.sound()


def test_a_probe_that_finds_another_id_is_believed_and_both_are_kept(one: Duel) -> None:
    def body(operation: Operation) -> Any:
        operation.record_external_id("pi_1")
        raise MemoryError

    agent = agent_with(one, tool_with("probed", body, lambda _operation: Happened("paid", "pi_2")))
    one.run(agent)
    one.drive(agent)
    assert one.operation().external_id == "pi_2"
    assert evidence(one)[-1] == ("probe", "happened as 'pi_2'; its body had recorded 'pi_1'")


def test_a_person_is_shown_the_id(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        operation.record_external_id("pi_1")
        raise ConnectionError("reset")

    agent = agent_with(here, tool_with("manual", body))
    run = here.run(agent)
    here.drive(agent)
    (item,) = run.inbox()
    assert (item.detail["external_id"], here.operation().external_id) == ("pi_1", "pi_1")


def test_another_id_for_one_call_is_an_error_that_names_both_and_is_kept(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        for external_id in ("pi_1", "pi_1"):
            operation.record_external_id(external_id)
        with pytest.raises(NotKept, match=r"known to the vendor as 'pi_1' and was to be recorded as 'pi_2'"):
            operation.record_external_id("pi_2")
        return "paid"

    assert here.run(agent_with(here, tool_with("manual", body))).get(timeout=0) == "paid"
    assert here.operation().external_id == "pi_1"
    assert evidence(here) == [("another external id", "pi_2")]


def test_a_key_that_is_sent_again_has_the_id_it_had(here: Duel) -> None:
    seen: list[Any] = []

    def body(operation: Operation) -> Any:
        seen.append(operation.external_id)
        if operation.attempts == 1:
            operation.record_external_id("pi_1")
            raise MemoryError
        with pytest.raises(NotKept, match="'pi_1' and was to be recorded as 'pi_2'"):
            operation.record_external_id("pi_2")
        operation.record_external_id("pi_1")
        return "paid"

    agent = agent_with(here, tool_with("keyed", body))
    run = here.run(agent)
    here.drive(agent)
    assert (run.get(timeout=0), seen) == ("paid", [None, "pi_1"])


@pytest.mark.parametrize("effect", ["probed", "repeatable"])
def test_a_request_after_one_that_does_not_count_has_an_id_of_its_own(here: Duel, effect: str) -> None:
    seen: list[Any] = []

    def body(operation: Operation) -> Any:
        seen.append(operation.external_id)
        operation.record_external_id(f"pi_{operation.attempts}")
        if operation.attempts == 1:
            raise MemoryError
        return "paid"

    agent = agent_with(here, tool_with(effect, body))
    run = here.run(agent)
    here.drive(agent)
    assert (run.get(timeout=0), here.operation().external_id) == ("paid", "pi_2")
    assert seen == [None, "pi_1" if effect == "repeatable" else None]
    assert ("earlier external id", "pi_1") in evidence(here)
    here.sound()


def test_an_id_that_comes_late_is_kept_as_evidence_and_so_is_what_follows_it(here: Duel) -> None:
    def body(operation: Operation) -> Any:
        here.requests.append(operation.attempts)
        here.meanwhile(agent)
        operation.record_external_id("pi_late")
        with pytest.raises(LeaseLost):
            operation.save_progress("more")
        return "paid"

    agent = agent_with(here, tool_with("manual", body))
    run = here.run(agent)
    here.drive(agent)
    assert (run.get(timeout=0), here.requests) == ("paid", [1])  # its late outcome settled it
    assert evidence(here) == [("late external id", "pi_late"), ("late succeeded", None)]
    assert here.operation().external_id is None
    here.sound()


@pytest.mark.parametrize("wrong", ["", "x" * 401, "a\0b", "a\nb", "\ud800", None, 4711, b"pi_1"])
def test_an_id_that_no_row_holds_is_refused(one: Duel, wrong: Any) -> None:
    def body(operation: Operation) -> Any:
        with pytest.raises(NotKept, match="a text of 1 to 400 printable characters, got") as refused:
            operation.record_external_id(wrong)
        assert ("Write record_external_id(str(4711))" in str(refused.value)) == (wrong == 4711)
        return "paid"

    assert one.run(agent_with(one, tool_with("manual", body))).get(timeout=0) == "paid"
