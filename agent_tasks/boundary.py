"""The one module through which every commit, publish, ack and effect of the engine passes.

Whatever can be lost or doubled by a crash happens between two crossings of a boundary. So the crash explorer needs
no list of dangerous places: it observes the crossings of one run and crashes at each of them. A test fails when
another module of the engine begins a transaction, publishes, acks or runs a tool's body by itself.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from agent_tasks import troubles
from agent_tasks.children import EndingChildren
from agent_tasks.cures import cure_of, migrate_first
from agent_tasks.database import begin_anew
from agent_tasks.errors import LedgerUnavailable, SchemaMissing, is_a
from agent_tasks.single import Borrowed
from agent_tasks.troubles import first_line
from checkpoint import mysql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from agent_tasks.single import Single

T = TypeVar("T")

#: How often a transaction that lost a race for locks, or whose connection knew its statements no more, is run again, as a whole.
MAX_LOCK_RETRIES = 10

#: How a connection is told that it only reads; SQLite must not queue for its write lock then.
_READING: dict[str, dict[str, Any]] = {
    "sqlite": {"agent_reads_only": True},
    "postgresql": {"isolation_level": "AUTOCOMMIT"},
    "mysql": {},  # which is asked, and told that it is over; autocommit would have to be told twice as well
}


class Point(NamedTuple):
    """One crossing: ``commit`` ``claim`` ``before``."""

    kind: str  # commit | publish | ack | effect
    name: str
    moment: str  # before | after

    def __str__(self) -> str:
        return f"{self.moment} {self.kind} {self.name}"


class Transactions(Protocol):
    """The ledger's database by way of another library, whose own connection its transactions are on."""

    def check_free(self) -> None:
        """Refuse to work inside a transaction that somebody else has begun.

        Raises:
            InsideTransaction: so it is; the engine could not end it.
        """
        ...

    def begun(self) -> AbstractContextManager[tuple[Connection, Callable[[], None]]]:
        """Begin a transaction; what is given out is its connection, and what commits it."""
        ...

    def spoilt(self) -> str | None:
        """Return why the present transaction can only be rolled back, if that is so."""
        ...

    def database_error(self, error: Exception) -> DBAPIError | None:
        """Return an error that the library raised in SQLAlchemy's words, or None if it is none of the database."""
        ...


