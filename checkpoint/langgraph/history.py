"""What channels got on the way to a checkpoint, for LangGraph's delta channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Row, literal, select

from checkpoint.langgraph.body import Stored
from checkpoint.langgraph.reader import Found, Loads, Values, checkpoints_query, found
from checkpoint.langgraph.tables import Tables

#: Ancestors that one query follows. A delta channel has a value to start from about so often.
_ANCESTORS = 128


def delta_history(
    connection: Connection, tables: Tables, space: bytes, checkpoint_id: str, channels: Sequence[str], loads: Loads
) -> dict[str, dict[str, Any]]:
    """Return, for each channel, the writes since the nearest ancestor that has a value, oldest first, and that value.

    Only ancestors count, so that a fork gets nothing of the branch that it left; the checkpoint's own writes are pending.
    An ancestor's own writes come after the value that it has.
    """
    writes: dict[str, list[tuple[str, str, Any]]] = {channel: [] for channel in channels}
    history: dict[str, dict[str, Any]] = {channel: {"writes": writes[channel]} for channel in channels}
    remaining = set(channels)
    seen = {checkpoint_id}
    at = _parent(connection, tables, space, checkpoint_id)
    while at is not None and at not in seen and remaining:
        page = found(connection, tables, _ancestors(connection, tables, space, at))
        if not page:
            break
        values = Values(connection, tables, _wanted(space, page, remaining))
        for each in page:
            seen.add(each.row.checkpoint_id)
            for write in reversed(each.writes):
                if write.channel in remaining:
                    value = values.written(space, write.value, loads, each.where)
                    writes[write.channel].append((write.task_id, write.channel, value))
            for channel in sorted(remaining & each.body.values.keys()):
                seed, _ = values.value(space, each.body.values[channel], loads, each.where)
                history[channel]["seed"] = seed
                remaining.discard(channel)
        at = page[-1].row.parent_id
    for collected in writes.values():
        collected.reverse()
    return history


def _wanted(space: bytes, page: list[Found], channels: set[str]) -> list[tuple[bytes, list[Stored], list[bytes]]]:
    """Return what has to be read for a page: of each channel its writes as far as its first value, and that."""
    stored: list[Stored] = []
    written: list[bytes] = []
    left = set(channels)
    for each in page:
        written += [write.value for write in each.writes if write.channel in left]
        stored += [each.body.values[channel] for channel in left & each.body.values.keys()]
        left -= each.body.values.keys()
    return [(space, stored, written)]


def _parent(connection: Connection, tables: Tables, space: bytes, checkpoint_id: str) -> str | None:
    checkpoints = tables.checkpoints
    query = select(checkpoints.c.parent_id)
    return connection.scalar(query.where(checkpoints.c.space == space, checkpoints.c.checkpoint_id == checkpoint_id))


def _ancestors(connection: Connection, tables: Tables, space: bytes, start: str) -> list[Row[Any]]:
    """Return a checkpoint and its ancestors, nearest first."""
    checkpoints = tables.checkpoints
    columns = (checkpoints.c.space, checkpoints.c.checkpoint_id, checkpoints.c.parent_id)
    line = (
        select(*columns, literal(1, Integer).label("depth"))
        .where(checkpoints.c.space == space, checkpoints.c.checkpoint_id == start)
        .cte("line", recursive=True)
    )
    older = (
        select(*columns, line.c.depth + 1)
        .join_from(
            line, checkpoints, (checkpoints.c.space == line.c.space) & (checkpoints.c.checkpoint_id == line.c.parent_id)
        )
        .where(line.c.depth < _ANCESTORS)
    )
    line = line.union_all(older)
    query = checkpoints_query(tables).join(
        line, (line.c.space == checkpoints.c.space) & (line.c.checkpoint_id == checkpoints.c.checkpoint_id)
    )
    return list(connection.execute(query.order_by(line.c.depth)))
