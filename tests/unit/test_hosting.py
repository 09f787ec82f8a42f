"""Where effects may be done on a ledger of their own: in tests and scripts, also beside a worker, and in eager mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.apps.worker import Worker
from celery.contrib.testing.worker import start_worker

from agent_tasks import Agent, AgentTask, OutsideRun, carry_run, done
from agent_tasks.hosting import in_worker
from tests.waiting import wait_until

pytestmark = pytest.mark.versions


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    made = Celery("hosting", broker="memory://", backend="cache+memory://", set_as_current=False)
    made.conf.update(agent_database_url=f"sqlite:///{tmp_path}/agent.db", task_default_queue=str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Celery sets up no logging where somebody listens to this signal."""

    def leave(**_: object) -> None: ...

    signals.setup_logging.connect(leave)
    yield
    signals.setup_logging.disconnect(leave)


@pytest.fixture
def pay(app: Celery) -> Any:
    def pay(self: Any, order: str) -> str:
        return f"paid {order}"

    keyed = {"effect": "keyed", "key_lifetime": timedelta(hours=1)}
    return app.task(base=AgentTask, name="pay", shared=False, bind=True, **keyed)(pay)


@pytest.fixture
def order(app: Celery) -> Agent:
    made = Agent("order", app=app)
    made.step(lambda state: done(state["order"]), name="create")
    return made


@pytest.fixture
def worker() -> Iterator[None]:
    """This process becomes a worker of the command line."""
    sender = object.__new__(Worker)
    signals.worker_init.send(sender=sender)
    yield
    signals.worker_shutdown.send(sender=sender)
    assert not in_worker()


@pytest.mark.usefixtures("worker")
def test_a_worker_applies_no_task_with_an_effect_and_runs_no_agent_inline(pay: Any, order: Agent) -> None:
    with pytest.raises(
        OutsideRun, match=r"task 'pay' has effects and was called by \.apply\(\) in a worker.* pay\.delay"
    ):
        pay.s("o-1").apply()
    with pytest.raises(OutsideRun, match=r"agent 'order' was run inline in a worker.* call order\.enqueue\(…\)"):
        order.run_inline({"order": "o-1"})


@pytest.mark.usefixtures("worker")
def test_a_worker_in_eager_mode_does(app: Celery, pay: Any, order: Agent) -> None:
    app.conf.task_always_eager = True
    assert pay.delay("o-1").get() == pay.apply(("o-1",)).get() == "paid o-1"
    assert order.run_inline({"order": "o-1"}) == "o-1"


@pytest.mark.usefixtures("untouched_logging")
def test_a_worker_in_a_thread_of_a_test_refuses_in_its_tasks_only(app: Celery, pay: Any, order: Agent) -> None:
    @app.task(name="around", shared=False)
    def around() -> str:
        try:
            return str(pay.apply(("o-1",)).get(disable_sync_subtasks=False))
        except OutsideRun as refused:
            return str(refused)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        assert "in a worker, on a ledger of its own" in around.delay().get(timeout=30)
        assert pay.apply(("o-1",)).get() == "paid o-1"
        assert order.run_inline({"order": "o-1"}) == "o-1"
    assert around.apply().get() == "paid o-1"


@pytest.mark.usefixtures("untouched_logging")
def test_a_step_of_a_worker_in_a_thread_refuses_in_the_threads_that_it_carries_its_run_into(
    app: Celery, pay: Any
) -> None:
    many = Agent("many", app=app)

    @many.step
    def apply(_state: Any) -> Any:
        with ThreadPoolExecutor() as threads:
            applied = threads.submit(carry_run(lambda: pay.apply(("o-1",)).get(disable_sync_subtasks=False)))
        refused = applied.exception()
        return done(str(refused) if isinstance(refused, OutsideRun) else applied.result())

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        assert "in a worker, on a ledger of its own" in many.enqueue({}).get(timeout=30)
    assert many.run_inline({}) == "paid o-1"


def test_a_worker_in_a_thread_takes_its_threads_along_when_it_ends(
    app: Celery, order: Agent, untouched_logging: None
) -> None:
    before = set(threading.enumerate())

    def started() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("agent-")]

    with start_worker(app, pool="solo", perform_ping_check=False):
        wait_until(lambda: "agent-sweeper" in started(), "the sweeper is there")
    wait_until(lambda: not started(), "no thread is left")
