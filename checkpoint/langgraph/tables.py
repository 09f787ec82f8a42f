"""The five tables of the saver; plain SQLAlchemy metadata, so that migrations can hold them too.

A thread and a namespace are one space: every row but that of `spaces` names it by 16 bytes, so that long names cost nothing
and fit each database's limit for keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.mysql import BINARY

from checkpoint.columns import BYTES, IN_TRANSACTIONS, MYSQL, Exact, Words

#: Characters of a checkpoint's, a task's or a run's id. LangGraph's own have 36.
MAX_ID_LENGTH = 128

#: 16 bytes of a digest, as a key.
KEY: LargeBinary = LargeBinary(16).with_variant(BINARY(16), *sorted(MYSQL))

#: An id whose order is that of its code points; PostgreSQL would ask the locale of its database.
ID: String = Exact(MAX_ID_LENGTH).with_variant(String(MAX_ID_LENGTH, collation="C"), "postgresql")


@dataclass(frozen=True)
class Tables:
    """The tables of one prefix.

    Args:
        spaces: One row a thread and namespace: its names, and the checkpoint where it stands.
        checkpoints: One row a checkpoint: everything but what is large.
        writes: One row a write of a task.
        chunks: One row an append to a list: its elements, or the digests of those that are large.
        blobs: One row a large value or element, however often it is used in its space.
    """

    spaces: Table
    checkpoints: Table
    writes: Table
    chunks: Table
    blobs: Table

    def of_space(self) -> tuple[Table, ...]:
        """Return the tables that hold what is in a space."""
        return self.checkpoints, self.writes, self.chunks, self.blobs


@cache
def tables_of(prefix: str) -> Tables:
    """Return the tables of a prefix: the same ones for each saver, so that statements on them are built once."""
    return build_tables(MetaData(), prefix)


def build_tables(metadata: MetaData, prefix: str) -> Tables:
    """Add the tables to `metadata`.

    Args:
        metadata: Where they are collected, such as the one that Alembic compares with.
        prefix: What every table name begins with.

    Returns:
        The tables.
    """
    return Tables(
        spaces=Table(
            f"{prefix}spaces",
            metadata,
            Column("space", KEY, primary_key=True),
            Column("thread", KEY, nullable=False, index=True),  # all namespaces of a thread have the same
            Column("thread_id", Words, nullable=False),
            Column("checkpoint_ns", Words, nullable=False),
            Column("head", ID),  # None: a write came before the first checkpoint
            **IN_TRANSACTIONS,
        ),
        checkpoints=Table(
            f"{prefix}checkpoints",
            metadata,
            Column("space", KEY, primary_key=True),
            Column("checkpoint_id", ID, primary_key=True),
            Column("parent_id", ID),
            Column("run_id", ID, index=True),
            Column("body", BYTES, nullable=False),
            Column("metadata", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
        writes=Table(
            f"{prefix}writes",
            metadata,
            Column("space", KEY, primary_key=True),
            Column("checkpoint_id", ID, primary_key=True),
            Column("task_id", ID, primary_key=True),
            Column("idx", Integer, primary_key=True, autoincrement=False),
            Column("task_path", Words, nullable=False),
            Column("channel", Words, nullable=False),
            Column("value", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
        chunks=Table(
            f"{prefix}chunks",
            metadata,
            Column("space", KEY, primary_key=True),
            Column("log", BigInteger, primary_key=True, autoincrement=False),
            Column("position", Integer, primary_key=True, autoincrement=False),  # of its first element
            Column("refs", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
        blobs=Table(
            f"{prefix}blobs",
            metadata,
            Column("space", KEY, primary_key=True),
            Column("digest", KEY, primary_key=True),
            Column("payload", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
    )
