"""The temporary folder: what a killed worker leaves there, and what others remove from there under a living one."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from agent_tasks.folders import HELD_PREFIX
from tests.recovery.places import on_each
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


@on_each
def test_a_worker_whose_folder_was_removed_works_on_and_notices_a_killed_child_and_replaces_it(placed: Stage) -> None:
    # A lease that outlasts the test: only who sees the table of slots gives it back in time.
    with placed.workers({"AGENT_LEASE_SECONDS": "900"}) as workers:
        placed.enqueue("before")
        placed.finish(["before"])
        (folder,) = placed.folder.glob(f"{HELD_PREFIX}*")
        shutil.rmtree(folder)  # as a cleaner of temporary files does that looks at dates
        placed.enqueue("after")
        placed.finish(["after"], 60)
        placed.enqueue("killed", gated=True)
        wait_until(lambda: placed.bodies("killed") != [], "the body began", 60)
        os.kill(placed.bodies("killed")[0].pid, signal.SIGKILL)
        wait_until(lambda: len(placed.bodies("killed")) == 2, "another child took the run over", 60)
        placed.open_gate("killed")
        placed.finish(["killed"], 60)
        killed, other = placed.bodies("killed")
        assert killed.worker == other.worker == workers.workers[0].pid
        assert killed.pid != other.pid
    assert placed.faults(["before", "after", "killed"]) == []
