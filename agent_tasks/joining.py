"""Transactions of a caller, which a run is written in and which he alone ends; the doorbell rings after his commit."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from weakref import WeakKeyDictionary

from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError, SQLAlchemyError

from agent_tasks.cures import migrate_first
from agent_tasks.errors import SchemaMissing, TransactionUnusable
from agent_tasks.troubles import first_line, is_schema_missing
from agent_tasks.whereabouts import check_same_database
from checkpoint.mysql import NO_SAVEPOINT, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import NestedTransaction, Transaction

    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: PostgreSQL: an earlier statement of the transaction failed, and it can only be rolled back.
_FAILED_TRANSACTION = "25P02"


class CallersTransaction(Protocol):
    """What a run is written in where its caller says in which transaction."""

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a savepoint: all of it is part of the transaction, or an error left nothing of it there."""
        ...

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only reads."""
        ...

    def ring_after_commit(self, run_id: str) -> None:
        """Ring for a run as soon as the outermost transaction is committed; if it never is, nothing rings."""
        ...


def join(given: object, runtime: Runtime, name: str = "connection") -> CallersTransaction | None:
    """Return the transaction that a caller's connection is in, looked at before anything is written; None for None.

    Args:
        given: a SQLAlchemy ``Connection`` or ORM ``Session``, or one of Django's ``connections``.
        runtime: whose ledger gets the run.
        name: of the argument, for messages.

    Raises:
        TransactionUnusable: nothing can be written there so that it is the ledger's and the caller's to commit.
    """
    if given is None:
        return None
    if is_djangos(given):
        transactions = import_module("agent_tasks.integrations.django.transactions")  # Django is an extra
        joined: CallersTransaction = transactions.DjangoTransaction(given, runtime)
        return joined
    return SqlalchemyTransaction(_connection_of(given, name), runtime)


def is_database(value: object) -> bool:
    """Tell whether this is a connection to a database, and none to a broker."""
    return (
        isinstance(value, (Connection, Engine, *_of_orm("Session"), *_of_orm("scoped_session")))
        or _is_async(value)
        or is_djangos(value)
    )


def _of_orm(name: str) -> tuple[type[Any], ...]:
    """Return a class of SQLAlchemy's ORM, if it was imported: nobody has an object of it otherwise.

    Nothing is imported here: while the ORM is, all statements of other threads may fail by what there is of it so far.
    """
    found = getattr(sys.modules.get("sqlalchemy.orm"), name, None)
    return () if found is None else (found,)


def is_djangos(value: object) -> bool:
    """Tell whether this is one of Django's database connections, without an import of Django."""
    return type(value).__module__.startswith("django.") and hasattr(value, "in_atomic_block")


def _is_async(value: object) -> bool:
    return type(value).__module__.startswith("sqlalchemy.ext.asyncio")


def _connection_of(given: object, name: str) -> Connection:
    if isinstance(given, _of_orm("scoped_session")):
        given = given()
    if isinstance(given, _of_orm("Session")):
        try:
            connection: Connection = given.connection()
        except SQLAlchemyError as error:
            raise TransactionUnusable(
                f"the Session given as {name}= has no connection that a run can be written on: {error}. Roll it back if a "
                "flush failed; if it is bound to several databases, pass session.connection(bind_arguments=…)."
            ) from error
        return connection
    if isinstance(given, Connection):
        return given
    hint = ""
    if isinstance(given, Engine):
        hint = " An engine has no transaction: use `with engine.begin() as connection:`."
    elif _is_async(given):
        hint = f" Use `await session.run_sync(lambda session: ….enqueue(…, {name}=session))`."
    raise TransactionUnusable(
        f"{name}= must be a SQLAlchemy Connection or Session, or one of Django's connections, got {given!r}.{hint}"
    )


