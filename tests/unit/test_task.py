"""The Celery task of a step, in a worker: what is no doorbell is acked and dropped with a line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

from agent_tasks import Agent, AgentTask, done
from agent_tasks.doorbell import RING_HEADER
from agent_tasks.states import RunStatus
from tests.apps import close
from tests.waiting import wait_until

pytestmark = pytest.mark.versions

NO_DOORBELLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (({"cart": 1},), {}),
    (("run-1",), {}),
    (("run-1", "1"), {}),
    ((1, "run-1"), {}),
    (("run-1", True), {}),
    (("run-1", 1, 2), {}),
    (("run-1", 1), {"cart": 1}),
    ((), {"run_id": "run-1", "seq": 1}),
    ((["line\n" * 100], None), {}),
]


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Keep a worker of this process from setting up the logging of all tests."""

    def leave(**_options: Any) -> None: ...

    setup_logging.connect(leave)
    yield
    setup_logging.disconnect(leave)


@pytest.mark.usefixtures("untouched_logging")
def test_messages_that_are_no_doorbells_are_acked_with_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("forged", broker="memory://", set_as_current=False)
    queue = str(tmp_path)
    app.conf.update(
        agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}",
        task_default_queue=queue,
    )
    order = Agent("order", app=app)
    order.step(lambda state: done(state["cart"]), name="create")
    caplog.set_level(logging.INFO)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for args, kwargs in NO_DOORBELLS:
            app.send_task("order.create", args=args, kwargs=kwargs)
        assert order.enqueue({"cart": 7}).get(timeout=30) == 7

    dropped = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "message_dropped"]
    assert len(dropped) == len(NO_DOORBELLS)
    for line in dropped:
        assert line.startswith("a message to order.create was dropped: a doorbell has a run id and a seq, got args ")
        assert line.endswith("start a run with order.enqueue(…)")
        assert "\n" not in line
    assert [
        record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING
    ] == []
    assert order.runtime.bell.depth(queue) == 0  # a worker that stops gives back what it has not acked
    order.runtime.engine.dispose()
    close(app)


@pytest.mark.usefixtures("untouched_logging")
def test_a_doorbell_of_a_run_that_is_in_another_ledger_is_dropped_with_a_warning_and_one_that_came_twice_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("two-ledgers", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}", task_default_queue=str(tmp_path))
    order = Agent("order", app=app)
    order.step(lambda state: done(state["cart"]), name="create")

    @app.task(base=AgentTask, tools=[], name="pay", shared=False)
    def pay() -> None: ...

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        run = order.enqueue({"cart": 7})
        assert run.get(timeout=30) == 7
        for step, run_id in (("order.create", run.run_id), ("order.create", "run-0"), ("pay", "run-1")):
            app.send_task(step, args=(run_id, 1), task_id=run_id, headers={RING_HEADER: 1})
        assert order.enqueue({"cart": 8}).get(timeout=30) == 8

    dropped = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "message_dropped"]
    assert [line.partition(": ")[0] for line in dropped] == [
        "a doorbell of agent 'order' was dropped",
        "a doorbell of task 'pay' was dropped",
    ]
    assert all("agent_database_url" in line for line in dropped)
    order.runtime.engine.dispose()
    close(app)


@pytest.mark.usefixtures("untouched_logging")
def test_doorbells_of_a_step_that_only_another_release_knows_are_dropped_quietly_and_other_unknown_tasks_are_celerys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("older", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}", task_default_queue=str(tmp_path))
    order = Agent("order", app=app)
    order.step(lambda state: done(state["cart"]), name="create")
    caplog.set_level(logging.INFO)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for number in (1, 2):
            app.send_task("order.newer", args=(f"run-{number}", 1), headers={RING_HEADER: 1})
        app.send_task("somebody.elses")
        assert order.enqueue({"cart": 7}).get(timeout=30) == 7

    (left,) = (record for record in caplog.records if getattr(record, "action", "") == "step_unknown")
    assert left.levelno == logging.WARNING
    assert "a doorbell of order.newer for run run-1 was left to the sweeper" in left.getMessage()
    (unregistered,) = (r.getMessage() for r in caplog.records if "unregistered task" in r.getMessage())
    assert "somebody.elses" in unregistered


@pytest.mark.usefixtures("untouched_logging")
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_an_interrupt_that_a_body_raises_takes_neither_a_worker_along_nor_one_of_its_threads(
    pool: str, tmp_path: Path
) -> None:
    app = Celery("interrupted", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}", task_default_queue=str(tmp_path))
    order = Agent("order", app=app)

    @order.step
    def create(state: Any) -> Any:
        if state["cart"] is None:
            raise KeyboardInterrupt
        return done(state["cart"])

    @app.task(base=AgentTask, tools=[], name="pay", shared=False)
    def pay() -> None:
        raise KeyboardInterrupt

    with start_worker(app, pool=pool, concurrency=1, perform_ping_check=False, shutdown_timeout=30):
        lost = [order.enqueue({"cart": None}), pay.run_handle(pay.delay())]
        wait_until(lambda: [run.status for run in lost] == [RunStatus.NEEDS_ATTENTION] * 2, "both are parked")
        assert order.enqueue({"cart": 7}).get(timeout=30) == 7
    order.runtime.engine.dispose()
    close(app)
