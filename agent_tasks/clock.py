"""The one clock (I10): the database's wall clock for everything shared, a boot clock for local deadlines."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from datetime import timedelta

    from sqlalchemy import BindParameter, ColumnElement

MICROSECONDS = 1_000_000

#: The ends of Python's calendar, in seconds since 1970: the years 1 and 9999.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799

#: Child processes of a test inherit a moved clock through this variable (seconds).
OFFSET_VARIABLE = "AGENT_CLOCK_OFFSET_SECONDS"

# CLOCK_MONOTONIC stands still while a host sleeps, and a deadline must not.
_LOCAL_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class _WallClock(FunctionElement[int]):
    """The database's wall clock in microseconds; not the start of the transaction."""

    type = BigInteger()
    inherit_cache = True


@compiles(_WallClock, "postgresql")
def _postgresql(_element: _WallClock, _compiler: Any, **_kw: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


@compiles(_WallClock, "sqlite")
def _sqlite(_element: _WallClock, _compiler: Any, **_kw: Any) -> str:
    # 'now' has milliseconds, datetime('now') whole seconds, and unixepoch('subsec') needs SQLite 3.42.
    return "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"


@compiles(_WallClock, "mysql", "mariadb")
def _mysql(_element: _WallClock, _compiler: Any, **_kw: Any) -> str:
    # The statement's start. SYSDATE(6) is the moment itself, in the session's time zone and without the use of an index;
    # so a statement that may wait for a row's lock gets it from one before (see `Runs.claim`).
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


class Clock:
    """Tells the time in SQL and locally; tests move it with :meth:`advance`.

    Example:
        >>> clock = Clock()
        >>> before = clock.local()
        >>> clock.advance(3600)
        >>> clock.local() - before >= 3600
        True
    """

    def __init__(self, offset_seconds: float | None = None) -> None:
        if offset_seconds is None:
            offset_seconds = float(os.environ.get(OFFSET_VARIABLE, "0"))
        self._offset_seconds = offset_seconds

    def now(self) -> ColumnElement[int]:
        """Return the SQL expression of the present, in microseconds since 1970."""
        return self.in_(0)

    def in_(self, seconds: float) -> ColumnElement[int]:
        """Return the SQL expression of the moment ``seconds`` from now."""
        return self.moment(bindparam(None, self.offset(seconds), BigInteger))

    @staticmethod
    def moment(offset: BindParameter[int]) -> ColumnElement[int]:
        """Return the SQL expression of a moment for a statement that is built once; :meth:`offset` gives the parameter."""
        return _WallClock() + offset

    def offset(self, seconds: float) -> int:
        """Return what the parameter of :meth:`moment` is for the moment ``seconds`` from now."""
        return int((self._offset_seconds + seconds) * MICROSECONDS)

    def local(self) -> float:
        """Return seconds on a clock that runs on while the host sleeps; for deadlines within one host only."""
        seconds = time.monotonic() if _LOCAL_CLOCK is None else time.clock_gettime(_LOCAL_CLOCK)
        return seconds + self._offset_seconds

    def pause(self, seconds: float) -> None:
        """Let so many seconds pass before something is tried again."""
        time.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Move this clock, for tests."""
        self._offset_seconds += seconds


def microseconds(duration: timedelta | None) -> int:
    """Return a duration as whole microseconds; none is 0."""
    return 0 if duration is None else int(duration.total_seconds() * MICROSECONDS)


def moment(microseconds: int | None) -> str | None:
    """Return a time of the ledger as ISO 8601 in UTC; of one that no calendar of Python reaches, the nearest that it does.

    A row that is there is shown, whatever stands in it: one raised error would hide all other rows of a listing.

    Example:
        >>> moment(1_700_000_000_000_000), moment(10**18)
        ('2023-11-14T22:13:20Z', '9999-12-31T23:59:59Z')
    """
    if microseconds is None:
        return None
    at = datetime.fromtimestamp(min(max(microseconds // MICROSECONDS, _FIRST_SECOND), _LAST_SECOND), timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
