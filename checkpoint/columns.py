"""Types of columns that hold the same on every database.

MySQL and MariaDB compare texts without case and without spaces at the end, unless a column says otherwise; they hold four
bytes of UTF-8 for a character only where they are told to, and 64 KB in what others call a text or bytes without a limit.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import LargeBinary, String, Text
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.ext.compiler import compiles

#: The names by which SQLAlchemy knows the family; its tables get InnoDB, since no other engine of it has transactions.
MYSQL = frozenset({"mysql", "mariadb"})
IN_TRANSACTIONS: dict[str, Any] = {f"{name}_engine": "InnoDB" for name in sorted(MYSQL)}


class Exact(String):
    """A text of limited length, of which two are equal only if each character is.

    Example:
        >>> Exact(40).length
        40
    """


class Words(Text):
    """A text of any length."""


#: Bytes of any length.
BYTES: LargeBinary = LargeBinary().with_variant(LONGBLOB(), *sorted(MYSQL))


def collation_of(dialect: Any) -> str:
    """Return the collation of MySQL or MariaDB that compares code points, and spaces at the end too."""
    return "utf8mb4_nopad_bin" if dialect.is_mariadb else "utf8mb4_0900_bin"


def _exactly(kind: str, compiler: Any) -> str:
    return f"{kind} CHARACTER SET utf8mb4 COLLATE {collation_of(compiler.dialect)}"


@compiles(Exact, "mysql", "mariadb")
def _exact(element: Exact, compiler: Any, **_kw: Any) -> str:
    return _exactly(f"VARCHAR({element.length})", compiler)


@compiles(Words, "mysql", "mariadb")
def _words(_element: Words, compiler: Any, **_kw: Any) -> str:
    return _exactly("LONGTEXT", compiler)
