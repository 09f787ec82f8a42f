"""Engines of the ledger, made so that every transaction is what the protocol counts on."""

from __future__ import annotations

import logging
import weakref
from inspect import signature
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from agent_tasks.errors import ConfigurationError, did_you_mean, install, nearest
from agent_tasks.forks import ForkSafeConnection, keep_to_process
from agent_tasks.troubles import first_line, is_outdated, is_read_only, is_unprepared
from checkpoint import mysql, postgresql
from checkpoint.columns import MYSQL
from checkpoint.errors import UnsuitableServer
from checkpoint.sqlite import use_wal

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

logger = logging.getLogger(__name__)

#: Databases that this release keeps its promise on, and the one driver for each.
DRIVERS = {"sqlite": "pysqlite", "postgresql": postgresql.DRIVER, "mysql": mysql.DRIVER, "mariadb": mysql.DRIVER}

#: A connection that died without a word must not hold a worker's threads: psycopg gives up after about a lease.
_POSTGRESQL_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}

#: How long a process that stands still in the middle of a transaction may keep its locks, in milliseconds.
IDLE_IN_TRANSACTION_MS = 30_000

#: Engines whose sessions forgot what was prepared on them, so that nothing is any more.
_unprepared: weakref.WeakSet[Engine] = weakref.WeakSet()

#: How long a writer waits for SQLite's one write lock, in milliseconds.
SQLITE_BUSY_MS = 20_000


def open_engine(url: str, **options: Any) -> Engine:
    """Return an engine for the ledger.

    PostgreSQL gets READ COMMITTED, whatever the server's default is. SQLite gets WAL, ``synchronous=FULL`` (a commit
    that was answered is on the disk) and BEGIN IMMEDIATE, since a deferred transaction that reads before it writes
    fails at once when another process wrote in between. MySQL and MariaDB get READ COMMITTED, strict values and a short wait for
    locks, whatever the server's options are.

    Args:
        url: a SQLAlchemy URL, ``sqlite:////var/lib/shop/agent.db``, ``postgresql+psycopg://…`` or ``mysql+pymysql://…``.
        **options: for ``sqlalchemy.create_engine``.

    Raises:
        ConfigurationError: the URL cannot be read, or names a database that is not supported. Its connections raise it where
            a server turns out to be one on which the promise does not hold.

    Example:
        >>> open_engine("sqlite:///agent.db").dialect.name
        'sqlite'
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "mysql":
        return _open_mysql(parsed, options)
    if parsed.get_backend_name() == "postgresql":
        return _open_postgresql(parsed, options)
    # No pool: a connection that stays open would keep this process from forking.
    connect_args = {"timeout": SQLITE_BUSY_MS / 1000, "factory": ForkSafeConnection}
    engine = keep_to_process(create_engine(parsed, connect_args=connect_args, **{"poolclass": NullPool, **options}))
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def begin_anew(engine: Engine, error: BaseException) -> None:
    """Replace the connections of an engine where what one of them was told makes all of them useless.

    That is so of sessions that know other statements than were prepared on them, and of a server that has become a standby:
    a new connection may lead to another one.

    Args:
        engine: whose new connections take the place of the old ones as they are asked for.
        error: that a statement ended in; any other than those does nothing.
    """
    if is_unprepared(error) and engine not in _unprepared:
        _unprepared.add(engine)
        logger.warning(
            "the ledger's database does not keep prepared statements (%s), and this process uses none from here on. Behind a "
            "pooler of transactions, add prepare_threshold=None to agent_database_url",
            first_line(error),
            extra={"action": "statements_forgotten"},
        )
    if is_unprepared(error) or is_outdated(error) or is_read_only(error):
        engine.dispose()


def parse_url(url: str) -> URL:
    """Return the parts of a ledger's URL, its driver among them.

    Raises:
        ConfigurationError: it cannot be read, or names a database or driver that is not supported.

    Example:
        >>> parse_url("postgresql://host/agents").drivername
        'postgresql+psycopg'
        >>> parse_url("mariadb://host/agents").drivername
        'mysql+pymysql'
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(
            f"agent_database_url must be a SQLAlchemy URL such as sqlite:////var/lib/shop/agent.db, got {url!r}."
        ) from None
    backend, _, driver = parsed.drivername.partition("+")
    if backend in ("file", "memory"):
        raise ConfigurationError(
            f"agent_database_url must name one of {', '.join(sorted(DRIVERS))}, got {backend!r}: a checkpoint commits with the "
            "rest of its step in one transaction, and a store of that kind has none. Write sqlite:///agent.db for one host."
        )
    if backend not in DRIVERS:
        raise ConfigurationError(
            f"agent_database_url must name one of {', '.join(sorted(DRIVERS))}, got {backend!r}."
            + _corrected(parsed, "postgresql" if backend == "pgsql" else nearest(backend, DRIVERS))
        )
    if driver not in ("", DRIVERS[backend]):
        raise ConfigurationError(
            f"agent_database_url must begin with {backend}+{DRIVERS[backend]}:, got {parsed.drivername!r}: "
            f"the ledger is tested with one driver for each database.{_corrected(parsed, backend)}"
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "agent_database_url must name a file, got an SQLite database in memory, which no other process sees."
        )
    if backend in MYSQL:
        if not parsed.database:
            raise ConfigurationError(
                "agent_database_url must name a database, got one of a server alone. Write mysql+pymysql://user@host/database"
            )
        return mysql.with_driver(parsed)
    # SQLAlchemy's own default for PostgreSQL is another driver.
    return parsed if backend == "sqlite" else parsed.set(drivername=f"{backend}+{DRIVERS[backend]}")


