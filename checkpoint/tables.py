"""The three tables of an SQL store; plain SQLAlchemy metadata, so that migrations can hold them too."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table

from checkpoint.columns import BYTES, IN_TRANSACTIONS, Exact
from checkpoint.record import MAX_NAME_LENGTH


@dataclass(frozen=True)
class Tables:
    """The tables of one prefix.

    Args:
        heads: One row a run: where it stands, and what an append needs to know about that.
        checkpoints: One row a checkpoint: its place, its pointer into the logs, agent_state and metadata.
        messages: One row a message and log.
    """

    heads: Table
    checkpoints: Table
    messages: Table


def build_tables(metadata: MetaData, prefix: str = "checkpoint_") -> Tables:
    """Add the tables to `metadata`.

    Args:
        metadata: Where they are collected, such as the one that Alembic compares with.
        prefix: What every table name begins with.

    Returns:
        The tables.
    """
    return Tables(
        heads=Table(
            f"{prefix}heads",
            metadata,
            Column("run_id", Exact(MAX_NAME_LENGTH), primary_key=True),
            Column("line", Integer, nullable=False),
            Column("seq", Integer, nullable=False),
            # The head's own pointer once more: an append needs one statement here instead of a read and a write.
            Column("segments", BYTES, nullable=False),
            Column("chain", BYTES, nullable=False),
            Column("logs", Integer, nullable=False),  # how many logs the run has started
            Column("ancestry", BYTES, nullable=False),  # which line holds which seq, seen from the head
            **IN_TRANSACTIONS,
        ),
        checkpoints=Table(
            f"{prefix}checkpoints",
            metadata,
            Column("run_id", Exact(MAX_NAME_LENGTH), primary_key=True),
            Column("line", Integer, primary_key=True, autoincrement=False),
            Column("seq", Integer, primary_key=True, autoincrement=False),
            Column("parent_line", Integer),
            Column("step", Exact(MAX_NAME_LENGTH)),
            Column("version", Integer, nullable=False),
            Column("created_at", BigInteger, nullable=False),  # microseconds since 1970, UTC
            Column("message_count", Integer, nullable=False),
            Column("segments", BYTES, nullable=False),
            Column("chain", BYTES, nullable=False),
            Column("head", BYTES, nullable=False),
            Column("checksum", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
        messages=Table(
            f"{prefix}messages",
            metadata,
            Column("run_id", Exact(MAX_NAME_LENGTH), primary_key=True),
            Column("log", Integer, primary_key=True, autoincrement=False),
            Column("position", Integer, primary_key=True, autoincrement=False),
            Column("chain", BYTES, nullable=False),  # the link after this message
            Column("payload", BYTES, nullable=False),
            **IN_TRANSACTIONS,
        ),
    )
