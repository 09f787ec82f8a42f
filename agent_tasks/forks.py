"""SQLite and fork: no connection may be open while a process forks.

SQLite keeps in the process's memory which locks it holds on a file, and the kernel does not hand locks on to a child. So
a child that is forked while any thread has the file open believes that it holds what it does not hold: it sees a ledger
that is locked for good, or corrupts it. A worker's parent forks whenever it replaces a dead child, while its sweeper and
its heartbeat are at work. So a fork waits here until the connections are closed, which the ledger's are after each
transaction.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from typing import Any

#: How long a new connection gives way to a fork that waits, in seconds; it may be what the fork waits for.
_GIVE_WAY_SECONDS = 5.0


class _Open:
    """The open connections of this process, counted by the thread that opened them."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(before=self._wait_until_closed, after_in_parent=self._go_on, after_in_child=self.forget)

    def forget(self) -> None:
        """Begin anew, in a child that has no connections yet."""
        self._changed = threading.Condition()
        self._by_thread: Counter[int] = Counter()
        self._forks_waiting = 0

    def enter(self) -> int:
        """Count one more; it lets waiting forks go first, unless its thread has one open that they wait for.

        Returns:
            What :meth:`leave` takes.
        """
        thread = threading.get_ident()
        with self._changed:
            if not self._by_thread[thread]:
                self._changed.wait_for(lambda: not self._forks_waiting, _GIVE_WAY_SECONDS)
            self._by_thread[thread] += 1
        return thread

    def leave(self, thread: int) -> None:
        """Count one less."""
        with self._changed:
            self._by_thread[thread] -= 1
            if not self._by_thread[thread]:
                del self._by_thread[thread]
            self._changed.notify_all()

    def _wait_until_closed(self) -> None:
        self._changed.acquire()
        self._forks_waiting += 1
        # A thread that forks with a connection of its own open would wait for itself.
        mine = threading.get_ident()
        self._changed.wait_for(lambda: not any(n for thread, n in self._by_thread.items() if thread != mine))

    def _go_on(self) -> None:
        self._forks_waiting -= 1
        self._changed.notify_all()
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

    _counted_in: int | None = None  # the process; a copy that a child inherited does not count there

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._thread = _open.enter()
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
        if self._counted_in == os.getpid():
            self._counted_in = None
            _open.leave(self._thread)
