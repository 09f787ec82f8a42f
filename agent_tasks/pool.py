"""The pool of a worker whose transport has no event loop: its processes share two locks, and a killed one must not keep them.

billiard guards the pipe that brings tasks and the one that takes results with semaphores. An idle child waits in the
first one's hold; SIGKILL never gives a semaphore back, so every child made later would wait for good, and the worker with
it. The kernel gives the lock on a file back when its holder dies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from billiard.pool import Pool

if sys.platform != "win32":  # which has no prefork pool
    import fcntl


class HeldByProcess:
    """A lock that ends with the process that holds it.

    Each process opens the file for itself, since a descriptor that was inherited over a fork shares its lock.

    Args:
        path: of the file; made when it is first needed.

    Example:
        >>> import tempfile
        >>> with HeldByProcess(tempfile.mkdtemp() + "/lock"):
        ...     "held"
        'held'
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._pid, self._descriptor = str(path), 0, -1

    def acquire(self, *_: Any, **__: Any) -> bool:
        """Wait for the lock."""
        if self._pid != os.getpid():
            self._descriptor, self._pid = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), os.getpid()
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SurvivingPool(Pool):
    """billiard's pool with locks that a killed process does not keep.

    Attributes:
        folder: of the locks; must outlive the pool, and must not be removed by a child that forgets the pool.
    """

    folder: Path

    def _setup_queues(self) -> None:
        super()._setup_queues()
        self._inqueue._rlock = HeldByProcess(self.folder / "tasks.lock")
        self._outqueue._wlock = HeldByProcess(self.folder / "results.lock")


def use_surviving_pool(pool: Any, folder: Path) -> None:
    """Let a worker's pool, which has not started yet, make its processes with locks in ``folder`` where it needs any."""
    if sys.platform != "win32" and hasattr(pool, "BlockingPool"):
        pool.BlockingPool = type("SurvivingPool", (SurvivingPool,), {"folder": folder})
