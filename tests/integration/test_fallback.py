"""A checkpoint that must not be used is left for the newest that may be, on a new line, and no effect is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import Agent, current_run, done, tool
from agent_tasks import ending as ending_module
from agent_tasks import enqueue as enqueue_module
from agent_tasks.errors import AgentTasksError
from agent_tasks.health import passed_over
from agent_tasks.states import RunStatus
from agent_tasks.testing import VendorWorld, explore_crashes
from checkpoint import register
from checkpoint.errors import CheckpointCorrupted
from checkpoint.registry import registry
from tests.agents import World, agent_of, new_app
from tests.histories import RUN, History
from tests.questions import turn_bits


@pytest.fixture
def here(database_url: str) -> Iterator[History]:
    with closing(History(database_url)) as here:
        yield here


@pytest.fixture
def small(tmp_path: Path) -> Iterator[History]:
    with closing(History(f"sqlite:///{tmp_path / 'agent.db'}")) as here:
        yield here


# -- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda here: turn_bits(here.runtime, [2]), "its head"),
        (lambda here: here.garble_message(1), "its message 1"),
        (lambda here: here.lose(2), "its row is missing"),
    ],
    ids=["a flipped bit", "a garbled message", "a missing row"],
)
def test_a_damaged_checkpoint_is_left_for_the_one_before_it(
    here: History, caplog: pytest.LogCaptureFixture, damage: Callable[[History], None], said: str
) -> None:
    agent = here.walker()
    run = here.begun(agent, 2)
    damage(here)
    here.another_process()
    here.go(agent, 1)
    assert here.place() == (1, 0, 1, 1)
    assert (run.status, here.row()["attempts"], here.row()["next_step"]) == (RunStatus.QUEUED, 0, "s2")
    here.sound()

    here.walk_on(agent, run)
    assert here.bodies == [(0, "s1"), (0, "s2"), (1, "s2"), (1, "s3"), (1, "s4")]
    (entry,) = run.audit()
    assert (entry.who, entry.what) == ("engine", "fall back to checkpoint 1")
    (warned,) = [r.getMessage() for r in caplog.records if "fell back" in r.getMessage()]
    assert warned == f"run {RUN}: {entry.why}"
    assert "from checkpoint 2 of line 0 to checkpoint 1 of line 0, as line 1: " in warned
    assert said in warned
    here.sound()


def test_the_line_that_was_left_stays_readable(here: History) -> None:
    agent = here.walker(health_check=lambda state: state.get("made_on") == 1 or "s3" not in state)
    run = here.begun(agent, 3)
    left = run.state()
    here.work(agent)
    assert here.runtime.store.load(RUN, 3, line=0) == left
    assert [(s.line, s.seq) for s in here.runtime.store.list_checkpoints(RUN)] == [
        *((1, seq) for seq in (4, 3)),
        *((0, seq) for seq in (3, 2, 1, 0)),
    ]
    state = run.state()
    assert (state.line, state.seq) == (1, 4)


def test_a_state_is_the_one_the_run_stands_at_and_never_an_older_or_a_left_one(here: History) -> None:
    agent = here.walker(health_check=lambda state: state.get("made_on") == 1 or "s2" not in state)
    run = here.begun(agent, 3 - 1)
    here.go(agent, 1)  # falls back
    assert (run.state().line, run.state().seq) == (0, 1)
    turn_bits(here.runtime, [1])
    with pytest.raises(CheckpointCorrupted, match="seq 1"):
        run.state()


def test_a_run_falls_back_over_several_damaged_ones_and_asks_again_for_what_happened_in_each_step(
    here: History,
) -> None:
    agent = here.walker()
    run = here.begun(agent, 3)
    turn_bits(here.runtime, [2, 3])
    here.walk_on(agent, run)
    assert here.place() == (1, 0, 1, 4)
    here.sound()


def test_a_run_falls_back_again_and_further_from_a_line_that_began_by_falling_back(here: History) -> None:
    agent = here.walker()
    run = here.begun(agent, 3)
    turn_bits(here.runtime, [3])
    here.go(agent, 2)  # falls back to 2, and makes checkpoint 3 of line 1
    assert here.place() == (1, 0, 2, 3)
    turn_bits(here.runtime, [3], line=1)
    turn_bits(here.runtime, [2])
    here.go(agent, 1)
    assert here.place() == (2, 0, 1, 1)
    here.sound()
    here.walk_on(agent, run)
    assert here.place() == (2, 0, 1, 4)
    assert [entry.what for entry in run.audit()] == ["fall back to checkpoint 2", "fall back to checkpoint 1"]
    here.sound()


def test_a_value_that_this_release_cannot_read_is_no_damage_and_waits_for_one_that_can(
    small: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part:
        pass

    for kept in ("_by_class", "_by_tag"):
        monkeypatch.setattr(registry, kept, dict(getattr(registry, kept)))
    part = Part()
    register("test.Part", Part, to_data=lambda _: 1, from_data=lambda _: part)

    def create(state: Any) -> Any:
        state["part"] = part
        return agent.steps["use"]

    agent = small.agent(create=create, use=lambda _state: done("used"))
    run = small.begun(agent, 1)
    known = dict(registry._by_class), dict(registry._by_tag)
    registry._by_class.clear()
    registry._by_tag.clear()
    register("test.Part", Part, to_data=lambda _: 1, from_data=lambda data: 1 / (data - data))
    small.another_process()
    small.work(agent)
    assert (small.place(), run.status) == ((0, 0, 0, 1), RunStatus.NEEDS_ATTENTION)
    registry._by_class.update(known[0])
    registry._by_tag.update(known[1])
    (item,) = run.inbox()
    agent.run(RUN).resolve(item.item_id, "retry", who="kim", why="the release that knows it is out")
    small.work(agent)
    assert run.get(timeout=0) == "used"


def before_this_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checkpoints be made that do not say which step follows."""
    monkeypatch.setattr(enqueue_module, "NEXT_STEP", "unknown then")
    monkeypatch.setattr(ending_module, "NEXT_STEP", "unknown then")


