"""Locks that end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from agent_tasks.pool import HeldByProcess, SurvivingPool, use_surviving_pool
from tests.forked import forked


def test_a_lock_whose_holder_is_killed_can_be_taken() -> None:
    lock = HeldByProcess()

    def hold() -> None:
        with lock:
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(hold) == -signal.SIGKILL
    with lock as held:
        assert held


def test_a_child_is_kept_out_by_the_lock_that_its_parent_holds_and_not_by_another_one() -> None:
    lock, other = HeldByProcess(), HeldByProcess()

    def try_it() -> None:
        fcntl.lockf(lock._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with lock:
        assert forked(try_it) == BlockingIOError.__name__
        assert forked(other.acquire) == 0
    assert forked(try_it) == 0


def test_nobody_can_remove_a_lock_from_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = HeldByProcess()
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)
    assert forked(lock.acquire) == 0


def test_only_a_pool_with_a_blocking_kind_is_given_the_locks() -> None:
    class WithOne:
        BlockingPool = object

    pool, other = WithOne(), object()
    use_surviving_pool(pool)
    use_surviving_pool(other)
    assert pool.BlockingPool is SurvivingPool
    assert not hasattr(other, "BlockingPool")
