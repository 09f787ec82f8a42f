"""Batches, crashed and cancelled at every boundary of their runs, on both databases (I3-I5, I7, I13-I15)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, FailedCall, Operation, Tool, calls, done, run_calls, tool
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import SHORT_AGENTS, World, new_app, tool_of

pytestmark = pytest.mark.timeout(400)  # many schedules, and a machine may be busy

#: Faults that can meet a crossing.
WAYS: dict[str, dict[str, Any]] = {
    "the message is redelivered": {"brokers": ("redelivers",), "lost_answers": False},
    "the broker is emptied or an answer is lost": {"brokers": ("emptied",), "lost_answers": True},
    "the run is cancelled": {"brokers": (), "lost_answers": False, "cancels": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("agent", ["batch", "planned"])
def test_a_fault_at_any_boundary_of_a_batch_repeats_no_effect(agent: str, way: str, database_url: str) -> None:
    with closing(World(database_url)) as world:
        found = explore_crashes(
            SHORT_AGENTS[agent](world), {"what": "a"}, world, database_url=database_url, **WAYS[way]
        )

    print(found.report())
    assert not found.failures, found.report()
    planned = [str(point) for point in found.points].count("after commit plan")
    assert planned == (1 if agent == "batch" else 0)


class Declined(Exception):
    """The bank answered, and the answer is no."""


class Declines(VendorWorld):
    """A vendor that refuses some things: each time, or only the first time in each schedule."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always = always

    def reset(self) -> None:
        super().reset()
        self.asked: list[str] = []

    def charge(self, reference: str, what: str) -> int:
        self.asked.append(what)
        if what in "bd" and (self.always or self.asked.count(what) == 1):
            raise Declined(what)
        return self.act(reference)


def charging(world: Declines) -> Tool[..., Any]:
    @tool(effect="manual", timeout=timedelta(seconds=10), refused=(Declined,), bind=True)
    def charge(operation: Operation, what: str) -> int:
        return world.charge(operation.operation_id, what)

    return charge


def going_on(world: Declines) -> Agent:
    """An agent that does something about the first failure of a batch, and about those of another one."""
    charge, act = charging(world), tool_of("probed", world)
    agent = Agent("going-on", app=new_app(), tools=[charge, act])

    @agent.step
    def pay(_state: Any) -> Any:
        try:
            run_calls([charge.call(what) for what in "abc"])
        except Declined as declined:
            act(str(declined))
        found = run_calls([charge.call(what) for what in "de"], on_error="collect")
        return done([isinstance(each, FailedCall) for each in found])

    return agent


def retrying(world: Declines) -> Agent:
    """An agent whose step is retried until its planned calls succeed."""
    charge = charging(world)
    agent = Agent("retrying", app=new_app(), tools=[charge])

    @agent.step(start=True)
    def ask(_state: Any) -> Any:
        return calls([charge.call(what) for what in "abc"], then=answer)

    @agent.step(autoretry_for=(Declined,), default_retry_delay=60)
    def answer(_state: Any, results: Any) -> Any:
        return done(len(results))

    return agent


@pytest.mark.parametrize("make", [going_on, retrying])
def test_a_crash_at_any_boundary_of_a_batch_with_failures_repeats_no_effect(make: Any, database_url: str) -> None:
    world = Declines(always=make is going_on)
    found = explore_crashes(make(world), {}, world, database_url=database_url, brokers=("emptied",))
    assert not found.failures, found.report()
    assert found.ending.output == ([True, False] if make is going_on else 3)


def test_a_crash_at_any_boundary_of_batches_inside_calls_repeats_no_effect(database_url: str) -> None:
    world = VendorWorld()
    inner = tool_of("probed", world)

    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True)
    def outer(operation: Operation, what: str) -> int:
        run_calls([inner.call(what), inner.call(what * 2)])
        return world.act(operation.operation_id, key=operation.idempotency_key)

    agent = Agent("batches-inside", app=new_app(), tools=[outer, inner])

    @agent.step
    def only(_state: Any) -> Any:
        return done(len(run_calls([outer.call("a"), outer.call("b")])))

    found = explore_crashes(agent, {}, world, database_url=database_url, brokers=("emptied",))
    assert not found.failures, found.report()
