"""Long steps, crashed at every boundary: what was saved is not done again, and nothing of it is lost (I2, I7-I9, I14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, Happened, NotHappened, Operation, done, sleep, tool, wait_until
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import new_app, tool_of
from tests.zombies import UNTIL, Graveyard

TIMEOUT = timedelta(seconds=10)
PAGES = 3


class Pages(VendorWorld):
    """A vendor that takes pages of a job, and counts how often he gets each."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: Counter[tuple[str, int]] = Counter()
        self.most = 0

    def reset(self) -> None:
        super().reset()
        self.pages.clear()

    def take(self, job: str, page: int) -> None:
        self.pages[job, page] += 1
        self.most = max(self.most, *self.pages.values())


def sending_agent(world: Pages) -> Agent:
    """Sends pages, each under a key of its own, and notes how far it came."""

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
    def send(operation: Operation) -> Any:
        for page in range(operation.progress or 0, PAGES):
            world.take(operation.idempotency_key, page)
            operation.save_progress(page + 1)
        return world.act(operation.operation_id, key=operation.idempotency_key)

    agent = Agent("sender", app=new_app(), tools=[send])

    @agent.step
    def only(_state: Any) -> Any:
        return done(send())

    return agent


def charging_agent(world: VendorWorld) -> Agent:
    """Records what the vendor calls a charge as soon as he says it; the probe goes by that, and else by the reference."""
    names: dict[str, str] = {}

    @tool(effect="probed", timeout=TIMEOUT, bind=True)
    async def charge(operation: Operation) -> Any:
        number = world.act(operation.operation_id)
        names[f"ch_{number}"] = operation.operation_id
        await operation.aio.record_external_id(f"ch_{number}")
        await operation.aio.save_progress("charged")
        return number

    @charge.probe
    def look(operation: Operation) -> Any:
        reference = names.get(operation.external_id, operation.operation_id)
        number = world.look_up(reference)
        if number is None:
            assert operation.external_id is None
            return NotHappened()
        assert operation.progress in (None, "charged")
        return Happened(number)

    agent = Agent("charger", app=new_app(), tools=[charge])

    @agent.step
    async def only(_state: Any) -> Any:
        return done(await charge())

    return agent


def sleeping_agent(world: VendorWorld) -> Agent:
    """Acts, sleeps, and acts again."""
    act = tool_of("keyed", world)
    agent = Agent("sleeper", app=new_app(), tools=[act])

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = act(state["what"])
        return sleep(timedelta(days=3), then=second)

    @agent.step
    def second(state: Any) -> Any:
        return done([state["first"], act("b")])

    return agent


def waiting_agent(world: Pages) -> Agent:
    """Starts a job, waits until its second page is there, and acts."""
    act = tool_of("keyed", world)

    @tool(effect="read")
    def pages() -> int:
        world.take("job", world.pages.total())
        return world.pages.total()

    agent = Agent("waiter", app=new_app(), tools=[act, pages])

    @agent.step(start=True)
    def first(state: Any) -> Any:
        state["job"] = act(state["what"])
        return wait_until(ready, every=timedelta(minutes=5), timeout=timedelta(days=1), then=second, on_timeout=late)

    @agent.step
    def ready(_state: Any) -> Any:
        return "both pages" if pages() >= 2 else None

    @agent.step
    def second(state: Any, answer: Any) -> Any:
        return done([state["job"], act(answer)])

    @agent.step
    def late(_state: Any) -> Any:
        return done("late")

    return agent


#: Schedules of one fault at each boundary, and some that were drawn of the many others.
SCHEDULES: dict[str, dict[str, Any]] = {
    "at every boundary": {"brokers": ("emptied",)},
    "with cancels": {"cancels": True, "sample": 20, "seed": 3},
    "twice": {"faults": 2, "sample": 20, "seed": 7},
}

AGENTS: dict[str, Callable[[Any], Agent]] = {
    "sender": sending_agent,
    "charger": charging_agent,
    "sleeper": sleeping_agent,
    "waiter": waiting_agent,
}


@pytest.mark.parametrize("schedules", SCHEDULES)
@pytest.mark.parametrize("name", AGENTS)
def test_a_long_step_that_is_crashed_anywhere_ends_as_it_would(name: str, schedules: str, database_url: str) -> None:
    world = Pages()
    options = SCHEDULES[schedules]
    found = explore_crashes(AGENTS[name](world), {"what": "a"}, world, database_url=database_url, **options)
    print(found.report())
    assert not found.failures, found.report()
    assert len(found.schedules) >= 20


@pytest.mark.parametrize("name", AGENTS)
def test_a_zombie_of_a_long_step_changes_no_state_wherever_it_was_frozen(name: str) -> None:
    world = Pages()
    with closing(Graveyard(AGENTS[name](world), world)) as graveyard:
        frozen = [graveyard.freeze(index, until) for index in range(len(graveyard.crossings())) for until in UNTIL]
    assert [str(freeze) for freeze in frozen if freeze.problems] == []


def test_a_page_is_sent_again_only_where_its_progress_was_lost(database_url: str) -> None:
    world = Pages()
    found = explore_crashes(sending_agent(world), {}, world, database_url=database_url, brokers=("emptied",))
    assert not found.failures, found.report()
    names = [point.name for point in found.points if str(point).startswith("after commit")]
    assert names.count("progress") == PAGES
    assert world.most == 2
