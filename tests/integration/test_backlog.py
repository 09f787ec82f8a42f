"""A backlog that nobody works on: few doorbells, no run forgotten, and none that keeps others (I1, I9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from agent_tasks import done
from agent_tasks import sweeper as sweeping
from agent_tasks.doorbell import CeleryBell, InlineBell, Ring
from agent_tasks.runtime import Runtime
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import Sweeper
from tests.agents import new_app
from tests.apps import close
from tests.one_process import OneProcess
from tests.rows import Rows

HOUR_SECONDS = 3600
MOST_DOORBELLS = 1.5  # for each run


class DeafBell(InlineBell):
    """A transport that cannot count."""

    def depth(self, queue: str) -> None:  # type: ignore[override]
        del queue


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    with closing(OneProcess(database_url)) as process:
        yield process


def enqueue_many(runtime: Runtime, count: int, *, queue: str = "inline", **values: Any) -> None:
    """Write queued runs and ring for each, as ``enqueue`` does: the first one by the engine, the others as its copies."""
    table = runtime.tables.runs
    first = {"agent": "shop", "next_step": "pay", "input_digest": "", "dedupe_key": None, "priority": 0}
    runtime.boundary.commit(
        "enqueue",
        runtime.engine,
        lambda connection: runtime.runs.insert(connection, run_id=f"{queue}-0", queue=queue, **first),
    )
    with runtime.engine.connect() as connection, connection.begin():
        row = dict(connection.execute(select(table).where(table.c.run_id == f"{queue}-0")).mappings().one())
        copies = [{**row, "run_id": f"{queue}-{number}", **values} for number in range(1, count)]
        for start in range(0, len(copies), 5000):
            connection.execute(insert(table), copies[start : start + 5000])
    for number in range(count):
        runtime.bell.ring(Ring(f"{queue}-{number}", 1, "shop", "pay", queue))


def sweep_for_an_hour(runtime: Runtime, pause_seconds: float = 120) -> Sweeper:
    sweeper = Sweeper(runtime)
    for _ in range(int(HOUR_SECONDS / pause_seconds)):
        runtime.clock.advance(pause_seconds)
        sweeper.sweep()
    return sweeper


@pytest.mark.parametrize("bell", [InlineBell, DeafBell])
def test_a_backlog_that_nobody_works_on_for_an_hour_gathers_few_doorbells(
    here: OneProcess, bell: Callable[..., Any]
) -> None:
    count = 20_000 if here.runtime.engine.dialect.name == "sqlite" else 2_000
    here.runtime.bell = bell(here.runtime.boundary)
    enqueue_many(here.runtime, count)

    sweep_for_an_hour(here.runtime)

    rings = here.runtime.bell.rings  # type: ignore[attr-defined]
    assert count <= len(rings) <= MOST_DOORBELLS * count
    assert len({ring.run_id for ring in rings}) == count


@pytest.mark.parametrize("bell", [InlineBell, DeafBell])
def test_an_emptied_broker_is_filled_no_further_than_its_depth(here: OneProcess, bell: Callable[..., Any]) -> None:
    here.runtime.bell = bell(here.runtime.boundary)
    enqueue_many(here.runtime, 500)
    rings = here.runtime.bell.rings  # type: ignore[attr-defined]
    rings.clear()

    sweeper = Sweeper(here.runtime)
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    sweeper.sweep()
    assert len(rings) == here.runtime.settings.queue_depth
    here.runtime.clock.advance(1)
    sweeper.sweep()
    assert len(rings) == here.runtime.settings.queue_depth


@pytest.mark.parametrize(
    ("bell", "emptied"),
    [(InlineBell, False), (DeafBell, True)],
    ids=["the broker kept its messages", "the broker was emptied, and cannot count"],
)
def test_when_workers_come_all_runs_finish(here: OneProcess, bell: Callable[..., Any], emptied: bool) -> None:
    count = 30
    here.runtime.settings = replace(here.runtime.settings, queue_depth=10)
    here.runtime.bell = bell(here.runtime.boundary)
    order = here.agent(pay=lambda state: done(state["n"]))
    for number in range(count):
        order.enqueue({"n": number}, run_id=f"run-{number}")
    rings = here.runtime.bell.rings  # type: ignore[attr-defined]
    if emptied:
        rings.clear()
    sweeper = sweep_for_an_hour(here.runtime, pause_seconds=1200)

    for _ in range(30):
        here.work(order)
        here.runtime.clock.advance(61)
        if not sweeper.sweep().rung:
            break
    outputs = {order.run(f"run-{number}").get(timeout=0) for number in range(count)}
    assert outputs == set(range(count))
    assert not rings


def test_the_queue_of_a_real_broker_stays_short(redis_url: str, tmp_path: Any) -> None:
    count = 300
    with closing(OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")) as here:
        app = new_app()
        app.conf.update(broker_url=redis_url, task_default_queue="steps")
        here.runtime.bell = CeleryBell(app, here.runtime.boundary, here.runtime.settings)
        enqueue_many(here.runtime, count, queue="steps")
        sweep_for_an_hour(here.runtime, pause_seconds=120)
        with app.connection_for_read() as connection:
            length = connection.default_channel.client.llen("steps")
        close(app)
    assert count <= length <= MOST_DOORBELLS * count


# -- nobody keeps others ------------------------------------------------------------------------------------------------------


def test_a_queue_that_nobody_serves_keeps_no_other_queue(here: OneProcess) -> None:
    here.runtime.bell = DeafBell(here.runtime.boundary)
    enqueue_many(here.runtime, 1_000, queue="unserved", priority=9)
    sweeper = sweep_for_an_hour(here.runtime, pause_seconds=600)
    rings = here.runtime.bell.rings
    rings.clear()

    Rows(here).queue("lost", queue="served")  # and its doorbell was lost
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    sweeper.sweep()
    assert "lost" in {ring.run_id for ring in rings}


def test_more_expired_leases_and_due_waits_than_a_sweep_handles_are_all_handled(
    here: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", batch := 10)
    for status in (RunStatus.RUNNING, RunStatus.WAITING):
        lease = {"lease_token": "t", "lease_owner": "o", "fence": 1, "attempts": 1}
        enqueue_many(
            here.runtime, batch + 6, queue=str(status), status=status, **(lease if status == "running" else {})
        )
    sweeper = Sweeper(here.runtime)
    sweeper.sweep()
    here.runtime.clock.advance(60)
    swept = [sweeper.sweep() for _ in range(4)]
    assert [each.taken_over for each in swept] == [batch, 5, 0, 0]
    assert [each.woken for each in swept] == [batch, 5, 0, 0]


@pytest.mark.mariadb
@pytest.mark.parametrize("statement", ["expire", "wake", "rung"])
def test_a_row_that_cannot_be_handled_keeps_no_other(
    here: OneProcess, statement: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows, sweeper = Rows(here), Sweeper(here.runtime)
    sweeper.sweep()
    for name in ("bad", "good"):
        if statement == "expire":
            rows.run(name)
        else:
            rows.queue(name)
            if statement == "wake":
                rows.write(name, status="waiting")
    rows.write("bad", priority=9)
    statements: Any = here.runtime.runs if statement == "expire" else here.runtime.due
    real = getattr(statements, statement)

    def failing(connection: Any, run_id: str, *args: Any, **kwargs: Any) -> Any:
        if run_id == "bad":
            connection.execute(text("INSERT INTO agent_runs (run_id) VALUES ('bad')"))  # against every constraint
        return real(connection, run_id, *args, **kwargs)

    monkeypatch.setattr(statements, statement, failing)
    here.runtime.clock.advance(60)
    sweeper.sweep()
    assert rows.rung() == ["good"]
    assert "run bad: the sweeper failed" in caplog.text
