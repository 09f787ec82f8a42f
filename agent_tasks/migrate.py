"""Bringing a ledger's tables up to date: Alembic, up only, data never deleted."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from agent_tasks.boundary import LedgerErrors
from agent_tasks.cures import migrate_first
from agent_tasks.database import open_engine, parse_url
from agent_tasks.errors import ConfigurationError, LedgerUnavailable, SchemaMissing
from agent_tasks.troubles import first_line, is_held
from checkpoint.errors import UnsuitableServer
from checkpoint.mysql import alone, check_tables, is_mysql
from checkpoint.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_FOLDER = Path(__file__).parent / "migrations"

#: Number of the PostgreSQL advisory lock that lets one process migrate at a time ("agent_ta" in ASCII).
_MIGRATION_LOCK = 0x6167656E745F7461

#: How long an upgrade waits at a time for a table that an open transaction uses, in seconds, since everybody who comes later
#: waits behind it; how often it tries, and the pause between two tries.
_TABLE_SECONDS, _TABLE_TRIES, _TABLE_PAUSE_SECONDS = 2, 10, 1.0

#: What an error says is being done where a worker, a caller or a command opens a ledger, and nobody has asked for more.
OPENING = "opening the ledger"


def upgrade(url: str | Engine, prefix: str = "agent_", at: str = "db upgrade") -> str:
    """Create the tables of a ledger, or bring them up to this release.

    Several processes may call it at once; one migrates, the others wait and find nothing to do. A table that somebody uses in a
    transaction which he does not end is waited for in short tries, between which everybody else gets at it, for half a minute in
    all.

    Args:
        url: SQLAlchemy URL of the database, or an engine.
        prefix: what the table names start with.
        at: what is being done, as an error says it.

    Returns:
        The revision that the ledger has now.

    Raises:
        ConfigurationError: the URL cannot be used.
        LedgerUnavailable: the database did not answer, or somebody's transaction uses a table that is to be changed.

    Example:
        >>> import tempfile
        >>> upgrade(f"sqlite:///{tempfile.mkdtemp()}/agent.db")
        '0004'
    """
    engine = url if isinstance(url, Engine) else open_engine(url)
    try:
        if revision(engine, prefix, at) != newest():
            _upgrade_in_tries(engine, prefix, at)
        _check_tables(engine, prefix, at)
        return newest()
    finally:
        if not isinstance(url, Engine):
            engine.dispose()


def _upgrade_in_tries(engine: Engine, prefix: str, at: str) -> None:
    for tried in range(1, _TABLE_TRIES + 1):
        try:
            # BEGIN IMMEDIATE on SQLite: one at a time.
            with LedgerErrors(at), engine.connect() as connection, connection.begin():
                upgrade_on(connection, prefix, table_seconds=_TABLE_SECONDS)
        except LedgerUnavailable as error:
            cause = error.__cause__
            if not isinstance(cause, DBAPIError) or not is_held(cause):
                raise
            if tried == _TABLE_TRIES:
                raise LedgerUnavailable(
                    f"a table of the ledger is used in a transaction that does not end, and {at!r} waited for it {tried} times "
                    f"({first_line(cause)}). The tables are as they were, or partly new, which hinders nobody. End that transaction "
                    "(PostgreSQL shows it in pg_stat_activity, MySQL in SHOW PROCESSLIST), then try again."
                ) from cause
            time.sleep(_TABLE_PAUSE_SECONDS)
        else:
            return


def upgrade_on(connection: Connection, prefix: str = "agent_", *, table_seconds: int | None = None) -> None:
    """Bring a ledger up to this release in the transaction of a connection, which is the caller's to commit.

    Args:
        connection: of the ledger's database.
        prefix: what the table names start with.
        table_seconds: how long a statement waits for a table; as long as the connection's own settings say if not given.

    MySQL commits each change of a table by itself. An upgrade that was cut off there goes on with what is missing; see
    :mod:`agent_tasks.migrations.changes`.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    with (
        alone(connection, f"{prefix}version") if is_mysql(connection) else nullcontext(),
        _waiting(connection, table_seconds),
    ):
        # The revision comes last: with it, there is nothing left to do.
        SqlStore(connection.engine, prefix=f"{prefix}checkpoint_").create_schema(connection)
        _upgrade(connection, prefix)
        if is_mysql(connection):  # before the next one looks
            connection.exec_driver_sql("COMMIT")


@contextmanager
def _waiting(connection: Connection, seconds: int | None) -> Iterator[None]:
    """Let statements wait so long for a table; SQLite has only the lock on its file, which the transaction has already."""
    if seconds is None or connection.dialect.name == "sqlite":
        yield
    elif is_mysql(connection):
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {seconds}")
        try:
            yield
        except BaseException:
            connection.invalidate()  # with its setting
            raise
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")
    else:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{seconds}s'")
        yield


def revision(engine: Engine, prefix: str = "agent_", at: str = "db status") -> str | None:
    """Return the revision that a ledger has, or None if it has no tables.

    Args:
        engine: of the ledger.
        prefix: what the table names start with.
        at: what is being done, as an error says it.

    Raises:
        LedgerUnavailable: the database did not answer.
    """
    options = {"version_table": f"{prefix}version"}
    with (
        LedgerErrors(at),
        engine.connect().execution_options(agent_reads_only=True) as connection,
        _quiet_alembic(),
    ):
        return MigrationContext.configure(connection, opts=options).get_current_revision()


def prepare(url: str, prefix: str = "agent_") -> None:
    """See to it that a worker can work with a ledger: an SQLite one is brought up to date, any other must have been.

    Raises:
        SchemaMissing: the ledger was never migrated.
        LedgerUnavailable: the database did not answer.
    """
    if parse_url(url).get_backend_name() == "sqlite":
        upgrade(url, prefix, OPENING)
        return
    engine = open_engine(url)
    try:
        if revision(engine, prefix, OPENING) is None:
            raise SchemaMissing(f"the ledger's tables are missing. {migrate_first()}, then start the worker again.")
        _check_tables(engine, prefix, OPENING)
    finally:
        engine.dispose()


def _check_tables(engine: Engine, prefix: str, at: str) -> None:
    if not is_mysql(engine):
        return
    try:
        with LedgerErrors(at), engine.connect() as connection:
            check_tables(connection, prefix)
    except UnsuitableServer as error:
        raise ConfigurationError(f"agent_database_url leads to a database that will not do: {error.reason}.") from error


def newest() -> str:
    """Return the revision that this release works with."""
    head = ScriptDirectory.from_config(_config("agent_")).get_current_head()
    assert head is not None  # noqa: S101 - the package ships revisions
    return head


def _upgrade(connection: Connection, prefix: str) -> None:
    config = _config(prefix)
    config.attributes["connection"] = connection
    with _quiet_alembic():
        command.upgrade(config, "head")


@contextmanager
def _quiet_alembic() -> Iterator[None]:
    """Keep back what Alembic says at INFO in this thread: every process of a worker looks, and would say it again.

    A filter and no level, so that the user's own migrations, in other threads too, are logged as he wants it.
    """
    here = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or record.thread != here

    alembic = logging.getLogger(MigrationContext.__module__)
    alembic.addFilter(passes)
    try:
        yield
    finally:
        alembic.removeFilter(passes)


def _config(prefix: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["prefix"] = prefix
    return config
