"""SIGKILL of real worker processes in the middle of a batch: what succeeded is not done again (I3, I5, I7, I14)."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import FINISHED
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


def test_a_batch_that_is_killed_half_way_goes_on_and_repeats_nothing(
    postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> None:
    environ = {
        "AGENT_DATABASE_URL": postgres_database(),
        "AGENT_BROKER_URL": redis_url,
        "AGENT_DATA_DIR": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path),
        "AGENT_BATCH_FOLDER": str(tmp_path),
        **SHORT,
    }
    gate, held, world = (tmp_path / name for name in ("gate", "held", "world"))
    for file in (gate, held, world):
        file.touch()
    with patch.dict(os.environ, environ):
        module = importlib.import_module("tests.recovery.batch_app")
    runtime = AppState.of(module.app).runtime
    upgrade(runtime.engine)
    try:
        with Fleet([environ], tmp_path / "logs", concurrency=2, app="tests.recovery.batch_app"):
            runs = {name: getattr(module, name).enqueue({}, run_id=name) for name in ("together", "returned")}

            def halfway() -> bool:
                return (
                    all(
                        sorted(str(operation.status) for operation in run.operations())
                        == ["executing", "executing", "pending", "pending", "succeeded", "succeeded"]
                        for run in runs.values()
                    )
                    and len(held.read_text().splitlines()) == 4
                )

            wait_until(halfway, "both batches are half done", LIMIT)
            pids = {int(line.split()[1]) for line in held.read_text().splitlines()}
            assert len(pids) == 2
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            gate.unlink()
            wait_until(lambda: all(run.status in FINISHED for run in runs.values()), "both runs ended", LIMIT)

        counted = Counter(world.read_text().split())
        for run in runs.values():
            assert run.get(timeout=0) == list(module.LETTERS.upper())
            tries = {operation.args["what"]: operation.attempts for operation in run.operations()}
            assert tries == {letter: 2 if letter in module.HELD else 1 for letter in module.LETTERS}
            assert {counted[operation.operation_id] for operation in run.operations()} == {1}
        assert sum(counted.values()) == 2 * len(module.LETTERS)
        with runtime.engine.connect() as connection:
            assert check_invariants(connection) == []
    finally:
        runtime.engine.dispose()
        close(module.app)
        del sys.modules["tests.recovery.batch_app"]