class Boundary:
    """Carries out commits, publishes, acks and effects, and shows each crossing to an observer.

    Args:
        observer: called at each crossing; what it raises happens there. Tests crash with it.

    Example:
        >>> seen = []
        >>> Boundary(seen.append).effect("charge", lambda: 42)
        42
        >>> [str(point) for point in seen]
        ['before effect charge', 'after effect charge']
    """

    #: What new boundaries of this process observe with, unless they are told otherwise.
    default_observer: Callable[[Point], None] | None = None

    def __init__(self, observer: Callable[[Point], None] | None = None) -> None:
        self.observer = observer or type(self).default_observer

    def _cross(self, kind: str, name: str, moment: str) -> None:
        if self.observer is not None:
            self.observer(Point(kind, name, moment))

    def effect(self, name: str, body: Callable[[], T]) -> T:
        """Run the body of a tool; a process that it forks does not come back from it."""
        with EndingChildren(f"the body of {name!r}"):
            return self._around("effect", name, body)

    def publish(self, name: str, send: Callable[[], T]) -> T:
        """Hand a message to the broker."""
        return self._around("publish", name, send)

    def ack(self, name: str, acknowledge: Callable[[], T]) -> T:
        """Tell the broker that a message is done with."""
        return self._around("ack", name, acknowledge)

    def callers_commit(self, commit: Callable[[], T]) -> T:
        """Let a caller commit his own transaction, in which a run was written."""
        return self._around("commit", "caller", commit)

    def callers_commit_happened(self) -> None:
        """Show the crossing of a caller's commit that could only be heard of after it."""
        self._cross("commit", "caller", "after")

    def _around(self, kind: str, name: str, action: Callable[[], T]) -> T:
        self._cross(kind, name, "before")
        value = action()
        self._cross(kind, name, "after")
        return value

    def read(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        """Run statements that only read: in one transaction on SQLite, where that makes them one snapshot.

        Elsewhere each has a snapshot of its own in any case, under READ COMMITTED, and so needs no transaction.
        """

        def once() -> T:
            with (
                LedgerErrors("read", engine, runs_again=True),
                _connected(engine, **_READING[engine.dialect.name]) as connection,
            ):
                return work(connection)

        return self._until_it_runs("read", once)

    def at_once(self, name: str, engine: Engine, statement: Single, values: Mapping[str, Any]) -> Any:
        """Carry out one statement that is a transaction of its own.

        Args:
            name: of the boundary, as for :meth:`commit`, which the caller goes on to where this found nothing to do.
            engine: of the ledger.
            statement: that does all of something or nothing.
            values: of its parameters.

        Returns:
            The row that it returned; None if it changed nothing, and was not seen to: a race for locks that was lost is
            the longer way's to win, and a connection that did not know the statement any more is the longer way's to
            replace.

        Raises:
            LedgerUnavailable: the connection broke, or the database takes no writes; ``ambiguous`` says if the statement may
                have been carried out.
            SchemaMissing: the tables are not there.
        """
        errors = LedgerErrors(name, engine, runs_again=True)
        try:
            with errors, Borrowed(engine) as borrowed:
                self._cross("commit", name, "before")
                errors.ambiguous = True  # from here on nobody can tell without looking
                row = statement.run(borrowed, values)
                if row is not None:
                    self._cross("commit", name, "after")
        except DBAPIError as error:
            if not troubles.runs_again(error):
                raise
            return None
        return row

    def commit(self, name: str, engine: Engine | Transactions, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one writing transaction and commit it.

        A transaction that loses a race for locks (serialization, deadlock, lock wait, busy) is run again as a whole,
        so ``work`` has no effect but what it writes on the connection.

        Args:
            name: of the boundary, in the words of the design: ``claim``, ``intent``, ``outcome``, ``step`` …
            engine: of the ledger, or another library's way to its database.
            work: gets the connection; may raise, which rolls back.

        Returns:
            What ``work`` returned.

        Raises:
            LedgerUnavailable: the connection broke, or the race for locks was lost again and again; ``ambiguous`` says
                if the commit may have happened.
            SchemaMissing: the tables are not there.
        """
        return self._until_it_runs(name, lambda: self._commit_once(name, engine, work))

    def _commit_once(self, name: str, engine: Engine | Transactions, work: Callable[[Connection], T]) -> T:
        errors = LedgerErrors(name, engine if isinstance(engine, Engine) else None, runs_again=True)
        with errors, _begun(engine) as (connection, commit):
            value = work(connection)
            self._cross("commit", name, "before")
            errors.ambiguous = True  # from here on nobody can tell without looking
            commit()
            self._cross("commit", name, "after")
        return value

    def _until_it_runs(self, name: str, once: Callable[[], T]) -> T:
        """Run a transaction again, as a whole, for as long as each try is known to have done nothing.

        No effect is doubled by it (I5), and no doubt settled: PostgreSQL and MySQL have rolled back what they refused, and
        the work of the next try looks at the ledger anew.
        """
        for tried in range(MAX_LOCK_RETRIES + 1):
            try:
                return once()
            except DBAPIError as error:
                if not troubles.runs_again(error):
                    raise
                if tried == MAX_LOCK_RETRIES:
                    raise _given_up(name, error, tried + 1) from error
            time.sleep(random.uniform(0, 0.01 * 2 ** min(tried, 6)))  # noqa: S311 - spreads competitors, no secret
        raise AssertionError("unreachable")


def _given_up(name: str, error: DBAPIError, tries: int) -> LedgerUnavailable:
    if troubles.lost_a_race(error):
        said = f"was too busy at {name!r}: {first_line(error)}. Others held its locks through {tries} tries"
        return LedgerUnavailable(f"the ledger's database {said}; nothing was written. Try again.")
    said = f"did not know the statements of its own sessions at {name!r}, through {tries} tries: {first_line(error)}"
    return LedgerUnavailable(f"the ledger's database {said}. Nothing was written: {cure_of(error)}, then try again.")


@contextmanager
def _begun(engine: Engine | Transactions) -> Iterator[tuple[Connection, Callable[[], None]]]:
    if isinstance(engine, Engine):
        with _connected(engine) as connection:
            # BEGIN IMMEDIATE on SQLite and READ COMMITTED elsewhere are the engine's (see agent_tasks.database).
            transaction = connection.begin()
            # Its method as it is then: a body that enqueues a run in here gives it one that rings (see agent_tasks.joining).
            yield connection, lambda: transaction.commit()  # noqa: PLW0108 - not bound yet
    else:
        with engine.begun() as begun:
            yield begun


@contextmanager
def _connected(engine: Engine, **options: Any) -> Iterator[Connection]:
    """Connect; whatever was raised is what the caller hears of, a time limit in the middle of a statement too.

    Such a connection cannot even roll back. Then it is thrown away, and not complained about in the place of the limit.
    """
    with engine.connect().execution_options(**options) as connection:
        try:
            yield connection
        except BaseException:
            try:
                connection.rollback()
            except SQLAlchemyError:
                connection.invalidate()
            raise


class LedgerErrors:
    """Turn the driver's words for a lost database, a refusal or a missing table into this package's.

    Args:
        name: of what is done.
        engine: whose connections are replaced where the error says that they are of no use any more.
        runs_again: somebody outside does the same work again where it may do at once, and gets the driver's own error.
    """

    def __init__(self, name: str, engine: Engine | None = None, *, runs_again: bool = False) -> None:
        self.name, self._engine, self._runs_again = name, engine, runs_again
        self.ambiguous = False

    def __enter__(self) -> None:
        return None

    @property
    def _nothing(self) -> str:
        return "Nothing was read: " if self.name in ("read", "db status") else "Nothing was written: "

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or not is_a(error, SQLAlchemyError):
            return
        if self._engine is not None:
            begin_anew(self._engine, error)
        if isinstance(error, DBAPIError):
            if self._runs_again and troubles.runs_again(error):
                return
            if troubles.is_schema_missing(error):
                raise SchemaMissing(
                    f"the ledger's tables are missing or older than this release ({first_line(error)}). "
                    f"{migrate_first()}, then try again."
                ) from error
            if mysql.number_of(error) in mysql.OF_A_STATEMENT:
                return
        if troubles.is_refused(error) or troubles.is_unprepared(error) or troubles.is_outdated(error):
            # The server has said no, at a COMMIT too, and rolled back: nobody has to look whether it happened.
            raise LedgerUnavailable(
                f"the ledger's database refused {self.name!r}: {first_line(error)}. {self._nothing}{cure_of(error)}, then try "
                "again."
            ) from error
        if troubles.is_no_answer(error):
            perhaps = "What was to be committed may have been, since only the answer is missing: "
            raise LedgerUnavailable(
                f"the ledger's database did not answer at {self.name!r}: {first_line(error)}. "
                f"{perhaps if self.ambiguous else self._nothing}{cure_of(error)}, then try again.",
                ambiguous=self.ambiguous,
            ) from error
