"""Engines of the ledger, made so that every transaction is what the protocol counts on (design 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from agent_tasks.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from sqlalchemy import Engine

#: Databases that this release keeps its promise on.
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}

#: How long a writer waits for SQLite's one write lock, in milliseconds.
SQLITE_BUSY_MS = 20_000


def open_engine(url: str, **options: Any) -> Engine:
    """Return an engine for the ledger.

    PostgreSQL gets READ COMMITTED, whatever the server's default is. SQLite gets WAL, ``synchronous=FULL`` (a commit
    that was answered is on the disk) and BEGIN IMMEDIATE, since a deferred transaction that reads before it writes
    fails at once when another process wrote in between.

    Args:
        url: a SQLAlchemy URL, ``sqlite:///agent.db`` or ``postgresql+psycopg://…``.
        **options: for ``sqlalchemy.create_engine``.

    Raises:
        ConfigurationError: the URL cannot be read, or names a database that is not supported.

    Example:
        >>> open_engine("sqlite:///agent.db").dialect.name
        'sqlite'
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(
            f"agent_database_url must be a SQLAlchemy URL such as sqlite:///agent.db, got {url!r}."
        ) from None
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigurationError(
            f"agent_database_url must name one of {', '.join(sorted(DIALECTS))}, got {backend!r}."
            + did_you_mean(backend, DIALECTS)
        )
    if backend == "postgresql":
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername=DIALECTS["postgresql"])
        return create_engine(parsed, isolation_level="READ COMMITTED", **options)
    if parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "agent_database_url must name a file, got an SQLite database in memory, which no other process sees."
        )
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"timeout": SQLITE_BUSY_MS / 1000}, **options)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin by itself
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    # Readers must not queue for the write lock: boundary.read() says so on its connection.
    reading = connection.get_execution_options().get("agent_reads_only", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
