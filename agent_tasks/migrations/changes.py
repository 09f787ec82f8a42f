"""Changes of tables that may be begun again: MySQL commits each by itself, so that an upgrade may end in the middle.

Where a transaction holds all of an upgrade, nothing is there yet and nothing is looked for.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from checkpoint.columns import IN_TRANSACTIONS
from checkpoint.mysql import is_mysql


def create_table(name: str, *columns: Any) -> None:
    """Create a table, unless an upgrade that was cut off has."""
    looker = _looker()
    if looker is None or not looker.has_table(name):
        op.create_table(name, *columns, **IN_TRANSACTIONS)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column, unless it was."""
    looker = _looker()
    if looker is None or column.name not in {there["name"] for there in looker.get_columns(table)}:
        op.add_column(table, column)


def create_index(name: str, table: str, columns: list[str], **options: Any) -> None:
    """Create an index, unless it is there."""
    looker = _looker()
    if looker is None or name not in {there["name"] for there in looker.get_indexes(table)}:
        op.create_index(name, table, columns, unique=False, **options)


def _looker() -> Any:
    connection = op.get_bind()
    return sa.inspect(connection) if is_mysql(connection) else None
