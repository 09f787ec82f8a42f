"""Locks that end with the process that holds them, and what a pool does without."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from agent_tasks import Agent, done
from agent_tasks.pool import HeldByProcess, SurvivingPool, use_surviving_pool
from agent_tasks.worker import _say_what_the_pool_ignores
from tests.forked import forked

pytestmark = pytest.mark.versions


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


# -- time limits ----------------------------------------------------------------------------------------------------------


def worker_of_a_limited_step(pool: object) -> SimpleNamespace:
    app = Celery("limited", broker="memory://", set_as_current=False)
    agent = Agent("order", app=app)
    agent.step(start=True, name="create", time_limit=5)(lambda state: done())
    agent.step(name="pay", soft_time_limit=3)(lambda state: done())
    app.conf.task_time_limit = 60
    return SimpleNamespace(app=app, pool=pool)


@pytest.mark.parametrize(
    ("pool", "ignored"),
    [
        (SimpleNamespace(), "soft_time_limit of order.pay, task_time_limit, time_limit of order.create"),
        (SimpleNamespace(is_green=True), "soft_time_limit of order.pay"),
    ],
    ids=["threads", "gevent"],
)
def test_a_worker_names_the_time_limits_that_its_pool_ignores(
    pool: object, ignored: str, caplog: pytest.LogCaptureFixture
) -> None:
    _say_what_the_pool_ignores(worker_of_a_limited_step(pool))
    (record,) = caplog.records
    assert f"at such a time limit, and {ignored} will do nothing" in record.getMessage()


def test_a_pool_of_processes_ignores_none(caplog: pytest.LogCaptureFixture) -> None:
    _say_what_the_pool_ignores(worker_of_a_limited_step(SimpleNamespace(BlockingPool=SurvivingPool)))
    assert caplog.records == []
