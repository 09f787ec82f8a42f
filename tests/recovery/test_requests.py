"""Real workers under a cancel, and killed while a retry waits."""

from __future__ import annotations

import os
import signal

import pytest

from agent_tasks import RunCancelled
from agent_tasks.states import RunStatus
from tests.recovery.places import on_each
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

LIMIT_SECONDS = 90


@on_each
def test_a_cancel_of_a_run_that_a_worker_has_in_hand_ends_it_before_its_next_call(placed: Stage) -> None:
    stage = placed
    with stage.workers(1):
        run = stage.enqueue("cancelled", gated=True)
        wait_until(lambda: stage.bodies("cancelled"), "the step ran", LIMIT_SECONDS)
        assert run.cancel(who="kim", why="changed her mind") is True
        assert run.status is RunStatus.RUNNING
        stage.open_gate("cancelled")
        wait_until(lambda: stage.all_ended(["cancelled"]), "the run ended", LIMIT_SECONDS)
    with pytest.raises(RunCancelled, match="cancelled by kim: changed her mind"):
        run.get(timeout=0)
    assert len(stage.bodies("cancelled")) == 1
    assert [operation for operation in run.operations() if operation.effect != "read"] == []
    assert stage.vendor.ledger() == []


@on_each
def test_a_retry_whose_worker_is_killed_while_it_waits_is_made_by_the_next_one(placed: Stage) -> None:
    stage = placed
    (stage.folder / "outages").mkdir()
    (stage.folder / "outages" / "retried").touch()
    with stage.workers(1) as workers:
        run = stage.enqueue("retried")
        wait_until(lambda: run.status is RunStatus.WAITING, "the retry waited", LIMIT_SECONDS)
        assert "Z: retry 1 of 3 of order in 5 s: ConnectionError: the warehouse is away" in str(run.waiting_for)
        killed = workers.workers[0].pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: stage.all_ended(["retried"]), "the run ended", LIMIT_SECONDS)
        assert workers.workers[0].pid != killed
    assert stage.row("retried")["crashes"] == 0
    assert stage.faults(["retried"]) == []