class SqlalchemyTransaction:
    """The transaction of a SQLAlchemy connection.

    Args:
        connection: of the caller; a transaction begins on it if none has, as with any statement.
        runtime: whose ledger gets the run.

    Raises:
        TransactionUnusable: see :func:`join`.
    """

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self.connection, self.runtime = connection, runtime
        if connection.closed or connection.invalidated:
            lost = "closed" if connection.closed else "invalidated, since it broke"
            raise TransactionUnusable(f"the connection is {lost}, so no run was made. Open a new one.")
        with his_errors():
            check_same_database(connection, runtime)
        self._check_transaction()

    def write(self, work: Callable[[Connection], T]) -> T:
        """See :class:`CallersTransaction`."""
        with his_errors():
            savepoint = self.connection.begin_nested()
            try:
                value = work(self.connection)
            except BaseException:
                self._take_back(savepoint)
                raise
            savepoint.commit()
            return value

    def read(self, work: Callable[[Connection], T]) -> T:
        """See :class:`CallersTransaction`."""
        with his_errors():
            return work(self.connection)

    def ring_after_commit(self, run_id: str) -> None:
        """See :class:`CallersTransaction`."""
        transaction = self.connection.get_transaction()
        assert transaction is not None  # noqa: S101 - the run was written in it
        _Rings.of(transaction, self.runtime).run_ids[run_id] = None

    def _take_back(self, savepoint: NestedTransaction) -> None:
        try:
            savepoint.rollback()
        except DBAPIError as error:
            if number_of(error) != NO_SAVEPOINT:
                raise
            # MySQL takes all of a transaction back that loses a deadlock, and the caller, who perhaps catches what is raised
            # now, would commit the second half of his own. As with a lost connection, he can only roll it back from here on.
            self.connection.invalidate(error)

    def _check_transaction(self) -> None:
        """Refuse a connection that commits each statement by itself, or whose savepoints are no part of anything."""
        driver: Any = self.connection.connection.dbapi_connection
        sqlite = self.connection.dialect.name == "sqlite"
        ask = getattr(driver, "get_autocommit", None)  # MySQL's drivers, whose `autocommit` is a method
        autocommit = getattr(driver, "autocommit", False) if ask is None else ask()
        begun = driver.in_transaction if sqlite else not autocommit
        by_itself = sqlite and driver.isolation_level is not None  # the driver begins, and only before a write
        if not begun and by_itself:
            self.connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif not begun:
            raise TransactionUnusable(
                "the connection is in autocommit mode and has no transaction that a run could be written in. Use "
                "`with engine.begin() as connection:` on an engine without isolation_level='AUTOCOMMIT'."
            )
        elif by_itself and self.connection.in_nested_transaction():
            raise TransactionUnusable(
                "the connection is in a savepoint, which SQLite commits by itself if nothing was written before it, since "
                "Python's driver does not begin there. Enqueue before the savepoint, or let SQLAlchemy begin: "
                "its page on pysqlite says how (isolation_level = None, and BEGIN at the event 'begin')."
            )


class _Rings:
    """The runs to ring for after the commit of one transaction."""

    _of: ClassVar[WeakKeyDictionary[Transaction, _Rings]] = WeakKeyDictionary()

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.run_ids = runtime, dict[str, None]()

    @classmethod
    def of(cls, transaction: Transaction, runtime: Runtime) -> _Rings:
        if transaction not in cls._of:
            # SQLAlchemy tells of a connection's commit before it, and never after it. All ways to commit lead through
            # this method of the transaction, which has slots and so takes no method of its own.
            kind: Any = transaction.__class__  # to mypy it cannot be hashed
            transaction.__class__ = _ringing(kind)
            cls._of[transaction] = cls(runtime)
        return cls._of[transaction]

    @classmethod
    def commit(cls, transaction: Transaction, commit: Callable[[], None]) -> None:
        rings = cls._of.pop(transaction, None)
        if rings is None:
            commit()
            return
        rings.runtime.boundary.callers_commit(commit)
        for run_id in rings.run_ids:
            ring_for(rings.runtime, run_id)


@cache
def _ringing(kind: Any) -> Any:
    def commit(self: Transaction) -> None:
        _Rings.commit(self, lambda: kind.commit(self))

    return type(kind.__name__, (kind,), {"__slots__": (), "commit": commit, "__module__": kind.__module__})


def ring_for(runtime: Runtime, run_id: str) -> None:
    """Ring for a run that a caller has committed; what goes wrong is no failure of his commit.

    A run that he wrote in a savepoint and took back is not there, and nothing rings.
    """
    try:
        runtime.ring(run_id)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - due_at stands, the sweeper rings
        logger.warning(
            "run %s is committed and was not rung for (%s: %s); the sweeper rings",
            run_id,
            type(error).__name__,
            error,
            extra={"action": "doorbell_lost", "run_id": run_id},
        )


@contextmanager
def his_errors() -> Iterator[None]:
    """Raise the database's errors as they are: whether the transaction is run again is the caller's to say.

    Raises:
        SchemaMissing: the ledger's tables are not what this release needs.
        TransactionUnusable: it had failed before.
    """
    try:
        yield
    except InvalidRequestError as error:  # a transaction that was rolled back, or ended in the middle of a `with`
        raise TransactionUnusable(f"no run can be written in this transaction: {error}") from error
    except DBAPIError as error:
        if is_schema_missing(error):
            raise SchemaMissing(
                f"the ledger's tables are missing or older than this release ({first_line(error)}). {migrate_first()}, then try "
                "again."
            ) from error
        if _sqlstate(error) == _FAILED_TRANSACTION:
            raise TransactionUnusable(
                "an earlier statement of this transaction failed, and it can only be rolled back; no run was made."
            ) from error
        raise


def _sqlstate(error: DBAPIError) -> str | None:
    # psycopg, and the driver before it
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