@pytest.mark.parametrize(
    ("unhealthy", "begins_at"),
    [(True, 2), (False, 1)],
    ids=["a verified one says who made it", "a damaged one says nothing"],
)
def test_the_step_that_follows_an_older_releases_checkpoint_is_the_one_that_made_the_next(
    small: History, monkeypatch: pytest.MonkeyPatch, unhealthy: bool, begins_at: int
) -> None:
    agent = small.walker(health_check=lambda state: not unhealthy or state.get("made_on") == 1 or "s3" not in state)
    with monkeypatch.context() as before:
        before_this_release(before)
        run = small.begun(agent, 3)
    if not unhealthy:
        turn_bits(small.runtime, [3])
    small.go(agent, 1)
    assert small.place() == (1, 0, begins_at, begins_at)
    small.walk_on(agent, run)


# -- health -------------------------------------------------------------------------------------------------------------


def no(_state: Any) -> Any:
    return False


def why(_state: Any) -> Any:
    return "the cart is gone"


def raises(state: Any) -> Any:
    return state["no such key"]


def nonsense(_state: Any) -> Any:
    return {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (no, "its health check says no"),
        (why, "its health check says: the cart is gone"),
        (raises, "its health check raised KeyError: 'no such key'"),
        (nonsense, "its health check returned {}, and must return True, False or why not as a text"),
    ],
)
def test_a_checkpoint_that_fails_the_agents_own_check_is_left(
    here: History, answer: Callable[[Any], Any], said: str
) -> None:
    agent = here.walker(
        health_check=lambda state: True if state.get("made_on") != 0 or "s2" not in state else answer(state)
    )
    run = here.begun(agent, 2)
    here.walk_on(agent, run)
    assert here.place() == (1, 0, 1, 4)
    assert run.audit()[0].why.endswith(f": {said}")
    here.sound()


