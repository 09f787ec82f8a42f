"""PostgreSQL: what a URL may say to psycopg, which databases will do, and what a connection of ours is told."""

from __future__ import annotations

import secrets
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from checkpoint.errors import UnsuitableServer

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

DRIVER = "psycopg"

#: Psycopg's own option, and no libpq's: after how many times a statement is prepared; None never prepares any.
PREPARE_THRESHOLD = "prepare_threshold"

#: What texts are kept in. Another encoding has no place for some letter of an id or of a message.
_ENCODING = "UTF8"


def with_driver(url: URL) -> tuple[URL, dict[str, Any]]:
    """Return a URL with the one driver, and what psycopg is told beside it.

    Texts go to and fro as UTF-8, whatever the role or the URL says.

    Args:
        url: of PostgreSQL.

    Raises:
        ValueError: it has an option that psycopg does not know, or one with a wrong value; the text goes on after the
            name of the URL.
        ImportError: psycopg is not there.

    Example:
        >>> from sqlalchemy import make_url
        >>> url, told = with_driver(make_url("postgresql://host/agents?sslmode=require&prepare_threshold=None"))
        >>> url.render_as_string(), told
        ('postgresql+psycopg://host/agents?sslmode=require', {'client_encoding': 'utf8', 'prepare_threshold': None})
    """
    from psycopg.pq import Conninfo  # an extra, which is there where there is such a URL

    told: dict[str, Any] = {"client_encoding": "utf8"}
    if PREPARE_THRESHOLD in url.query:
        told[PREPARE_THRESHOLD] = _threshold(url.query[PREPARE_THRESHOLD])
        url = url.difference_update_query([PREPARE_THRESHOLD])
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    unknown = sorted(set(url.query) - known)
    if unknown:
        near = get_close_matches(unknown[0], {*known, PREPARE_THRESHOLD}, n=1, cutoff=0.75)
        raise ValueError(
            f"has an option that psycopg does not know: {', '.join(unknown)}. Leave it out, or write one of libpq's, such as "
            "sslmode." + "".join(f" Did you mean {word!r}?" for word in near)
        )
    return url.set(drivername=f"postgresql+{DRIVER}"), told


def _threshold(said: object) -> int | None:
    if isinstance(said, str):
        if said.lower() == "none":
            return None
        if said.isdecimal():
            return int(said)
    raise ValueError(
        f"has {PREPARE_THRESHOLD}={said!r}, which must be a whole number, or None for no prepared statements at all."
    )


def set_up(connection: Any, *, prepares: bool = True) -> None:
    """Look whether a new connection of psycopg leads to a database that will do, and keep its statements its own.

    Psycopg counts the statements of each connection from 0 for their names. Behind a pooler that gives the transactions of
    many clients to one session, two clients would have the same name for different statements there, and one could carry
    out the other's. Counted from a random number, a name is one client's: there it is refused, and nothing happens.

    Args:
        connection: of psycopg.
        prepares: False prepares no statement on it, whatever its URL says.

    Raises:
        UnsuitableServer: the database will not do; the connection is closed.
    """
    encoding = connection.info.parameter_status("server_encoding")  # None: a pooler keeps it to itself
    if encoding not in (None, _ENCODING):
        connection.close()
        raise UnsuitableServer(
            f"its database keeps texts as {encoding}, where not every letter of an id or a message has a place: make "
            f"another one with CREATE DATABASE … ENCODING '{_ENCODING}' TEMPLATE template0"
        )
    statements: Any = getattr(connection, "_prepared", None)
    if prepares and hasattr(statements, "_prepared_idx"):
        statements._prepared_idx = secrets.randbits(48)
    else:
        connection.prepare_threshold = None
