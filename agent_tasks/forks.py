"""Connections, threads and fork: a child never uses, nor closes, its parent's connections, and waits for no lock of its threads.

Parent and child would share one socket of PostgreSQL, and read each other's answers. So an engine begins anew in a child,
and what a child still holds of its parent's, such as the connection of a transactional body, refuses each statement.

SQLite keeps in the process's memory which locks it holds on a file, and the kernel does not hand locks on to a child. So
a child that is forked while any thread has the file open believes that it holds what it does not hold: it sees a ledger
that is locked for good, or corrupts it. A worker's parent forks whenever it replaces a dead child, while its sweeper and
its heartbeat are at work. So a fork waits here until the connections are closed, which the ledger's are after each
transaction.

The locks of this process's memory go to a child as they are, and of the threads only the one that forks. Whoever reads
``app.amqp`` holds a lock of kombu's for that moment, whoever imports a module that module's: a child that was forked then
waits for it for good, with the run in whose step it needs it. So a fork also waits until the turns of the heartbeat and
of the sweeper are over, though not for long: a turn that takes long waits for the network, and hardly holds such a lock.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from agent_tasks.errors import InForkedProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection, Engine

logger = logging.getLogger(__name__)

#: Of a connection's own notes: the process that made it.
_MADE_IN = "agent_tasks_pid"

#: How long a new connection, or a turn, gives way to a fork that waits, in seconds; it may be what the fork waits for.
_GIVE_WAY_SECONDS = 5.0

#: How long a fork waits for turns, in seconds; a worker takes no messages meanwhile.
_TURN_SECONDS = 2.0


class _Busy:
    """What the threads of this process do that must not be cut by a fork: connections that are open, and turns."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(before=self._wait_until_quiet, after_in_parent=self._go_on, after_in_child=self.forget)

    def forget(self) -> None:
        """Begin anew, in a child that has none of it yet."""
        self._changed = threading.Condition()
        self._open: Counter[int] = Counter()  # connections by the thread that opened them
        self._turns: set[int] = set()  # the threads that have one
        self._forks_waiting = 0

    def enter(self) -> int:
        """Count a connection; it lets waiting forks go first, unless its thread has something that they wait for.

        Returns:
            What :meth:`leave` takes.
        """
        thread = threading.get_ident()
        with self._changed:
            self._give_way(thread)
            self._open[thread] += 1
        return thread

    def leave(self, thread: int) -> None:
        """Count a connection no more."""
        with self._changed:
            self._open[thread] -= 1
            if not self._open[thread]:
                del self._open[thread]
            self._changed.notify_all()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let forks wait, until the end or :meth:`let_by`; those that wait already go first."""
        thread = threading.get_ident()
        with self._changed:
            self._give_way(thread)
            self._turns.add(thread)
        try:
            yield
        finally:
            with self._changed:
                self._turns.discard(thread)
                self._changed.notify_all()

    def let_by(self) -> None:
        """Let the forks go on that wait for this thread's turn, and take it up again after them."""
        thread = threading.get_ident()
        with self._changed:
            if not self._forks_waiting or thread not in self._turns:
                return
            self._turns.discard(thread)
            self._changed.notify_all()
            self._give_way(thread)
            self._turns.add(thread)

    def is_awaited(self) -> bool:
        """Whether a fork waits."""
        return self._forks_waiting > 0

    def _give_way(self, thread: int) -> None:
        if not self._open[thread] and thread not in self._turns:
            self._changed.wait_for(lambda: not self._forks_waiting, _GIVE_WAY_SECONDS)

    def _wait_until_quiet(self) -> None:
        self._changed.acquire()
        self._forks_waiting += 1
        if not self._changed.wait_for(lambda: not _others(self._open) and not _others(self._turns), _TURN_SECONDS):
            if _others(self._turns):
                logger.warning(
                    "a turn of the heartbeat or of the sweeper lasts, and a fork waits for it no longer; should the new process take no "
                    "messages, restart the worker, and see why the database or the broker does not answer",
                    extra={"action": "fork_in_turn"},
                )
            self._changed.wait_for(lambda: not _others(self._open))

    def _go_on(self) -> None:
        self._forks_waiting -= 1
        self._changed.notify_all()
        self._changed.release()


def _others(threads: Iterable[int]) -> bool:
    """Whether others are among them: a thread that forks would wait for itself."""
    return any(thread != threading.get_ident() for thread in threads)


_busy = _Busy()

#: Of a thread of ours that goes on all the time: while it is in this context, forks wait for it, if not for long.
turn = _busy.turn

#: Of such a thread in a long turn, between one piece of work and the next: let the forks by that wait.
let_forks_by = _busy.let_by

#: Whether a fork waits now.
is_awaited = _busy.is_awaited


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
        self._thread = _busy.enter()
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
            _busy.leave(self._thread)


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
