"""Values that the ledger's database refuses, whatever is tried: told apart from a database that is away or busy.

Sent again they are refused again, and an attempt that gave up without a word would be taken for one whose worker was lost.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DataError, DBAPIError, StatementError

from agent_tasks.errors import NotWritable
from checkpoint import mysql

if TYPE_CHECKING:
    from collections.abc import Iterator

#: PostgreSQL: data exceptions (out of range, not in the encoding …) and what is too large for it (an index, a row).
_CLASSES = ("22", "54")

#: What drivers raise themselves, of what they cannot send.
_OF_THE_DRIVER = (UnicodeEncodeError, OverflowError)


def is_of_values(error: BaseException) -> bool:
    """Tell whether a statement was refused for its values, so that nothing of it was written and nothing ever will be.

    Example:
        >>> is_of_values(OverflowError("Python int too large to convert to SQLite INTEGER")), is_of_values(OSError("away"))
        (True, False)
    """
    if isinstance(error, (DataError, *_OF_THE_DRIVER)):
        return True
    if isinstance(error, DBAPIError):
        sqlstate = getattr(error.orig, "sqlstate", None)
        return (sqlstate is not None and sqlstate[:2] in _CLASSES) or mysql.number_of(error) in mysql.OF_A_STATEMENT
    return isinstance(error, StatementError) and isinstance(error.orig, (TypeError, ValueError, ArithmeticError))


@contextmanager
def values_refused(run_id: str, name: str) -> Iterator[None]:
    """Turn the refusal of a value into this package's words.

    Args:
        run_id: of the run that it was to be written of.
        name: of the boundary.

    Raises:
        NotWritable: so it is; nothing was written.
    """
    try:
        yield
    except Exception as error:
        if not is_of_values(error):
            raise
        said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
        raise NotWritable(
            f"run {run_id!r}: the ledger's database refused a value at {name!r}, and would again: {said[0]}. Nothing was written."
        ) from error
