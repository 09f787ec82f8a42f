"""SIGKILL of real worker processes in the middle of an async body that overstays its limit: its effect happens once (I5, I6)."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import RunStatus
from agent_tasks.testing import check_invariants
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

#: How a call that was killed in the middle is done with.
EFFECTS = ("keyed", "probed", "manual")


@pytest.mark.parametrize("killer", ["somebody", "its parent"])
def test_an_async_body_that_is_killed_where_it_overstays_has_its_effect_once(
    killer: str, postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> None:
    environ = {
        "AGENT_DATABASE_URL": postgres_database(),
        "AGENT_BROKER_URL": redis_url,
        "AGENT_DATA_DIR": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path),
        "AGENT_ASYNC_FOLDER": str(tmp_path),
        **SHORT,
    }

    def lines(name: str) -> list[list[str]]:
        return [line.split() for line in (tmp_path / name).read_text().splitlines()]

    def overstaying() -> dict[str, int]:
        return {run_id: int(pid) for run_id, pid in lines("overstays")}

    for name in ("sent", "overstays"):
        (tmp_path / name).touch()
    with patch.dict(os.environ, environ):
        module = importlib.import_module("tests.recovery.async_app")
    runtime = AppState.of(module.app).runtime
    upgrade(runtime.engine)
    try:
        with Fleet([environ], tmp_path / "logs", concurrency=len(EFFECTS), app="tests.recovery.async_app") as workers:
            runs = {effect: module.payer.enqueue({"by": effect}, run_id=effect) for effect in EFFECTS}
            for effect in EFFECTS:
                wait_until(lambda effect=effect: effect in overstaying(), f"the body of {effect} overstays", LIMIT)
                if killer == "somebody":
                    with suppress(ProcessLookupError):  # its parent was faster
                        os.kill(overstaying()[effect], signal.SIGKILL)
            wait_until(runs["manual"].inbox, "a person is asked", LIMIT)
            (asked,) = runs["manual"].inbox()
            asked_about = {"who": "kim", "why": "the vendor's page shows it"}
            runs["manual"].resolve(asked.item_id, "happened", result="charged", **asked_about)
            for run in runs.values():
                wait_until(lambda run=run: run.status is RunStatus.SUCCEEDED, f"{run.run_id} succeeded", LIMIT)
            if killer == "its parent":
                assert len(workers.said("is past its deadline and is killed")) >= len(EFFECTS)

        assert {effect: run.get(timeout=0) for effect, run in runs.items()} == dict.fromkeys(EFFECTS, "charged")
        sent = lines("sent")
        assert Counter(run_id for run_id, _ in sent) == {"keyed": 2, "probed": 1, "manual": 1}
        assert len({key for _, key in sent}) == len(EFFECTS)  # the keyed one was sent again with its key
        with runtime.engine.connect() as connection:
            assert check_invariants(connection) == []
    finally:
        runtime.engine.dispose()
        module.app.close()
        del sys.modules["tests.recovery.async_app"]
