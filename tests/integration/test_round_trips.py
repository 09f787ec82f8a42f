"""How often a process waits for PostgreSQL: it is what a step costs, beside the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Coalesce, done, tool
from agent_tasks.states import RunStatus
from tests.one_process import OneProcess
from tests.proxy import Proxy, proxied

STEPS = 10


@pytest.fixture
def wired(postgres_database: Callable[[], str]) -> Iterator[tuple[OneProcess, Proxy]]:
    with proxied(postgres_database()) as (proxy, url):
        here = OneProcess(url)
        yield here, proxy
        here.close()


def trips_of_a_step(
    wired: tuple[OneProcess, Proxy], body: Callable[[Any], object], *tools: Any, coalesce: Coalesce | None = None
) -> float:
    """How often a step with this body waits, once a process has made a run of it."""
    here, proxy = wired

    def step(state: Any) -> Any:
        state["n"] += 1
        body(state)
        return agent.steps["step"] if state["n"] < STEPS else done()

    agent = here.agent(*tools, step=step)
    agent.coalesce = coalesce
    here.run(agent, "first", n=0)
    agent.enqueue({"n": 0}, run_id="second")
    before = proxy.round_trips
    here.work(agent)
    trips = proxy.round_trips - before
    assert agent.run("second").status is RunStatus.SUCCEEDED
    return trips / STEPS


def test_a_step_is_claimed_and_committed_in_one_round_trip_each(wired: tuple[OneProcess, Proxy]) -> None:
    assert trips_of_a_step(wired, lambda _state: None) == 2


def test_steps_that_share_a_message_are_claimed_once_and_committed_in_one_round_trip_each(
    wired: tuple[OneProcess, Proxy],
) -> None:
    assert trips_of_a_step(wired, lambda _state: None, coalesce=Coalesce(seconds=60)) == (1 + STEPS) / STEPS


def test_steps_that_call_nothing_are_committed_in_one_round_trip_together(wired: tuple[OneProcess, Proxy]) -> None:
    how = Coalesce(seconds=60, checkpoints="boundaries")
    assert trips_of_a_step(wired, lambda state: state.messages.append("said"), coalesce=how) == 3 / STEPS


def test_messages_that_this_process_made_are_not_read_again(wired: tuple[OneProcess, Proxy]) -> None:
    assert trips_of_a_step(wired, lambda state: state.messages.append("said")) == 2


def test_messages_that_another_process_made_are_read_in_one_more(wired: tuple[OneProcess, Proxy]) -> None:
    def forget(state: Any) -> None:
        state.messages.append("said")

    store = wired[0].runtime.store
    seen = store.seen_state
    store.seen_state = lambda row: store._cache.forget(row.head_run_id) or seen(row)  # type: ignore[func-returns-value,method-assign]
    assert trips_of_a_step(wired, forget) == 3 - 1 / STEPS  # the first one has no messages


@pytest.mark.parametrize("effect", ["keyed", "manual", "repeatable"])
def test_a_call_with_an_effect_takes_two_more(wired: tuple[OneProcess, Proxy], effect: str) -> None:
    declared: dict[str, Any] = {
        "keyed": {"key_lifetime": timedelta(hours=1), "bind": False},
        "manual": {"timeout": timedelta(seconds=10)},
        "repeatable": {"why": "a test counts nothing"},
    }[effect]

    @tool(effect=effect, **declared)
    def charge(cents: int) -> int:
        return cents

    assert trips_of_a_step(wired, lambda state: charge(state["n"]), charge) == 4


def test_a_read_takes_one_more(wired: tuple[OneProcess, Proxy]) -> None:
    @tool(effect="read")
    def price(item: str) -> int:
        return 100

    assert trips_of_a_step(wired, lambda _state: price("tea"), price) == 3
