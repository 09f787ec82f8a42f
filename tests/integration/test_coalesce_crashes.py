"""Steps that share messages, crashed and cancelled at every boundary of their runs, on both databases (I2-I5, I7, I12-I15)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, Coalesce, Operation, Tool, coalescing, done, sleep, tool
from agent_tasks.coalesce import BOUNDARIES, EACH
from agent_tasks.states import RunStatus
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import World, coalesced_agent, new_app, tool_of

pytestmark = pytest.mark.timeout(400)  # many schedules, and a machine may be busy

#: Faults that can meet a crossing.
WAYS: dict[str, dict[str, Any]] = {
    "the message is redelivered": {"brokers": ("redelivers",), "lost_answers": False},
    "the broker is emptied or an answer is lost": {"brokers": ("emptied",), "lost_answers": True},
    "the run is cancelled": {"brokers": (), "lost_answers": False, "cancels": True},
}


@pytest.mark.parametrize(
    ("effect", "way"),
    [*(("probed", way) for way in WAYS), ("transactional", "the broker is emptied or an answer is lost")],
)
@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_fault_at_any_boundary_of_a_shared_message_repeats_no_effect(
    checkpoints: str, effect: str, way: str, database_url: str
) -> None:
    with closing(World(database_url)) as world:
        agent = coalesced_agent(effect, world, checkpoints)
        found = explore_crashes(agent, {"what": "a"}, world, database_url=database_url, **WAYS[way])

    print(found.report())
    assert not found.failures, found.report()
    crossed = [str(point) for point in found.points]
    assert crossed.count("after publish doorbell") == 3  # one step has a message of its own
    # begin and think, buy, rest, plan, end; of each its own or, where nothing was called, that of the boundary behind it.
    assert crossed.count("after commit step") == (6 if checkpoints == EACH else 5)


def long_agent(world: VendorWorld, checkpoints: str) -> Agent:
    """Thinks twice, sleeps, thinks, and acts, whose body says how far it came; all but the sleep may share a message."""
    agent = Agent(
        "longer", app=new_app(), tools=[act := noting(world)], coalesce=Coalesce(seconds=60, checkpoints=checkpoints)
    )

    @agent.step(start=True)
    def think(_state: Any) -> Any:
        return rest

    @agent.step
    def rest(_state: Any) -> Any:
        return sleep(timedelta(days=3), then=again)

    @agent.step
    def again(_state: Any) -> Any:
        return buy

    @agent.step
    def buy(_state: Any) -> Any:
        return done(act())

    return agent


def noting(world: VendorWorld) -> Tool[..., Any]:
    @tool(effect="keyed", key_lifetime=timedelta(days=30), bind=True)
    def act(operation: Operation) -> Any:
        operation.save_progress("asked")
        return world.act(operation.operation_id, key=operation.idempotency_key)

    return act


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_fault_at_any_boundary_of_a_message_that_ends_in_a_sleep_repeats_no_effect(
    checkpoints: str, database_url: str
) -> None:
    with closing(World(database_url)) as world:
        found = explore_crashes(long_agent(world, checkpoints), {}, world, database_url=database_url)

    assert not found.failures, found.report()
    crossed = [str(point) for point in found.points]
    assert crossed.count("after publish doorbell") == 2  # one behind the sleep
    assert crossed.count("after commit progress") == 1
    assert crossed.count("after commit step") == 4  # those that are held find a boundary of their own each


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls do not wait for the checkpoints of the steps before them."""
    monkeypatch.setattr("agent_tasks.attempt.commit_held", lambda _attempt: None)


@pytest.mark.usefixtures("careless")
def test_the_explorer_sees_a_call_that_is_begun_before_the_steps_behind_it_are_committed() -> None:
    """The explorer itself is tested by taking the protection away: no call can write anything then, and nobody gets on."""
    world = VendorWorld()
    with pytest.raises(AssertionError, match="stuck"):
        explore_crashes(
            coalesced_agent("manual", world, BOUNDARIES), {"what": "a"}, world, **WAYS["the run is cancelled"]
        )


class Takes(VendorWorld):
    """A world in which a step ends its process, the first time in each schedule that it comes there."""

    def reset(self) -> None:
        super().reset()
        self.taken = False

    def take(self) -> None:
        if not self.taken:
            self.taken = True
            raise SystemExit(1)


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_crash_around_a_step_that_takes_its_worker_along_repeats_no_effect(
    checkpoints: str, database_url: str
) -> None:
    world = Takes()
    act = tool_of("manual", world)
    agent = Agent("taken", app=new_app(), tools=[act], coalesce=Coalesce(seconds=60, checkpoints=checkpoints))

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["n"] = act("a")
        return second

    @agent.step
    def second(_state: Any) -> Any:
        return third

    @agent.step
    def third(state: Any) -> Any:
        world.take()
        return done([state["n"], act("b")])

    found = explore_crashes(agent, {}, world, database_url=database_url, brokers=("emptied",), lost_answers=False)
    assert not found.failures, found.report()
    assert found.ending.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_resumed_run_meets_the_operations_that_its_first_line_made_wherever_messages_end(
    checkpoints: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has its own seq in every message: so its calls have one identity (I4)."""
    from tests.one_process import OneProcess

    world = VendorWorld()
    with closing(OneProcess(database_url)) as here:
        act = tool_of("manual", world)
        agent = Agent("resumed", app=here.app, tools=[act], coalesce=Coalesce(seconds=60, checkpoints=checkpoints))

        @agent.step(start=True)
        def first(state: Any) -> Any:
            state["n"] = 1
            return second

        @agent.step
        def second(state: Any) -> Any:
            state["n"] += 1
            return third

        @agent.step
        def third(state: Any) -> Any:
            act("a")
            return fourth

        @agent.step
        def fourth(state: Any) -> Any:
            if world.fails:
                raise ConnectionError("once")
            return done(state["n"])

        world.fails = True  # type: ignore[attr-defined]
        run = here.run(agent)
        assert run.status is RunStatus.FAILED
        world.fails = False  # type: ignore[attr-defined]
        monkeypatch.setattr(coalescing, "goes_on", lambda *_: None)
        monkeypatch.setattr("agent_tasks.ending.goes_on", lambda *_: None)  # now each step has a message of its own
        run.resume(from_seq=1, who="kim", why="once more")
        here.work(agent)
        assert run.get(timeout=0) == 2
        assert [operation.seq for operation in run.operations()] == [3]
        assert sum(world.effects().values()) == 1
