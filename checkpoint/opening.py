"""From a URL to a store."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from checkpoint import mysql, postgresql
from checkpoint.columns import MYSQL
from checkpoint.errors import UnknownStore
from checkpoint.file import FileStore
from checkpoint.memory import MemoryStore
from checkpoint.sql import SqlStore
from checkpoint.sqlite import use_wal

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from checkpoint.store import CheckpointStore

#: How long a process waits for another one's write to an SQLite file, in seconds.
BUSY_TIMEOUT_SECONDS = 30

_EXAMPLES = {
    "sqlite": "sqlite:///agent.db",
    "postgresql": "postgresql://user@host/database",
    "postgresql+psycopg": "postgresql+psycopg://user@host/database",
    **{
        name: f"{name}://user@host/database"
        for name in ("mysql", "mariadb", f"mysql+{mysql.DRIVER}", f"mariadb+{mysql.DRIVER}")
    },
    "file": "file:///directory",
    "memory": "memory://",
}


def open_store(url: str, prefix: str | None = None) -> CheckpointStore:
    """Open the store that a URL names, and make its folder or its tables if they are missing.

    Args:
        url: ``memory://``, or ``memory://name`` for one that several parts of a process open; ``file:///directory``;
            ``sqlite:///path``, ``postgresql://…`` (psycopg 3 in both spellings), or ``mysql://…`` and ``mariadb://…``
            (PyMySQL, which may be named, too).
        prefix: What the tables' names begin with, in a database; ``checkpoint_`` if None.

    Returns:
        The store; close it when done, or use it in a ``with`` statement.

    Raises:
        UnknownStore: The URL names no store; the nearest scheme is suggested.
        UnsuitableServer: No store keeps its promises on that server.
        UnsuitableStore: That store does not keep its promises here.
        StoreUnavailable: The folder cannot be made.

    Example:
        >>> from checkpoint import CheckpointState, open_store
        >>> with open_store("sqlite:///" + directory + "/open.db") as store:
        ...     store.save(CheckpointState("order-8", 0))
        ...     store.head("order-8").seq
        0
    """
    scheme = str(url).partition(":")[0].lower()
    if scheme in ("memory", "file"):
        if prefix is not None:
            raise UnknownStore(url, "a prefix is for the tables of a database; leave it out")
        return _memory(url) if scheme == "memory" else FileStore(directory_of(url))
    store = _OwnedSqlStore(_engine(url), "checkpoint_" if prefix is None else prefix)
    store.create_schema()
    return store


def _memory(url: str) -> MemoryStore:
    parts = urlsplit(url)
    if not url.lower().startswith("memory://") or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UnknownStore(url, "such a URL is memory:// or memory://name")
    return MemoryStore(parts.netloc or None)


def directory_of(url: str) -> Path:
    """Return the folder of a file store.

    Args:
        url: ``file:///directory``.

    Raises:
        UnknownStore: It is no such URL.

    Example:
        >>> directory_of("file:///srv/my%20agents")
        PosixPath('/srv/my agents')
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not url.lower().startswith("file://"):
        raise UnknownStore(url, f"a folder is named with three slashes, as in {_EXAMPLES['file']}")
    if parts.query or parts.fragment:
        raise UnknownStore(url, "it has no options; write ? and # in a path as %3F and %23")
    if path in ("", "/") or "\x00" in path:
        raise UnknownStore(url, f"it names no folder; one looks like {_EXAMPLES['file']}")
    return Path(path)


class _OwnedSqlStore(SqlStore):
    """A store whose engine nobody else uses."""

    def close(self) -> None:
        self._engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UnknownStore(str(url), f"a URL looks like {', '.join(_EXAMPLES.values())}") from error
    shown = parsed.render_as_string(hide_password=True)
    if parsed.drivername not in _EXAMPLES:
        near = get_close_matches(parsed.drivername, _EXAMPLES, n=1, cutoff=0.75)
        known = f"did you mean {_EXAMPLES[near[0]]}?" if near else f"schemes are {', '.join(_EXAMPLES)}"
        raise UnknownStore(shown, known)
    if parsed.drivername == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise UnknownStore(shown, f"it names no file and would forget everything; use {_EXAMPLES['sqlite']}")
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        return engine
    of_mysql = parsed.get_backend_name() in MYSQL
    try:
        if not of_mysql:
            parsed, told = postgresql.with_driver(parsed)
            engine = create_engine(parsed, connect_args=told)
            event.listen(engine, "connect", _prepare_postgresql)
            return engine
        engine = create_engine(mysql.with_driver(parsed), connect_args=mysql.CONNECT_ARGS, **mysql.OPTIONS)
    except ValueError as error:
        raise UnknownStore(shown, f"it {error}") from None
    except ImportError as error:
        driver = "PyMySQL" if of_mysql else "psycopg[binary]"
        raise UnknownStore(shown, f"its driver is missing; install {driver}") from error
    event.listen(engine, "connect", _prepare_mysql)
    return engine


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    postgresql.set_up(connection)


def _prepare_mysql(connection: Any, _record: Any) -> None:
    mysql.set_up(connection)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # WAL lets readers go on beside the writer; FULL keeps an acknowledged commit through a power cut.
    use_wal(connection, BUSY_TIMEOUT_SECONDS)
    connection.execute("PRAGMA synchronous=FULL")
