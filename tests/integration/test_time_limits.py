"""Celery's soft time limit, Ctrl-C and the like, raised in the middle of what the engine writes or a body does (I6, I15)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded

from agent_tasks import Agent, done, tool
from agent_tasks.boundary import Point
from agent_tasks.inline import answer_all
from agent_tasks.states import RunStatus
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


class TimeLimit:
    """Strikes once, at one crossing."""

    def __init__(self, boundary: str, moment: str) -> None:
        self.at, self.struck = Point("commit", boundary, moment), False

    def __call__(self, point: Point) -> None:
        if point == self.at and not self.struck:
            self.struck = True
            raise SoftTimeLimitExceeded(2)


def shop(here: Duel) -> Agent:
    @tool(effect="read")
    def price(item: str) -> int:
        return 100

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append("charge")
        return "charged"

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=False)
    def order(charged: str) -> str:
        here.requests.append("order")
        if here.requests.count("order") == 1:
            raise ConnectionError
        return "ordered"

    def pay(state: Any) -> Any:
        state["charged"] = charge(price("tea"))
        return agent.steps["ship"]

    agent = here.agent(price, charge, order, pay=pay, ship=lambda state: done(order(state["charged"])))
    return agent


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("boundary", ["intent", "outcome", "record", "step", "suspend"])
def test_a_soft_time_limit_that_strikes_in_the_middle_of_a_write_leaves_nothing_in_doubt(
    here: Duel, boundary: str, moment: str
) -> None:
    limit = TimeLimit(boundary, moment)
    here.runtime.boundary.observer = limit
    agent = shop(here)
    here.run(agent)
    assert limit.struck
    assert here.row()["status"] != RunStatus.RUNNING  # nobody has to wait for a lease
    assert here.drive(agent) is RunStatus.SUCCEEDED
    assert here.requests == ["charge", "order", "order"]  # the first order broke off by itself
    assert here.row()["crashes"] == 0


@pytest.mark.parametrize("effect", ["read", "repeatable"])
def test_an_interrupt_in_a_body_that_may_be_repeated_gives_the_run_back_at_once_and_ends_the_process(
    here: Duel, effect: str
) -> None:
    options: dict[str, Any] = {"why": "sets a value"} if effect == "repeatable" else {}

    @tool(effect=effect, **options, bind=False)
    def work() -> str:
        here.requests.append("work")
        if len(here.requests) == 1:
            raise KeyboardInterrupt
        return "worked"

    agent = here.agent(work, only=lambda state: done(work()))
    with pytest.raises(KeyboardInterrupt):
        here.run(agent)
    assert here.row()["status"] == RunStatus.QUEUED
    here.sound()
    answer_all(here.rival, agent)
    here.later(agent, 10)
    assert here.row()["status"] == RunStatus.SUCCEEDED
    assert here.requests == ["work", "work"]
