"""A task whose ``base=AgentTask`` was forgotten is plain Celery; a worker that starts says so."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, signals

from agent_tasks import AgentTask, tool
from agent_tasks.forgotten import forgotten
from tests.pages import ROOT


@tool(effect="read")
def look() -> None: ...


def pay(order_id: str) -> None: ...


@pytest.fixture
def app() -> Celery:
    return Celery("forgotten", broker="memory://", set_as_current=False)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"effect": "keyed", "dedupe_on": ("order_id",)}, ["effect", "dedupe_on"]),
        ({"effect": "manual", "timeout": timedelta(seconds=5), "settle": timedelta(0)}, ["effect", "settle"]),
        ({"tools": [look]}, ["tools"]),
        ({"agent_mode": "observe"}, ["agent_mode"]),
        ({"key_lifetime": timedelta(hours=24)}, ["key_lifetime"]),
    ],
)
def test_options_of_ours_without_our_base_are_found(app: Celery, options: dict[str, Any], found: list[str]) -> None:
    app.task(pay, name="pay", shared=False, **options)
    assert forgotten(app) == {"pay": found}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"base": AgentTask, "tools": [look]},
        {"base": AgentTask, "agent_mode": "observe", "dedupe_on": ("order_id",)},
        {"effect": "sparks", "tools": ["hammer"], "timeout": 5, "why": "a word of somebody's", "settle": 3},
    ],
)
def test_what_is_guarded_or_somebody_elses_is_not(app: Celery, options: dict[str, Any]) -> None:
    app.task(pay, name="pay", shared=False, **options)
    assert forgotten(app) == {}


def test_options_in_a_class_of_somebodys_count_too(app: Celery) -> None:
    class Base(Task):
        abstract = True
        effect = "keyed"

    app.task(pay, name="pay", base=Base, shared=False)
    assert forgotten(app) == {"pay": ["effect"]}


def test_a_worker_that_starts_names_task_and_options(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    app.task(pay, name="pay", shared=False, effect="keyed", dedupe_on=("order_id",))

    class Worker:
        pass

    worker: Any = Worker()
    worker.app = app
    signals.celeryd_after_setup.send(sender="host", instance=worker, conf=app.conf)
    (said,) = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "base_forgotten"]
    assert said.startswith("task pay has effect=, dedupe_on=, and its base class is not AgentTask")
    assert said.endswith("Add base=AgentTask")


APP = """
from celery import Celery, signals
import agent_tasks
app = Celery("shop", broker="memory://")

@app.task(effect="keyed", dedupe_on=("order_id",))
def pay(order_id): ...

@signals.worker_ready.connect
def end(sender, **_):
    app.control.shutdown()
    raise SystemExit
"""


def test_a_worker_of_an_app_without_a_ledger_says_it_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    worker = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "solo", "--loglevel", "WARNING"]
    ended = subprocess.run(
        worker, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert "task shop.pay has effect=, dedupe_on=" in ended.stdout + ended.stderr
