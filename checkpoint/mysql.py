"""MySQL and MariaDB: which servers will do, what a connection of ours is told, and locks by name.

An option of a server that is wrong for us is refused where it cannot be set for one connection, and set where it can.
"""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from checkpoint.columns import MYSQL
from checkpoint.errors import UnsuitableServer
from checkpoint.packets import bound_statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import DBAPIError

DRIVER = "pymysql"

#: The first release of each with SKIP LOCKED and with a collation that compares exactly.
OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0, 17)}

#: Of a statement that lost to a row which is there; to a deadlock; to the limit of a wait; to a snapshot that is older.
DUPLICATE, DEADLOCK, LOCK_WAIT, CHANGED_SINCE = 1062, 1213, 1205, 1020

#: Of a statement that names a table, or a column, that is missing; and a savepoint that is gone with its transaction.
NO_TABLE, NO_COLUMN, NO_SAVEPOINT = 1146, 1054, 1305

#: Of a server that takes no writes: by an option, for this transaction, or by its mode.
READS_ONLY = frozenset({1290, 1792, 1836})

#: Of a user who may not do it: with a table, a column, a routine, or at all.
DENIED = frozenset({1142, 1143, 1227, 1370})

#: Of a prepared statement that is not known, or has to be prepared again. PyMySQL prepares none; a proxy may.
NOT_PREPARED = frozenset({1243, 1615})

#: PyMySQL raises the class of a server that is not there also for what is wrong with a statement: a value that is cut, missing,
#: raised by a trigger, out of range, or against a check.
OF_A_STATEMENT = frozenset({1292, 1364, 1644, 1690, 3819, 4025})

#: How long a statement waits for a row's lock, in seconds. The server's own 50 s outlast a lease.
LOCK_WAIT_SECONDS = 3

#: How long a process that stands still in the middle of a transaction may keep its locks, in seconds.
IDLE_SECONDS = 30

#: How long a statement may be without an answer of a server that is there, in seconds.
ANSWER_SECONDS = 600

#: A server that is gone without a word is noticed after about a lease, as with PostgreSQL's options of these names.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 15_000}

#: Errors for what does not fit, no other engine than asked for; and neither ANSI_QUOTES nor NO_BACKSLASH_ESCAPES.
_SQL_MODE = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

#: What :func:`create_engine` of SQLAlchemy is told; the words of a connection are :func:`set_up`'s. A connection that is
#: older than its idle limit may have been closed by MySQL, which knows no limit for transactions alone.
OPTIONS: dict[str, Any] = {
    "isolation_level": "READ COMMITTED",
    "pool_recycle": IDLE_SECONDS - 5,
}

#: What PyMySQL is told.
CONNECT_ARGS: dict[str, Any] = {
    "charset": "utf8mb4",
    "connect_timeout": 10,
    "read_timeout": ANSWER_SECONDS,
    "write_timeout": ANSWER_SECONDS,
}


def is_mysql(bind: Any) -> bool:
    """Tell whether an engine or a connection is of this family."""
    return bind.dialect.name in MYSQL


def with_driver(url: URL) -> URL:
    """Return a URL of this family with the one driver, by the one name."""
    return url.set(drivername=f"mysql+{DRIVER}")


def number_of(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL's, or None if it is of another database."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def set_up(connection: Any) -> None:
    """Look whether a new connection of PyMySQL leads to a server that will do, and tell it what ours need.

    Its cursors refuse statements that are longer than the server takes.

    Raises:
        UnsuitableServer: it will not do; the connection is closed.
    """
    try:
        product = product_of(str(connection.get_server_info()))
        _notice_a_dead_server(connection)
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'max_allowed_packet')")
            options = {name: value.upper() for name, value in cursor.fetchall()}
            check_options(options)
            cursor.execute(
                f"SET SESSION sql_mode = '{_SQL_MODE}', innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, "
                f"{_idle_limit(product)} = {IDLE_SECONDS}"
            )
        bound_statements(connection, int(options["max_allowed_packet"]))
    except UnsuitableServer:
        connection.close()
        raise


def allow_idle(connection: Connection, seconds: int) -> None:
    """Let the session keep a transaction open for so long in which nothing is sent; it stays so until it is told again."""
    product = "MariaDB" if connection.dialect.is_mariadb else "MySQL"  # type: ignore[attr-defined]
    connection.exec_driver_sql(f"SET SESSION {_idle_limit(product)} = {seconds}")


@contextmanager
def alone(connection: Connection, name: str) -> Iterator[None]:
    """Hold a lock by name in this connection's database, which no transaction gives back.

    Args:
        connection: of MySQL or MariaDB.
        name: of what only one may do at a time.
    """
    database = connection.exec_driver_sql("SELECT DATABASE()").scalar_one()
    key = {"key": blake2b(f"{database}\0{name}".encode(), digest_size=24).hexdigest()}  # all databases share the names
    taken = text("SELECT GET_LOCK(:key, :seconds)"), {**key, "seconds": ANSWER_SECONDS // 10}
    while connection.execute(*taken).scalar_one() != 1:
        pass  # the other one is at work yet
    given_back = text("SELECT RELEASE_LOCK(:key)"), key
    try:
        yield
    except BaseException:
        with suppress(SQLAlchemyError):  # of a connection that was lost, and its lock with it
            connection.execute(*given_back)
        raise
    connection.execute(*given_back)


def product_of(greeting: str) -> str:
    """Return which product a server is, by the version that it greets with.

    Raises:
        UnsuitableServer: it is too old.

    Example:
        >>> product_of("5.5.5-10.11.19-MariaDB-0+deb12u1")
        'MariaDB'
    """
    product = "MariaDB" if "mariadb" in greeting.lower() else "MySQL"
    # MariaDB puts this before its own version, for replicas that are older than it is.
    own = greeting.removeprefix("5.5.5-") if product == "MariaDB" else greeting
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", own)
    if version is None or tuple(map(int, version.groups())) < OLDEST[product]:
        oldest = ".".join(map(str, OLDEST[product]))
        raise UnsuitableServer(
            f"{product} {own} has no SKIP LOCKED, or no collation that compares ids exactly: {product} {oldest} is the "
            "oldest that will do"
        )
    return product


def check_options(options: Mapping[str, str]) -> None:
    """Refuse a server with options that no connection can change.

    Raises:
        UnsuitableServer: it takes no write under READ COMMITTED.
    """
    if options.get("log_bin") == "ON" and options.get("binlog_format") == "STATEMENT":
        raise UnsuitableServer(
            "it writes its binary log by statements, and takes no write under READ COMMITTED then: set binlog_format=ROW "
            "(or MIXED)"
        )


def check_tables(connection: Connection, prefix: str) -> None:
    """Refuse tables that are kept by an engine without transactions.

    Raises:
        UnsuitableServer: there is one.
    """
    kept = text(
        "SELECT table_name, engine FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND engine <> 'InnoDB' ORDER BY table_name"
    )
    for name, engine in connection.execute(kept):
        if name.startswith(prefix) and name != f"{prefix}version":
            raise UnsuitableServer(
                f"table {name} is kept by {engine}, which has no transactions: ALTER TABLE {name} ENGINE=InnoDB"
            )


def _idle_limit(product: str) -> str:
    return "idle_transaction_timeout" if product == "MariaDB" else "wait_timeout"


def _notice_a_dead_server(connection: Any) -> None:
    # PyMySQL has no option for it. Without its socket there is still the limit for an answer.
    its = getattr(connection, "_sock", None)
    if isinstance(its, socket.socket) and its.family != socket.AF_UNIX:
        its.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                its.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
