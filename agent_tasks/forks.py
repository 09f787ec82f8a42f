"""SQLite and fork: no connection may be open while a process forks.

SQLite keeps in the process's memory which locks it holds on a file, and the kernel does not hand locks on to a child. So
a child that is forked while any thread has the file open believes that it holds what it does not hold, and corrupts the
database. A worker's parent forks whenever it replaces a dead child, while its sweeper and heartbeat are at work. So a
fork waits here until the connections are closed, which the ledger's are after each transaction.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import Any


class _Open:
    """Counts the open connections of this process; a fork waits for none."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(
            before=self._wait_until_closed, after_in_parent=self._go_on, after_in_child=self.forget
        )

    def forget(self) -> None:
        """Begin anew, in a child that has no connections yet."""
        self._changed = threading.Condition()
        self._count = 0
        self._of_this_thread = threading.local()

    def add(self, number: int) -> None:
        """Count one more or one less; a new one waits for a fork under way."""
        with self._changed:
            self._count += number
            self._of_this_thread.count = self._mine() + number
            self._changed.notify_all()

    def _mine(self) -> int:
        return getattr(self._of_this_thread, "count", 0)

    def _wait_until_closed(self) -> None:
        self._changed.acquire()
        # A thread that forks with a connection of its own open would wait for itself.
        self._changed.wait_for(lambda: self._count <= self._mine())

    def _go_on(self) -> None:
        self._changed.release()


_open = _Open()


class ForkSafeConnection(sqlite3.Connection):
    """An SQLite connection that forks of this process wait for.

    Example:
        >>> connection = sqlite3.connect(":memory:", factory=ForkSafeConnection)
        >>> connection.execute("SELECT 1").fetchone()
        (1,)
        >>> connection.close()
    """

    _counted_in: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _open.add(1)
        self._counted_in = os.getpid()
        try:
            super().__init__(*args, **kwargs)
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """Close it; forks that waited go on."""
        super().close()
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._counted_in == os.getpid():  # and not a copy that a child inherited
            self._counted_in = None
            _open.add(-1)
