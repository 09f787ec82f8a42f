"""Inserts that may meet a row which is there, on each database in its own words.

MySQL has no ``ON CONFLICT DO NOTHING``. ``INSERT IGNORE`` would cut values that do not fit, and of an update that changes
nothing the count of rows does not say whether one was written. So there a plain insert fails on the row's key, which
undoes that statement and nothing else of its transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import case, insert
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from checkpoint.columns import MYSQL
from checkpoint.mysql import DUPLICATE, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

#: Rows in one statement of MySQL's, and the bytes of their values, which take twice their size in it. The greatest length of a
#: statement is the server's to say; this is less than any server's.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 100, 1 << 18

#: What each changed column gets: its name and the new value, in order.
Changes = list[tuple[str, Any]]


def new_row(table: Table, dialect: str) -> Any:
    """Return the insert of a row that changes nothing where its key is taken; :func:`was_new` carries it out.

    Example:
        >>> from sqlalchemy import Column, Integer, MetaData, Table
        >>> print(new_row(Table("t", MetaData(), Column("id", Integer, primary_key=True)), "sqlite"))
        INSERT INTO t (id) VALUES (?) ON CONFLICT DO NOTHING
    """
    if dialect in MYSQL:
        return insert(table)
    return (postgresql if dialect == "postgresql" else sqlite).insert(table).on_conflict_do_nothing()


def was_new(connection: Connection, statement: Any, parameters: Mapping[str, Any] | None = None) -> bool:
    """Carry out an insert of :func:`new_row`; False if the key, or another unique one, is taken."""
    options = {"preserve_rowcount": True}
    try:
        return connection.execute(statement, parameters, execution_options=options).rowcount == 1
    except IntegrityError as error:
        if connection.dialect.name not in MYSQL or number_of(error) != DUPLICATE:
            raise
        return False


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    changes: Callable[[Any], Changes],
    where: ColumnElement[bool] | None = None,
) -> None:
    """Insert rows, and change those whose primary key is taken.

    Args:
        connection: whose transaction is the caller's.
        table: that gets them.
        rows: their columns; of a single row some may be expressions.
        changes: is given the columns of the row that was to be inserted. MySQL changes them one after another, and a value
            sees what those before it changed: so what a column stood at is asked for before it is changed.
        where: only rows of which this holds are changed; what it asks about comes last in the changes.
    """
    if connection.dialect.name in MYSQL:
        for some in _parts(rows):
            writing = mysql.insert(table).values(some)
            changed = changes(writing.inserted)
            if where is not None:
                changed = [(name, case((where, value), else_=table.c[name])) for name, value in changed]
            connection.execute(writing.on_duplicate_key_update(changed))
        return
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    other = dialect.insert(table)
    key = list(table.primary_key)
    other = other.on_conflict_do_update(index_elements=key, set_=dict(changes(other.excluded)), where=where)
    if len(rows) == 1:
        connection.execute(other.values(rows[0]))
    else:
        connection.execute(other, list(rows))


def _parts(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the rows that one statement takes; a row that is long by itself is alone."""
    some: list[Mapping[str, Any]] = []
    length = 0
    for row in rows:
        its = sum(len(value) for value in row.values() if isinstance(value, (bytes, str)))
        if some and (len(some) == _ROWS_AT_ONCE or length + its > _BYTES_AT_ONCE):
            yield some
            some, length = [], 0
        some.append(row)
        length += its
    if some:
        yield some
