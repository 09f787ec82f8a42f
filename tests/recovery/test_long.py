"""SIGKILL of real worker processes in a long step, and while its run waits: what was saved is gone on from (I2, I8, I9)."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
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

pytestmark = [
    pytest.mark.recovery,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork"),
]

LIMIT = 120


def test_a_long_step_that_is_killed_goes_on_from_its_progress_and_its_run_waits_without_a_worker(
    postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> None:
    environ = {
        "AGENT_DATABASE_URL": postgres_database(),
        "AGENT_BROKER_URL": redis_url,
        "AGENT_DATA_DIR": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path),
        "AGENT_LONG_FOLDER": str(tmp_path),
        **SHORT,
    }

    def lines(name: str) -> list[list[str]]:
        return [line.split() for line in (tmp_path / name).read_text().splitlines()]

    for name in ("gate", "held", "pages", "desk", "asked"):
        (tmp_path / name).touch()
    with patch.dict(os.environ, environ):
        module = importlib.import_module("tests.recovery.long_app")
    runtime = AppState.of(module.app).runtime
    upgrade(runtime.engine)
    try:
        with Fleet([environ], tmp_path / "logs", concurrency=2, app="tests.recovery.long_app") as workers:
            run = module.sender.enqueue({}, run_id="long")
            limited = module.limited.enqueue({}, run_id="limited")
            wait_until(lambda: len(lines("held")) == 1, "the body has saved its progress", LIMIT)
            (operation,) = run.operations()
            assert (operation.progress, operation.external_id) == (module.HELD + 1, "job-7")
            killed = lines("held")[0][1]
            os.kill(int(killed), signal.SIGKILL)
            (tmp_path / "gate").unlink()

            wait_until(lambda: len(lines("asked")) >= 2, "the check was asked, and asked again", LIMIT)
            asked = len(lines("asked"))
            worker = workers.workers[0].pid
            assert worker is not None
            os.killpg(worker, signal.SIGKILL)  # the run waits, or is asked at this moment: either is a row
            wait_until(lambda: len(lines("asked")) > asked, "another worker asks", LIMIT)
            assert run.status in (RunStatus.WAITING, RunStatus.QUEUED, RunStatus.RUNNING)
            (tmp_path / "answer").write_text("yes")
            wait_until(lambda: run.status in FINISHED, "the run ended", LIMIT)
            wait_until(
                lambda: limited.status in FINISHED, "the run ended whose step was killed for its time limit", LIMIT
            )

        assert limited.get(timeout=0) == "half"
        assert [progress for progress, _ in lines("overstayed")] == ["None", "half"]
        assert run.get(timeout=0) == [module.PAGES, "yes"]
        pages, desk = lines("pages"), lines("desk")
        assert [page for page, _ in pages] == [str(number) for number in range(module.PAGES)]
        assert [pid == killed for _, pid in pages] == [number <= module.HELD for number in range(module.PAGES)]
        assert [what for what, _ in desk] == ["open", "open", "closed"]
        assert desk[0][1] == killed
        assert desk[1][1] == desk[2][1] == pages[-1][1]
        (operation,) = run.operations()
        assert (operation.attempts, operation.progress) == (2, module.PAGES)
        with runtime.engine.connect() as connection:
            assert check_invariants(connection) == []
    finally:
        runtime.engine.dispose()
        close(module.app)
        del sys.modules["tests.recovery.long_app"]
