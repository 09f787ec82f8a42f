"""Plain tasks of every effect, crashed at every boundary of their runs, on both databases (I2-I9, I13-I15)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, Task
from sqlalchemy import text

from agent_tasks import AgentTask, Happened, NotHappened, RunHandle, tool
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.inline import answer_all
from agent_tasks.integration import AppState
from agent_tasks.states import RunStatus
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import World
from tests.duel import RUN, Duel, Outage, duel, observed

_names = itertools.count(1)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


GUARDS: dict[str, dict[str, Any]] = {
    "read": {},
    "repeatable": {"why": "sets a value"},
    "transactional": {},
    "keyed": {"key_lifetime": timedelta(hours=24)},
    "probed": {"timeout": timedelta(seconds=10), "settle": timedelta(seconds=5)},
    "manual": {"timeout": timedelta(seconds=10)},
}


def new_app() -> Celery:
    """An app whose results are kept, so that the end of a run is rung for."""
    return Celery(f"plain-{next(_names)}", broker="memory://", backend="cache+memory://", set_as_current=False)


def task_of(effect: str, world: VendorWorld, before: Callable[[Task], None] = lambda _: None) -> Task:
    """A task whose body acts on the world in the way of an effect."""
    app = new_app()

    @app.task(base=AgentTask, bind=True, effect=effect, name="act", shared=False, max_retries=5, **GUARDS[effect])
    def act(self: AgentTask, what: str) -> Any:
        operation, number = self.operation, None
        if effect == "transactional":
            assert operation.connection is not None
            operation.connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": operation.operation_id})
        elif effect != "read":
            number = world.act(operation.operation_id, key=operation.idempotency_key if effect == "keyed" else None)
        before(self)
        return number if effect in ("keyed", "probed", "manual") else what.upper()

    if effect == "probed":

        @act.probe
        def look(operation: Any) -> Happened | NotHappened:
            number = world.look_up(operation.operation_id)
            return NotHappened() if number is None else Happened(number)

    return act


def explored(task: Task) -> Any:
    """The task's definition, whose runs are made by its own calls."""

    def enqueue(state: dict[str, Any], *, run_id: str) -> RunHandle:
        called = task.apply_async(state["args"], task_id=run_id)
        return RunHandle(AppState.of(task.app).runtime, called.id)

    task.job.enqueue = enqueue
    return task.job


#: An effect that leaves the database and one that does not, on both; the others, whose protocol is crashed on both
#: elsewhere, on SQLite.
PLACES = [
    (effect, database)
    for effect in GUARDS
    for database in ("sqlite", "postgresql")
    if database == "sqlite" or effect in ("keyed", "transactional")
]


@pytest.mark.parametrize(("effect", "database_url"), PLACES, indirect=["database_url"])
def test_a_crash_at_any_boundary_of_a_plain_task_repeats_no_effect(effect: str, database_url: str) -> None:
    with closing(World(database_url)) as world:
        job = explored(task_of(effect, world))
        found = explore_crashes(job, {"args": ["a"]}, world, database_url=database_url, brokers=("emptied",))
    print(found.report())
    assert not found.failures, found.report()
    assert len(found.schedules) >= 10


#: What is particular to a plain task depends on no database; the protocol itself is crashed on both elsewhere.
ONCE: Any = {"brokers": ("emptied",), "lost_answers": False}


@pytest.mark.parametrize("effect", ["read", "repeatable", "keyed"])
def test_a_crash_at_any_boundary_of_a_retry_repeats_no_effect(effect: str) -> None:
    """The body acts, and then asks to be run again, the first time."""

    def once(task: Task) -> None:
        if not task.request.retries:
            raise task.retry(exc=ConnectionError("reset"), countdown=30)

    world = VendorWorld()
    found = explore_crashes(explored(task_of(effect, world, once)), {"args": ["a"]}, world, **ONCE)
    print(found.report())
    assert not found.failures, found.report()


def test_a_crash_at_any_boundary_of_a_task_with_tools_repeats_no_effect() -> None:
    """Its body is run again after its first tool was refused, and makes that call again."""
    world = VendorWorld()
    refusals: list[str] = []

    class Refused(Exception):
        pass

    @tool(effect="manual", timeout=timedelta(seconds=10), bind=True, refused=(Refused,))
    def mail(operation: Any) -> int:
        if not refusals:
            refusals.append("no")
            raise Refused("not now")
        return world.act(operation.operation_id)

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
    def charge(operation: Any) -> int:
        return world.act(operation.operation_id, key=operation.idempotency_key)

    app = new_app()

    @app.task(base=AgentTask, tools=[mail, charge], name="buy", shared=False, autoretry_for=(Refused,))
    def buy(what: str) -> tuple[int, str]:
        charge()
        return mail(), what

    reset = world.reset
    world.reset = lambda: (reset(), refusals.clear())[0]  # type: ignore[method-assign]
    found = explore_crashes(explored(buy), {"args": ["!"]}, world, **ONCE)
    print(found.report())
    assert not found.failures, found.report()
    assert any("retry" in str(point) for point in found.points)


def never_begun(task: Task) -> Any:
    """The task's definition, whose doorbells are heard only after its call has expired."""
    job = explored(task)

    def enqueue(state: dict[str, Any], *, run_id: str) -> RunHandle:
        runtime = AppState.of(task.app).runtime
        called = task.apply_async(state["args"], task_id=run_id, expires=60)
        runtime.clock.advance(61)
        return RunHandle(runtime, called.id)

    job.enqueue = enqueue
    return job


#: What may befall the commit that ends a run which nobody began in time.
AT_EXPIRY = {("crash", "before"), ("crash", "after"), ("lost answer", "after")}


def test_a_crash_at_any_boundary_of_the_expiry_of_a_call_cancels_it_and_begins_nothing(database_url: str) -> None:
    with closing(World(database_url)) as world:
        task = task_of("keyed", world, before=lambda _: pytest.fail("it had expired"))
        found = explore_crashes(never_begun(task), {"args": ["a"]}, world, database_url=database_url)
        assert not world.effects()
    print(found.report())
    assert not found.failures, found.report()
    met = {
        (s.faults[0].kind, s.point.moment)
        for s in found.schedules
        if (s.point.kind, s.point.name) == ("commit", "expire")
    }
    assert met == AT_EXPIRY


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_expiry_whose_commit_got_no_answer_is_written_down_once(here: Duel, moment: str) -> None:
    here.app.conf.result_backend = "cache+memory://"

    @here.app.task(base=AgentTask, effect="manual", timeout=timedelta(seconds=5), shared=False, name="pay")
    def pay() -> None:
        here.requests.append("pay")

    pay.apply_async(task_id=RUN, expires=60)
    here.runtime.clock.advance(61)
    outage = Outage("expire", moment)
    observed(here.runtime, outage)
    with pytest.raises(LedgerUnavailable):
        answer_all(here.runtime, pay.job)
    assert outage.hits == 1
    run = RunHandle(here.runtime, RUN)
    assert run.status is (RunStatus.CANCELLED if moment == "after" else RunStatus.QUEUED)

    for _ in range(2):  # the doorbell again, as the sweeper rings it, and a copy
        here.runtime.ring(RUN)
        answer_all(here.runtime, pay.job)
    assert (run.status, here.requests) == (RunStatus.CANCELLED, [])
    assert [(entry.who, entry.what) for entry in run.audit()] == [("expires=", "cancel")]
    here.sound()
