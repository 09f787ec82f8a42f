"""Forks of a real worker: steps that fork call no tool, and its one worker is never two (I2, I3, I7); nor does a new child hang."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.testing import check_invariants
from tests.apps import close
from tests.recovery.fleet import Fleet, children_of
from tests.recovery.places import on_each
from tests.recovery.stage import SHORT, Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 60


class Place:
    """A worker with one child, and this process as its caller."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        with patch.dict(os.environ, environ):
            module = importlib.import_module("tests.recovery.fork_app")
        self.app, self.agent, self.world = module.app, module.forker, folder / "world"
        self.log = folder / "logs" / "w0.log"
        self.runtime = AppState.of(self.app).runtime
        upgrade(self.runtime.engine)

    def run(self, how: str) -> Any:
        run = self.agent.enqueue({"how": how})
        wait_until(lambda: run.status in (*FINISHED, RunStatus.NEEDS_ATTENTION), f"{how} ended", LIMIT)
        return run

    def noted(self) -> list[str]:
        return self.world.read_text().splitlines() if self.world.exists() else []


@pytest.fixture
def place(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Place]:
    environ = {
        "AGENT_DATABASE_URL": postgres_database(),
        "AGENT_BROKER_URL": redis_url,
        "AGENT_DATA_DIR": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path),
        "AGENT_FORK_FOLDER": str(tmp_path),
        **SHORT,
    }
    made = Place(environ, tmp_path)
    try:
        with Fleet([environ], tmp_path / "logs", app="tests.recovery.fork_app"):
            wait_until(lambda: made.app.control.ping(timeout=1, limit=1), "the worker listens", LIMIT)
            yield made
    finally:
        made.runtime.engine.dispose()
        close(made.app)
        del sys.modules["tests.recovery.fork_app"]


def test_a_step_that_forks_has_one_effect_and_its_worker_goes_on(place: Place) -> None:
    both = place.run("calls in both")
    assert both.get(timeout=0) == 10
    refused, charged = place.noted()
    assert refused.startswith(f"refused: run '{both.run_id}': tool 'charge' was called in process")
    assert charged == "charged 10"

    returned = place.run("returns in both")
    assert returned.get(timeout=0) == 10
    assert place.noted()[2:] == ["charged 10"]
    assert "came back from it and was ended" in place.log.read_text()

    assert place.run("calls in both").status is RunStatus.SUCCEEDED  # the same child still answers
    assert [[o.attempts for o in run.operations()] for run in (both, returned)] == [[1], [1]]
    with place.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


@on_each
def test_a_child_that_is_replaced_while_its_parent_rings_has_none_of_its_parents_locks(placed: Stage) -> None:
    with placed.workers({"AGENT_LEASE_SECONDS": "900"}, concurrency=1) as workers:
        (parent,) = (worker.pid for worker in workers.workers)
        placed.enqueue("killed", gated=True)
        wait_until(lambda: placed.bodies("killed") != [], "the body began", LIMIT)
        slow = placed.folder / "slow"
        slow.mkdir(exist_ok=True)
        (slow / "publish").touch()
        os.kill(placed.bodies("killed")[0].pid, signal.SIGKILL)
        wait_until((slow / "publishing").exists, "its parent rings for the run", LIMIT)
        for child in children_of(parent):
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: len(placed.bodies("killed")) >= 2, "another child took the run over", LIMIT)
        placed.open_gate("killed")
        placed.finish(["killed"], LIMIT)
    assert placed.faults(["killed"]) == []
