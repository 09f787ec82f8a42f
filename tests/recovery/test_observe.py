"""Observe mode on a real worker: plain Celery does what it does, and the report says what was doubled."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tasks.migrate import upgrade
from tests import services
from tests.apps import close
from tests.recovery.fleet import ROOT, Fleet
from tests.recovery.plain_app import FOLDER_VARIABLE, Outside
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 60


class Place:
    """A worker in observe mode, and this process as its caller."""

    def __init__(self, folder: Path, environ: dict[str, str], app: Any) -> None:
        self.environ, self.outside, self.app = environ, Outside(folder), app
        self.log = folder / "logs" / "w0.log"

    def call(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.tasks[task].apply_async(args, **options)

    def report(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "celery", "-A", "tests.recovery.observed_app", "agent", "observed", "--json"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextlib.contextmanager
def place(folder: Path, database: str, broker: str, results: str) -> Iterator[Place]:
    environ = {
        "AGENT_DATABASE_URL": database,
        "AGENT_BROKER_URL": broker,
        "AGENT_RESULT_BACKEND": results,
        "TMPDIR": str(folder),
        FOLDER_VARIABLE: str(folder),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        sys.modules.pop("tests.recovery.observed_app", None)
        app = importlib.import_module("tests.recovery.observed_app").app
        with Fleet([environ], folder / "logs", app="tests.recovery.observed_app"):
            wait_until(lambda: app.control.ping(timeout=1, limit=1), "the worker listens", LIMIT)
            yield Place(folder, environ, app)
        close(app)


@pytest.fixture
def here(postgres_database: Any, redis_server: str, tmp_path: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        broker, results = (stack.enter_context(services.redis_database(redis_server)) for _ in range(2))
        url = postgres_database()
        upgrade(url)
        yield stack.enter_context(place(tmp_path, url, broker, results))


def test_a_worker_that_is_killed_in_the_middle_doubles_the_effect_and_the_report_says_so(here: Place) -> None:
    here.outside.gate("o-1").touch()
    called = here.call("shop.pay", "o-1")
    wait_until(lambda: here.outside.seen("o-1"), "the effect happened", LIMIT)
    os.kill(int(here.outside.seen("o-1")[0]), signal.SIGKILL)
    wait_until(lambda: len(here.outside.seen("o-1")) == 2, "Celery gave the message out again", LIMIT)
    here.outside.gate("o-1").unlink()
    assert called.get(timeout=LIMIT) == {"order": "o-1", "cents": 300}

    again = here.call("shop.pay", "o-1")  # the same job under another id, which nobody keeps from being done
    assert again.get(timeout=LIMIT) == {"order": "o-1", "cents": 300}
    assert again.id != called.id
    assert here.call("shop.pay", "o-2").get(timeout=LIMIT)["order"] == "o-2"

    report = here.report()
    sums = {"doubled": 2, "retried": 0, "after_success": 1, "after_loss": 1, "unended": 0}
    assert report["tasks"] == [{"task": "shop.pay", "calls": 2, "starts": 4, **sums}]
    (call,) = report["calls"]
    assert call.pop("last_at") > "20"
    assert call == {
        "task": "shop.pay",
        "call": "order='o-1'",
        "starts": 3,
        "after_success": 1,
        "after_loss": 1,
        "after_failure": 0,
        "unended": 0,
    }


def test_retries_are_celerys_own_and_are_counted_by_themselves(here: Place) -> None:
    called = here.call("shop.retried", "o-3")
    assert called.get(timeout=LIMIT) == "at last"
    (call,) = here.report()["calls"]
    assert (call["starts"], call["after_failure"], call["after_success"], call["after_loss"]) == (3, 2, 0, 0)
    assert call["call"] == f"id {called.id}"


def test_a_ledger_that_is_away_disturbs_no_task(redis_server: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        broker, results = (stack.enter_context(services.redis_database(redis_server)) for _ in range(2))
        nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
        here = stack.enter_context(place(tmp_path, nowhere, broker, results))
        for order in ("o-4", "o-5"):
            assert here.call("shop.pay", order).get(timeout=LIMIT)["order"] == order
        lines = here.log.read_text().splitlines()
    said = [line for line in lines if "is not observed for 30 s, and runs all the same" in line]
    assert len(said) == 1
