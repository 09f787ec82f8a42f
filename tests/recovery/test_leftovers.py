"""What a killed worker leaves in the temporary folder, where it could remove nothing itself."""

from __future__ import annotations

import os
import signal

import pytest

from agent_tasks.folders import HELD_PREFIX
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]


def test_a_worker_that_starts_removes_what_a_killed_one_left_and_one_that_stops_leaves_nothing(embedded: Stage) -> None:
    def folders() -> set[str]:
        return {path.name for path in embedded.folder.glob(f"{HELD_PREFIX}*")}

    with embedded.workers(1) as workers:
        embedded.enqueue("before")
        embedded.finish(["before"])
        (left,) = folders()
        killed = workers.workers[0].pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(folders() - {left}) == 1, "another worker made its folder", 60)
        assert left not in folders()
        embedded.enqueue("after")
        embedded.finish(["after"])
        stopped = workers.workers[0].pid
        assert stopped is not None
        workers.retire(stopped)
        wait_until(lambda: folders() == set(), "the worker that stopped removed its own", 60)
    assert embedded.faults(["before", "after"]) == []