def test_what_a_health_check_raises_is_logged_with_its_traceback(
    small: History, caplog: pytest.LogCaptureFixture
) -> None:
    agent = small.walker(health_check=raises)
    small.begun(agent, 1)
    assert "Traceback" in caplog.text
    assert "in raises" in caplog.text


def test_a_run_none_of_whose_checkpoints_passes_asks_a_person_and_does_nothing(here: History) -> None:
    agent = here.walker(health_check=why)
    run = here.begun(agent, 1)
    (item,) = run.inbox()
    assert (run.status, item.question, here.bodies) == (RunStatus.NEEDS_ATTENTION, "checkpoint", [])
    assert item.detail == {
        "line": 0,
        "seq": 0,
        "why": "its health check says: the cart is gone; and no older one can be used",
    }
    here.sound()
    run.resolve(item.item_id, "abort", who="kim", why="nobody needs it")
    assert run.status is RunStatus.FAILED


def test_a_step_that_always_makes_an_unhealthy_state_is_done_twice_and_then_a_person_is_asked(here: History) -> None:
    agent = here.walker(health_check=lambda state: "s2" not in state)
    run = here.begun(agent, 1)
    here.work(agent)
    (item,) = run.inbox()
    assert item.question == "checkpoint"
    assert item.detail["why"].endswith("and the run has fallen back to checkpoint 1 before, and came here again")
    assert here.bodies == [(0, "s1"), (0, "s2"), (1, "s2")]
    assert here.requests == ["s1", "s2"]
    here.sound()

    run.resolve(item.item_id, "retry", who="kim", why="the step is repaired")  # a person's word allows it once more
    here.work(agent)
    assert here.bodies[3:] == [(2, "s2")]
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert here.requests == ["s1", "s2"]
    here.sound()


def test_a_check_that_changes_its_mind_cannot_keep_a_run_going_in_circles(small: History) -> None:
    """At each claim it says no to the newest state it is shown, so that the run falls back from wherever it stands."""
    shown: list[int] = []

    def fickle(state: Any) -> bool:
        shown.append(len(state.messages))
        return len(shown) % 2 == 0

    agent = small.walker(steps=6, health_check=fickle)
    run = agent.enqueue({}, run_id=RUN)
    for _ in range(50):
        small.work(agent)
    assert run.status in (RunStatus.NEEDS_ATTENTION, RunStatus.SUCCEEDED)
    assert not small.runtime.bell.rings  # type: ignore[attr-defined]
    starts = [entry.what for entry in run.audit()]
    assert len(starts) == len(set(starts))


def test_a_check_stands_under_the_deadline_and_the_lease_of_its_step(small: History) -> None:
    seen: list[Any] = []

    def look(_state: Any) -> None:
        seen.extend(small.runtime.slots.leases())

    agent = small.walker(health_check=look)
    small.begun(agent, 1)
    (lease,) = seen
    assert (lease.run_id, lease.fence) == (RUN, 1)
    assert lease.deadline - small.runtime.clock.local() <= small.runtime.settings.step_timeout_seconds


def test_a_check_that_takes_its_worker_along_is_parked_like_a_step_that_does(small: History) -> None:
    def devour(_state: Any) -> None:
        raise MemoryError

    agent = small.walker(health_check=devour)
    run = agent.enqueue({}, run_id=RUN)
    small.work(agent)
    assert [str(item.question) for item in run.inbox()] == ["crashes"]
    assert small.place() == (0, 0, 0, 0)


def test_a_check_is_one_function_of_the_state(small: History) -> None:
    agent = small.walker()
    with pytest.raises(AgentTasksError, match="must be a function of the state, got 'yes'"):
        agent.health_check("yes")  # type: ignore[arg-type]
    assert agent.health_check(no) is no
    with pytest.raises(AgentTasksError, match="has a health check already"):
        agent.health_check(why)


