"""The pool of a worker whose transport has no event loop: its processes share two locks, and a killed one must not keep them.

billiard guards the pipe that brings tasks and the one that takes results with semaphores. An idle child waits in the
first one's hold; SIGKILL never gives a semaphore back, so every child made later would wait for good, and the worker with
it. The kernel gives the lock on a file back when its holder dies.

The files have no names, so nobody can remove them under a living worker.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from typing import Any

from billiard.pool import Pool

if sys.platform != "win32":  # which has no prefork pool
    import fcntl


class HeldByProcess:
    """A lock that ends with the process that holds it, for this process and those that it forks.

    It is a record lock (``lockf``), which each process has for itself; that of ``flock`` is shared by all that inherited
    the descriptor.

    Example:
        >>> with HeldByProcess():
        ...     "held"
        'held'
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor).atexit = False  # threads may use it to the end

    def acquire(self, *_: Any, **__: Any) -> bool:
        """Wait for the lock."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Give the lock back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SurvivingPool(Pool):
    """billiard's pool with locks that a killed process does not keep."""

    def _setup_queues(self) -> None:
        super()._setup_queues()
        self._inqueue._rlock = HeldByProcess()
        self._outqueue._wlock = HeldByProcess()


def use_surviving_pool(pool: Any) -> None:
    """Let a worker's pool, which has not started yet, make its processes with such locks where it needs any."""
    if sys.platform != "win32" and hasattr(pool, "BlockingPool"):
        pool.BlockingPool = SurvivingPool
