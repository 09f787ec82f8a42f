"""Connections and fork: a child never uses, nor closes, one of its parent's, and SQLite has none open meanwhile.

Parent and child would share one socket of PostgreSQL, and read each other's answers. So an engine begins anew in a child,
and what a child still holds of its parent's, such as the connection of a transactional body, refuses each statement.

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
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from agent_tasks.errors import InForkedProcess

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

#: Of a connection's own notes: the process that made it.
_MADE_IN = "agent_tasks_pid"

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


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def keep_to_process(engine: Engine) -> Engine:
    """Let each connection of an engine be its own process's; one that a child inherited is neither used nor closed.

    Example:
        >>> from sqlalchemy import create_engine
        >>> with keep_to_process(create_engine("sqlite://")).connect() as connection:
        ...     child = os.fork()
        ...     if not child:
        ...         try:
        ...             connection.exec_driver_sql("SELECT 1")
        ...         except InForkedProcess:
        ...             os._exit(7)
        >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        7
    """
    event.listen(engine, "connect", lambda _connection, record: record.info.update({_MADE_IN: os.getpid()}))
    event.listen(engine, "before_cursor_execute", _refuse_elsewhere)
    _engines.add(engine)
    return engine


def _refuse_elsewhere(connection: Connection, *_statement: object) -> None:
    made_in = connection.info.get(_MADE_IN)
    if made_in not in (None, os.getpid()):
        raise InForkedProcess(
            f"a connection of process {made_in} was used in process {os.getpid()}, which it has forked. Nothing was sent. "
            "Use it in its own process, and return to that what the statement needs."
        )


def _begin_anew() -> None:
    for engine in list(_engines):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_begin_anew)