# -- messages -----------------------------------------------------------------------------------------------------------

ASK = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "pay"}}]}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "paid"}
USE = {"role": "assistant", "content": [{"type": "text", "text": "…"}, {"type": "tool_use", "id": "c1", "name": "pay"}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "paid"}]}
TWO = {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]}
HELLO, BYE = {"role": "user", "content": "hello?"}, {"role": "assistant", "content": "bye"}


@pytest.mark.parametrize(
    ("messages", "passed"),
    [
        ([], None),
        ([HELLO, BYE], None),
        ([ASK], None),
        ([USE], None),
        ([ASK, TOLD, BYE], None),
        ([USE, RESULT, BYE], None),
        ([ASK, HELLO], "c1"),
        ([USE, HELLO], "c1"),
        ([ASK, ASK], "c1"),
        ([TWO, TOLD], None),
        ([TWO, TOLD, BYE], "c2"),
        ([ASK, BYE, TOLD], None),
        ([ASK, "free text", 7, None], None),
        ([{"role": "assistant", "tool_calls": None, "content": None}, BYE], None),
        ([{"role": "assistant", "tool_calls": [{"id": ["odd"]}, "odd"], "content": [1]}, BYE], None),
    ],
    ids=str,
)
def test_a_tool_call_is_passed_over_if_the_messages_go_on_and_never_bring_its_result(
    messages: list[Any], passed: str | None
) -> None:
    assert passed_over(messages) == passed


@pytest.mark.parametrize("checked", [True, False])
def test_messages_are_looked_through_when_a_run_is_resumed_and_not_before(small: History, checked: bool) -> None:
    def ask(state: Any) -> Any:
        state.messages.extend([ASK] if current_run.line else [ASK, HELLO])
        return agent.steps["pay"]

    def pay(state: Any) -> Any:
        small.bodies.append((current_run.line, "pay"))
        if current_run.line == 0 and current_run.number == 1:
            raise MemoryError
        return done(len(state.messages))

    agent = Agent("talker", app=small.app, check_messages=checked)
    agent.step(ask, name="ask", start=True)
    agent.step(pay, name="pay")
    run = agent.enqueue({}, run_id=RUN)
    small.work(agent)
    assert small.bodies == [(0, "pay"), (1, "pay")] if checked else [(0, "pay"), (0, "pay")]
    assert run.get(timeout=0) == (1 if checked else 2)
    if checked:
        assert "its messages go on after tool call 'c1'" in run.audit()[0].why


# -- effects of the line that was left ----------------------------------------------------------------------------------


def test_an_effect_that_the_new_line_does_not_ask_for_is_an_orphan_at_the_runs_end(here: History) -> None:
    """I13: the older line charged in step 3; the new one ends in step 3 by another way."""

    charge = here.charge()

    def create(state: Any) -> Any:
        state["line"] = current_run.line
        return agent.steps["choose"]

    def choose(state: Any) -> Any:
        state["line"] = current_run.line
        return agent.steps["pay"] if current_run.line == 0 else agent.steps["free"]

    def pay(state: Any) -> Any:
        charge(100)
        return agent.steps["free"]

    agent = here.agent(charge, create=create, choose=choose, pay=pay, free=lambda _state: done("free"))
    run = here.begun(agent, 3)
    assert here.requests == [100]
    turn_bits(here.runtime, [2, 3])
    here.work(agent)
    assert here.place() == (1, 0, 1, 2)
    (item,) = run.inbox()
    assert (run.status, item.question) == (RunStatus.NEEDS_ATTENTION, "orphan")
    assert item.detail["args"] == {"what": 100}
    here.sound()
    run.resolve(item.item_id, "keep", who="kim", why="the customer has it")
    here.work(agent)
    assert run.get(timeout=0) == "free"
    assert here.requests == [100]
    here.sound()


