"""Steps that fork, in the children of a real worker: they call no tool, and its one worker is never two (I2, I3, I7)."""

from __future__ import annotations

import importlib
import os
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
from tests.recovery.fleet import Fleet
from tests.recovery.stage import SHORT
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
