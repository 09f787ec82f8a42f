"""What a driver's error says about its statement: whether it happened, and whether another try may do.

PostgreSQL answers a statement with a result or with an error. With an error (``ERROR``, not the end of its session) the
transaction is aborted: nothing of it happened, and nothing of it ever will. That is known, so doing the same work again is
no second try of anything (I5): every compare-and-set finds the rows as they were. Where no answer came at all (a
connection that broke at a COMMIT) nobody knows, and it stays so: see ``LedgerUnavailable.ambiguous``.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from checkpoint import mysql

#: PostgreSQL: a lock that was waited for was not given.
_NOT_AVAILABLE = "55P03"

#: PostgreSQL: serialization failure, deadlock, lock not available.
_LOCK_SQLSTATES = frozenset({"40001", "40P01", _NOT_AVAILABLE})

#: MySQL: the same three. A wait that took too long has undone its statement alone; a whole transaction is begun anew here.
_LOCK_NUMBERS = frozenset({mysql.CHANGED_SINCE, mysql.DEADLOCK, mysql.LOCK_WAIT})

#: PostgreSQL: a prepared statement is not there, or is there already.
_PREPARED_SQLSTATES = frozenset({"26000", "42P05"})

#: What psycopg's names of prepared statements begin with; another name is that of a user's own PREPARE.
_PREPARED_NAME = "_pg3_"

#: PostgreSQL: a feature that is not supported, such as a prepared statement whose columns were changed since; and the function of
#: the server that says so of these. The text may be in any language.
_NOT_SUPPORTED, _OF_PLANS = "0A000", "RevalidateCachedQuery"

#: PostgreSQL: a statement was ended, by its time limit.
_OUT_OF_TIME = "57014"

#: PostgreSQL: a write in a transaction that only reads, as on a standby.
READ_ONLY = "25006"

#: PostgreSQL: the role may not do it.
DENIED = "42501"

#: PostgreSQL: an error of the server itself, such as a damaged index.
_INTERNAL = "XX"

#: PostgreSQL: a disk, a memory or another limit is full.
_INSUFFICIENT = "53"

#: SQLite, of a file that it cannot work with at all.
_BROKEN_FILE = ("malformed", "file is not a database")


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE that PostgreSQL answered with, or None if this is no answer of its."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def lost_a_race(error: DBAPIError) -> bool:
    """Tell whether a transaction failed only because others were at work, so that running it again may do."""
    number = mysql.number_of(error)
    if number is not None:
        return number in _LOCK_NUMBERS
    sqlstate = sqlstate_of(error)
    if sqlstate is not None:
        return sqlstate in _LOCK_SQLSTATES
    text = str(error.orig)
    return "database is locked" in text or "database table is locked" in text


def is_held(error: DBAPIError) -> bool:
    """Tell whether a statement waited in vain for what another transaction holds; SQLite's writers wait for each other anyhow."""
    return sqlstate_of(error) == _NOT_AVAILABLE or mysql.number_of(error) == mysql.LOCK_WAIT


def is_unprepared(error: BaseException | None) -> bool:
    """Tell whether a session did not know a statement that psycopg had prepared, or knew another one by its name.

    Another connection took the place of the one that prepared it, as behind a pooler, or somebody said DEALLOCATE ALL.
    The statement was not begun.
    """
    if not isinstance(error, DBAPIError):
        return False
    known = sqlstate_of(error) in _PREPARED_SQLSTATES and _PREPARED_NAME in str(error.orig)
    return known or mysql.number_of(error) in mysql.NOT_PREPARED


def is_outdated(error: BaseException | None) -> bool:
    """Tell whether a table was changed since a statement was prepared, which was not begun for it."""
    if not isinstance(error, DBAPIError) or sqlstate_of(error) != _NOT_SUPPORTED:
        return False
    where = getattr(getattr(error.orig, "diag", None), "source_function", None)
    return where == _OF_PLANS or "cached plan" in str(error.orig)


def runs_again(error: DBAPIError) -> bool:
    """Tell whether the same work may do at once, since nothing of it happened and the cause is gone or goes away."""
    return lost_a_race(error) or is_unprepared(error) or is_outdated(error)


def is_read_only(error: BaseException | None) -> bool:
    """Tell whether a server takes no writes, such as one that is a standby since a failover: another one may be the first now."""
    if not isinstance(error, DBAPIError):
        return False
    return sqlstate_of(error) == READ_ONLY or mysql.number_of(error) in mysql.READS_ONLY


def is_refused(error: BaseException | None) -> bool:
    """Tell whether a server refused a statement for a reason that lies with the server: it did not happen.

    This is true of a COMMIT, too: what is refused there is rolled back.
    """
    if not isinstance(error, DBAPIError):
        return False
    if is_read_only(error) or sqlstate_of(error) == DENIED or mysql.number_of(error) in mysql.DENIED:
        return True
    # A session that ends with the same words (FATAL) may have been committing.
    full = (sqlstate_of(error) or "").startswith(_INSUFFICIENT)
    return full and getattr(getattr(error.orig, "diag", None), "severity_nonlocalized", None) == "ERROR"


def is_out_of_time(error: BaseException | None) -> bool:
    """Tell whether a statement was ended by its time limit, so that nothing of it happened."""
    return sqlstate_of(error) == _OUT_OF_TIME


def is_no_answer(error: BaseException | None) -> bool:
    """Tell whether a database is away, or cannot work: whether the statement happened, only the moment tells."""
    if isinstance(error, (OperationalError, InterfaceError, PoolTimeout)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    broken = (sqlstate_of(error) or "").startswith(_INTERNAL) or any(sign in str(error.orig) for sign in _BROKEN_FILE)
    return broken or error.connection_invalidated


def is_schema_missing(error: DBAPIError) -> bool:
    """Tell whether a statement found a table or a column missing."""
    if not isinstance(error, (ProgrammingError, OperationalError)):
        return False
    if sqlstate_of(error) in {"42P01", "42703"}:  # undefined table, undefined column
        return True
    if mysql.number_of(error) in {mysql.NO_TABLE, mysql.NO_COLUMN}:
        return True
    return "no such table" in str(error.orig) or "no such column" in str(error.orig)


def first_line(error: BaseException) -> str:
    """Return what a driver said, without the lines that follow."""
    if isinstance(error, DBAPIError) and mysql.number_of(error) is not None and len(error.orig.args) > 1:  # type: ignore[union-attr]
        number, said = error.orig.args[:2]  # type: ignore[union-attr]
        return f"{said} ({number})".splitlines()[0]
    return (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
