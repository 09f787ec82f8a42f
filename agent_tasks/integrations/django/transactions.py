"""Django's transactions: a run that is enqueued in one, and transactional tools whose bodies use the ORM."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, transaction
from django.db import utils as django_errors
from sqlalchemy import Connection, create_engine, exc
from sqlalchemy.pool import NullPool

from agent_tasks.database import DRIVERS, IDLE_IN_TRANSACTION_MS
from agent_tasks.errors import InsideTransaction, TransactionUnusable
from agent_tasks.joining import his_errors, ring_for
from agent_tasks.whereabouts import check_same_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper
    from sqlalchemy import Engine

    from agent_tasks.runtime import Runtime

T = TypeVar("T")

#: The driver's connection that the next SQLAlchemy connection of this context is put around.
_lent: ContextVar[Any] = ContextVar("agent_tasks_django_connection")


class Lent:
    """Django's own driver connection as SQLAlchemy sees it: whoever ends transactions and closes it, it is not SQLAlchemy.

    Nor is it set up by it: functions and handlers stay those that Django registered.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _leave(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    commit = rollback = close = create_function = add_notice_handler = _leave


@cache
def _engine_around(vendor: str) -> Engine:
    options = (
        {"use_native_hstore": False} if vendor == "postgresql" else {}
    )  # it would ask a driver's connection of its own
    return create_engine(
        f"{vendor}+{DRIVERS[vendor]}://", creator=lambda: Lent(_lent.get()), poolclass=NullPool, **options
    )


@contextmanager
def borrowed(connection: BaseDatabaseWrapper) -> Iterator[Connection]:
    """Lend out Django's connection as a SQLAlchemy one, in the transaction that Django began on it."""
    connection.ensure_connection()
    token = _lent.set(connection.connection)
    try:
        own = _engine_around(connection.vendor).connect()
    finally:
        _lent.reset(token)
    with own:
        yield own


class DjangoTransaction:
    """The present ``transaction.atomic()`` of one of Django's connections; see :class:`agent_tasks.joining.CallersTransaction`.

    Args:
        connection: one of ``django.db.connections``.
        runtime: whose ledger gets the run.

    Raises:
        TransactionUnusable: it is in no such block, in one that has failed, or leads to another database.
    """

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self.alias, self.runtime = str(connection.alias), runtime
        subject = f"Django's connection {self.alias!r}"
        if connection.vendor not in DRIVERS:
            raise TransactionUnusable(
                f"{subject} is on {connection.display_name}, and the ledger is on {runtime.engine.dialect.name}: a run cannot "
                "be part of its transaction."
            )
        if not connection == connections[self.alias]:
            raise TransactionUnusable(f"{subject} is another thread's. Use connections[{self.alias!r}] of this one.")
        self.connection: BaseDatabaseWrapper = connections[self.alias]
        if not connection.in_atomic_block:
            raise TransactionUnusable(
                f"{subject} is in autocommit mode and has no transaction that a run could be written in. Use "
                f"`with transaction.atomic(using={self.alias!r}):`."
            )
        if connection.needs_rollback or connection.closed_in_transaction:
            raise TransactionUnusable(
                f"{subject} is in a transaction that an earlier error has broken, and that can only be rolled back; no run "
                "was made. Catch errors outside of an inner `with transaction.atomic():`."
            )
        self.read(partial(check_same_database, runtime=runtime))

    def write(self, work: Callable[[Connection], T]) -> T:
        """See :class:`agent_tasks.joining.CallersTransaction`."""
        with transaction.atomic(using=self.alias):
            return self.read(work)

    def read(self, work: Callable[[Connection], T]) -> T:
        """See :class:`agent_tasks.joining.CallersTransaction`."""
        try:
            with his_errors(), borrowed(self.connection) as own:
                return work(own)
        except exc.DBAPIError as error:
            driver = error.orig
            if driver is None:
                raise
        # As any other statement on this connection would raise it.
        with self.connection.wrap_database_errors:
            raise driver

    def ring_after_commit(self, run_id: str) -> None:
        """See :class:`agent_tasks.joining.CallersTransaction`."""
        transaction.on_commit(partial(self._ring, run_id), using=self.alias)

    def _ring(self, run_id: str) -> None:
        self.runtime.boundary.callers_commit_happened()
        ring_for(self.runtime, run_id)


class DjangoLedger:
    """The ledger's database as Django has it: transactions on Django's own connection, which the ORM is part of.

    Args:
        alias: of the ledger's database.
        prefix: what its tables' names begin with.
    """

    def __init__(self, alias: str, prefix: str) -> None:
        self.alias, self._runs = alias, f"{prefix}runs"

    def check_free(self) -> None:
        """See :class:`agent_tasks.boundary.Transactions`."""
        if connections[self.alias].in_atomic_block:
            raise InsideTransaction(
                f"a transactional call was made inside `with transaction.atomic(using={self.alias!r}):`, so that its record "
                "would be that block's to commit. Call it outside of the block; its body is a transaction already."
            )

    @contextmanager
    def begun(self) -> Iterator[tuple[Connection, Callable[[], None]]]:
        """Begin a transaction; what is given out is its connection, and what commits it.

        Raises:
            InsideTransaction: Django has begun one already.
            sqlalchemy.exc.DBAPIError: the database refused, in SQLAlchemy's words.
        """
        self.check_free()
        connection = connections[self.alias]
        block, is_open = transaction.atomic(using=self.alias), False

        def commit() -> None:
            nonlocal is_open
            if connection.needs_rollback:  # which would roll back without a word
                raise InsideTransaction(self.spoilt() or "")
            is_open = False
            block.__exit__(None, None, None)

        with self._sqlalchemys_errors():
            block.__enter__()
            is_open = True
            try:
                with borrowed(connection) as own:
                    self._set_up(own)
                    yield own, commit
            except BaseException as error:
                if is_open:
                    block.__exit__(type(error), error, error.__traceback__)
                raise

    def spoilt(self) -> str | None:
        """Return why the transaction can only be rolled back, if that is so."""
        if not connections[self.alias].needs_rollback:
            return None
        return (
            f"an error of the ORM was caught in the middle of its transaction on {self.alias!r}, which can only be rolled back "
            "since. Catch it outside of an inner `with transaction.atomic():`."
        )

    def database_error(self, error: Exception) -> exc.DBAPIError | None:
        """Return an error that Django raised in SQLAlchemy's words, or None if it is none of the database."""
        kind = next((cls for cls in type(error).__mro__ if cls.__module__ == django_errors.__name__), None)
        words: type[exc.DBAPIError] | None = None if kind is None else getattr(exc, kind.__name__, exc.DatabaseError)
        if words is None or not issubclass(words, exc.DBAPIError):
            return None
        driver = connections[self.alias].connection
        lost = bool(getattr(driver, "closed", False) or getattr(driver, "broken", False))
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return words(None, None, cause, connection_invalidated=lost)

    @contextmanager
    def _sqlalchemys_errors(self) -> Iterator[None]:
        try:
            yield
        except django_errors.Error as error:
            translated = self.database_error(error)
            if translated is None:
                raise
            raise translated from error

    def _set_up(self, own: Connection) -> None:
        """See :func:`agent_tasks.database.open_engine`."""
        if own.dialect.name == "postgresql":
            own.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS}")
        else:  # Django begins without the lock on writing, and may find it taken when it is too late to wait
            own.exec_driver_sql(f"UPDATE {self._runs} SET fence = fence WHERE 0")  # noqa: S608 - the prefix was checked
