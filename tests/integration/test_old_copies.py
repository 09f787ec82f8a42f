"""A copy of an old request that lands after a newer one: what `repeatable` with a `timeout=` is promised about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import done, tool
from agent_tasks.states import RunStatus
from tests.one_process import OneProcess

TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    process = OneProcess(database_url)
    yield process
    process.close()


def test_a_newer_write_waits_until_the_one_that_timed_out_can_no_longer_land(here: OneProcess) -> None:
    @tool(effect="repeatable", why="sets the status to a value", timeout=TIMEOUT)
    def set_status(value: str) -> None:
        here.requests.append(value)
        if value == "paid":
            raise TimeoutError("no answer; the request is still on its way")

    def pay(state: Any) -> Any:
        try:
            set_status("paid")
        except TimeoutError:
            set_status("refunded")
        return done()

    order = here.agent(set_status, pay=pay)
    run = here.run(order)
    assert here.requests == ["paid"], "the copy of 'paid' may still land, after 'refunded'"
    assert run.status is RunStatus.WAITING
    here.later(order, 11)
    assert here.requests == ["paid", "refunded"]
    assert run.status is RunStatus.SUCCEEDED


def test_what_a_vendor_refused_does_not_land_and_is_not_waited_for(here: OneProcess) -> None:
    @tool(effect="repeatable", why="sets the status to a value", timeout=TIMEOUT, refused=(ValueError,))
    def set_status(value: str) -> None:
        here.requests.append(value)
        if value == "paid":
            raise ValueError("no such status")

    def pay(state: Any) -> Any:
        try:
            set_status("paid")
        except ValueError:
            set_status("refunded")
        return done()

    assert here.run(here.agent(set_status, pay=pay)).status is RunStatus.SUCCEEDED
    assert here.requests == ["paid", "refunded"]