def _corrected(url: URL, backend: str | None) -> str:
    """Return what to write in place of a URL whose beginning is wrong, without its password."""
    if backend is None:
        return ""
    name = backend if backend == "sqlite" else f"{backend}+{DRIVERS[backend]}"
    return f" Write {url.set(drivername=name).render_as_string(hide_password=True)}"


def _open_postgresql(url: URL, options: dict[str, Any]) -> Engine:
    try:
        url, told = postgresql.with_driver(url)
        limits = {name: limit for name, limit in _POSTGRESQL_LIMITS.items() if name not in url.query}
        arguments = {**limits, **options.pop("connect_args", {}), **told}
        engine = create_engine(url, isolation_level="READ COMMITTED", connect_args=arguments, **options)
    except ValueError as error:
        raise ConfigurationError(f"agent_database_url {error}") from None
    except ImportError as error:
        raise ConfigurationError(
            f"agent_database_url names PostgreSQL, and its driver is missing here ({error}): {install('postgres')}.",
            install("postgres"),
        ) from error

    def set_up(connection: Any, _record: object) -> None:
        _set_up_postgresql(connection, prepares=engine not in _unprepared)

    keep_to_process(engine)
    event.listen(engine, "connect", set_up)
    return engine


def _open_mysql(url: URL, options: dict[str, Any]) -> Engine:
    arguments = {**mysql.CONNECT_ARGS, **options.pop("connect_args", {})}
    try:
        engine = create_engine(url, connect_args=arguments, **{**mysql.OPTIONS, **options})
    except ImportError as error:
        raise ConfigurationError(
            f"agent_database_url names MySQL or MariaDB, and its driver is missing here ({error}): {install('mysql')}.",
            install("mysql"),
        ) from error
    known = signature(engine.dialect.loaded_dbapi.connect).parameters
    unknown = set(engine.dialect.create_connect_args(url)[1]) - set(known)
    if unknown:
        raise ConfigurationError(
            f"agent_database_url has an option that PyMySQL does not know: {', '.join(sorted(unknown))}. Leave it out, or write "
            f"one of its own, such as ssl_ca.{did_you_mean(min(unknown), known)}"
        )
    keep_to_process(engine)
    event.listen(engine, "connect", _set_up_mysql)
    return engine


def _set_up_mysql(connection: Any, _record: object) -> None:
    try:
        mysql.set_up(connection)
    except UnsuitableServer as error:
        raise ConfigurationError(f"agent_database_url leads to a server that will not do: {error.reason}.") from error


def _set_up_postgresql(connection: Any, *, prepares: bool) -> None:
    try:
        postgresql.set_up(connection, prepares=prepares)
    except UnsuitableServer as error:
        raise ConfigurationError(f"agent_database_url leads to a server that will not do: {error.reason}.") from error
    connection.autocommit = True  # what is set in a transaction that is rolled back is not set
    connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS}")
    connection.autocommit = False


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin by itself
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    use_wal(connection, SQLITE_BUSY_MS / 1000)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    # Readers must not queue for the write lock: boundary.read() says so on its connection.
    reading = connection.get_execution_options().get("agent_reads_only", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