def test_no_new_effect_is_executed_before_the_new_line_asked_for_what_happened_later_on_the_older_one(
    here: History,
) -> None:
    """M4: falling back along another path, the charge of step 3 would be made again in step 2."""

    charge = here.charge()

    def create(_state: Any) -> Any:
        return agent.steps["choose"]

    def choose(state: Any) -> Any:
        return agent.steps["pay"] if current_run.line == 0 else done(charge(100))

    def pay(_state: Any) -> Any:
        charge(100)
        return agent.steps["end"]

    agent = here.agent(charge, create=create, choose=choose, pay=pay, end=lambda _state: done("end"))
    run = here.begun(agent, 3)
    turn_bits(here.runtime, [2, 3])
    here.work(agent)
    assert [str(item.question) for item in run.inbox()] == ["orphan"]
    assert here.requests == [100]
    here.sound()


def test_effects_inside_a_recorded_body_are_asked_for_with_it_on_every_line(here: History) -> None:
    @tool(effect="manual", timeout=timedelta(seconds=10))
    def mail(to: str) -> str:
        here.requests.append(to)
        return "sent"

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=False)
    def order(item: str) -> str:
        return mail(item)

    def buy(state: Any) -> Any:
        state["sent"] = order("tea")
        return agent.steps["end"]

    agent = here.agent(
        mail, order, create=lambda _state: agent.steps["buy"], buy=buy, end=lambda state: done(state["sent"])
    )
    run = here.begun(agent, 2)
    turn_bits(here.runtime, [2])
    here.work(agent)
    assert run.get(timeout=0) == "sent"
    assert here.requests == ["tea"]
    assert {operation.row["line"] for operation in run.operations()} == {1}
    here.sound()


def test_a_doubt_of_a_later_step_is_left_to_that_step(here: History) -> None:
    """A keyed call in doubt is sent again with its key by the step that asks for it; nobody is asked before."""

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
    def charge(operation: Any) -> str:
        here.requests.append(operation.idempotency_key)
        if len(here.requests) == 1:
            raise TimeoutError("no answer")
        return "charged"

    agent = here.agent(
        charge,
        create=lambda _state: agent.steps["choose"],
        choose=lambda _state: agent.steps["pay"],
        pay=lambda _state: done(charge()),
    )
    run = here.begun(agent, 3)
    assert run.status is RunStatus.WAITING
    run.resume(from_seq=2, who="kim", why="from there")
    here.work(agent)
    assert run.get(timeout=0) == "charged"
    assert len(here.requests) == 2
    assert len(set(here.requests)) == 1
    here.sound()


# -- crashes ------------------------------------------------------------------------------------------------------------


def wavering(effect: str, world: VendorWorld) -> Agent:
    """An agent of two steps; what the first makes is healthy only on a line that began again."""
    act = agent_of(effect, world).tools["act"]
    agent = Agent("wavering", app=new_app(), tools=[act], health_check=lambda state: state.get("line") != 0)

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = act("a")
        state["line"] = current_run.line
        return second

    @agent.step
    def second(state: Any) -> Any:
        return done(state["first"])

    return agent


@pytest.mark.timeout(300)
@pytest.mark.parametrize("effect", ["transactional", "keyed", "probed", "manual"])
def test_a_crash_at_any_boundary_of_a_fallback_repeats_no_effect(effect: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with closing(World(url)) as world:
        found = explore_crashes(
            wavering(effect, world), {}, world, database_url=url, brokers=("emptied",), lost_answers=False
        )
    assert not found.failures, found.report()
    crossed = {str(point) for point in found.points}
    assert crossed >= {"before commit fall back", "after commit fall back", "after effect wavering.health_check"}


@pytest.mark.timeout(300)
def test_a_lost_answer_at_any_commit_of_a_fallback_repeats_no_effect(database_url: str) -> None:
    world = VendorWorld()
    found = explore_crashes(wavering("manual", world), {}, world, database_url=database_url, brokers=())
    assert not found.failures, found.report()
    assert [schedule for schedule in found.schedules if schedule.point.name == "fall back"]
