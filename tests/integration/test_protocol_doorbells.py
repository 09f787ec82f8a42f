"""Doorbells are anybody's words: what they say is believed only where the ledger says the same (I1, I2, I9)."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tasks import Agent, AgentTasksError, Operation, done, tool
from agent_tasks.boundary import Point
from agent_tasks.coordinator import Coordinator
from agent_tasks.inline import answer_all
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import UNHEARD_SECONDS, Sweeper
from agent_tasks.testing import VendorWorld, check_invariants
from tests.agents import agent_of, tool_of
from tests.one_process import OneProcess

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Any:
    made = OneProcess(database_url)
    yield made
    made.close()


def test_a_doorbell_of_another_agent_with_a_step_of_the_same_name_runs_nothing(here: OneProcess) -> None:
    world = VendorWorld()
    runs = {}
    for name in ("alice", "bob"):
        act = tool_of("keyed", world)
        agent = Agent(name, app=here.app, tools=[act])

        @agent.step
        def begin(state: Any, act: Any = act, name: str = name) -> Any:
            return done([name, act(name)])

        runs[name] = agent
    run = runs["bob"].enqueue({}, run_id="bobs-run")

    assert not Coordinator(here.runtime).handle(runs["alice"], "begin", "bobs-run", 1)

    assert run.status == RunStatus.QUEUED
    assert not world.effects()
    answer_all(here.runtime, runs["bob"])
    assert run.get(timeout=0)[0] == "bob"


def test_a_run_that_no_worker_answers_says_what_it_waits_for(here: OneProcess) -> None:
    agent = agent_of("keyed", VendorWorld())
    agent.app = here.app
    run = agent.enqueue({"what": "a"})
    here.runtime.bell.rings.clear()
    here.runtime.clock.advance(UNHEARD_SECONDS + 1)

    Sweeper(here.runtime).sweep()

    assert run.status == RunStatus.QUEUED
    assert run.waiting_for == "a worker that listens to queue 'inline' and knows step buyer.first"
    answer_all(here.runtime, agent)
    assert run.status == RunStatus.SUCCEEDED
    assert run.waiting_for is None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_time_limit_that_strikes_in_the_middle_of_an_intent_leaves_no_doubt_behind(
    here: OneProcess, moment: str
) -> None:
    world, struck = VendorWorld(), []

    @tool(effect="repeatable", why="a test", bind=True)
    def act(operation: Operation) -> int:
        return world.act(operation.operation_id)

    agent = Agent("limited", app=here.app, tools=[act])

    @agent.step
    def begin(state: Any) -> Any:
        return done(act())

    def strike(point: Point) -> None:
        if point == Point("commit", "intent", moment) and not struck:
            struck.append(point)
            raise TimeoutError("the soft time limit")

    here.runtime.boundary.observer = strike
    run = agent.enqueue({})
    answer_all(here.runtime, agent)
    assert run.status != RunStatus.FAILED
    sweeper = Sweeper(here.runtime)
    for _ in range(3):
        sweeper.sweep()
        answer_all(here.runtime, agent)
        here.runtime.clock.advance(here.runtime.settings.lease_seconds + 1)
    assert run.get(timeout=0) == 1
    with here.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


@pytest.mark.parametrize("bad", [-1, 256, 2**40, 1.5, True])
def test_a_priority_that_no_broker_carries_is_refused_before_a_run_is_made(here: OneProcess, bad: Any) -> None:
    agent = agent_of("keyed", VendorWorld())
    agent.app = here.app
    with pytest.raises(AgentTasksError, match="priority must be a whole number from 0 to 255"):
        agent.enqueue({"what": "a"}, priority=bad)
    assert sum(here.counts().values()) == 0


def test_half_a_surrogate_pair_is_no_run_id(here: OneProcess) -> None:
    agent = agent_of("keyed", VendorWorld())
    agent.app = here.app
    with pytest.raises(AgentTasksError, match="run_id must be a text"):
        agent.enqueue({"what": "a"}, run_id="\ud800")
