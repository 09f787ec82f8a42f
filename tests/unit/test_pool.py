"""Locks that end with the process that holds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from agent_tasks.pool import HeldByProcess, SurvivingPool, use_surviving_pool

HOLD = """
import sys, time
from agent_tasks.pool import HeldByProcess
HeldByProcess(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_whose_holder_is_killed_can_be_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        os.kill(holder.pid, signal.SIGKILL)
    with HeldByProcess(path) as held:
        assert held


def test_only_a_pool_with_a_blocking_kind_is_given_the_locks(tmp_path: Path) -> None:
    class WithOne:
        BlockingPool = object

    pool, other = WithOne(), object()
    use_surviving_pool(pool, tmp_path)
    use_surviving_pool(other, tmp_path)
    assert issubclass(pool.BlockingPool, SurvivingPool)
    assert not hasattr(other, "BlockingPool")
