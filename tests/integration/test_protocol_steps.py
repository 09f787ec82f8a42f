"""A run that loops: it takes as many steps as it may, and then a person says whether it goes on (I9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_tasks import Agent, RunFailed, RunHandle
from agent_tasks.errors import ConfigurationError
from agent_tasks.states import RunStatus
from tests.agents import new_app
from tests.duel import RUN, Duel, Outage, duel


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def looping(here: Duel, **declared: Any) -> Agent:
    """An agent that never ends."""
    loop = Agent("loop", app=here.app, **declared)

    @loop.step
    def walk(_state: Any) -> Any:
        here.requests.append("walk")
        return walk

    return loop


def test_a_run_stops_before_the_step_that_is_one_too_many_and_goes_on_for_as_many_again(here: Duel) -> None:
    loop = looping(here, max_steps=3)
    run = here.run(loop)

    assert (run.status, len(here.requests), here.row()["seq"]) == (RunStatus.NEEDS_ATTENTION, 3, 3)
    assert run.waiting_for == "a person: its 3 steps are spent, and walk would be the next"
    assert here.questions() == ["steps"]
    here.sound()

    here.reply(loop, "go-on")
    assert (run.status, len(here.requests), here.questions()) == (RunStatus.NEEDS_ATTENTION, 6, ["steps"])
    here.reply(loop, "abort")
    with pytest.raises(RunFailed, match="steps answered with abort by kim"):
        run.get(timeout=0)
    assert len(here.requests) == 6
    here.sound()


def test_a_release_that_allows_more_is_heard_and_one_that_allows_less_takes_nothing_back(here: Duel) -> None:
    loop = looping(here, max_steps=2)
    here.run(loop)
    here.reply(loop, "go-on")
    assert len(here.requests) == 4
    loop.max_steps = 1
    here.reply(loop, "go-on")
    assert len(here.requests) == 6


def test_a_loop_can_be_cancelled_while_a_person_is_asked(here: Duel) -> None:
    run = here.run(looping(here, max_steps=1))
    assert RunHandle(here.rival, RUN).cancel(who="kim", why="it loops")
    assert (run.status, run.inbox()) == (RunStatus.CANCELLED, [])
    here.sound()


def test_a_worker_that_dies_before_it_asked_leaves_the_next_one_to_ask(here: Duel) -> None:
    loop = looping(here, max_steps=1)
    here.runtime.boundary.observer = Outage("suspend", "before", times=1)
    run = here.run(loop)
    assert (run.status, len(here.requests)) == (RunStatus.NEEDS_ATTENTION, 1)
    assert here.questions() == ["steps"]


def test_the_setting_counts_where_the_agent_says_nothing(here: Duel) -> None:
    object.__setattr__(here.runtime.settings, "max_steps", 2)
    here.run(looping(here))
    assert len(here.requests) == 2


@pytest.mark.parametrize("steps", [0, -1, 2.5, "3", True])
def test_a_number_of_steps_that_is_none_stops_the_declaration(steps: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a whole number above 0"):
        Agent("loop", app=new_app(), max_steps=steps)
