"""From what was read to LangGraph's tuples, and which of them a list has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from sqlalchemy import Row, tuple_

from checkpoint.langgraph.known import Known
from checkpoint.langgraph.lists import Listed
from checkpoint.langgraph.places import Place, checked_id, place_of
from checkpoint.langgraph.reader import Found, Loads, Values, checkpoints_query
from checkpoint.langgraph.tables import Tables
from checkpoint.sql import SqlStore

_PAGE_ROWS = 20  # of a list of checkpoints; no connection is held while the caller looks at a page

_MISSING = object()


def tuple_of(one: Found, values: Values, loads: Loads, kind: type[str]) -> tuple[CheckpointTuple, Known]:
    """Return a checkpoint as LangGraph has it, and what a put that follows it has to know.

    Args:
        one: The checkpoint.
        values: What it refers to.
        loads: Makes a value of an item.
        kind: `Latest` or `Addressed`, for its id.
    """
    row, body, space = one.row, one.body, bytes(one.row.space)
    channel_values: dict[str, Any] = {}
    lists: dict[str, Listed] = {}
    for channel, stored in body.values.items():
        channel_values[channel], known = values.value(space, stored, loads, one.where)
        if known is not None:
            lists[channel] = known
    rest = values.value(space, body.rest, loads, one.where)[0] if body.rest else {}
    checkpoint = {
        "v": body.v,
        "id": row.checkpoint_id,
        "ts": body.ts,
        "channel_values": channel_values,
        "channel_versions": dict(body.versions),
        "versions_seen": body.seen,
        "updated_channels": body.updated,
        **rest,
    }
    place = Place(row.thread_id, row.checkpoint_ns)
    result = CheckpointTuple(
        place.config(kind(row.checkpoint_id)),
        cast("Checkpoint", checkpoint),
        loads(bytes(row.metadata)),
        None if row.parent_id is None else place.config(row.parent_id),
        [(write.task_id, write.channel, values.written(space, write.value, loads, one.where)) for write in one.writes],
    )
    return result, Known(row.checkpoint_id, body.versions, body.values, lists)


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Tell whether metadata has all that is wanted."""
    return all(metadata.get(key, _MISSING) == value for key, value in (wanted or {}).items())


def pages(
    store: SqlStore, tables: Tables, config: RunnableConfig | None, before: RunnableConfig | None
) -> Iterator[Sequence[Row[Any]]]:
    """Yield the rows of a list, newest first; see `CheckpointSaver.list`."""
    checkpoints, spaces = tables.checkpoints, tables.spaces
    query = checkpoints_query(tables)
    if config is not None:
        place = place_of(config)
        if "checkpoint_ns" in config["configurable"]:
            query = query.where(checkpoints.c.space == place.space)
        else:
            query = query.where(spaces.c.thread == place.thread)
        if place.checkpoint_id is not None:
            query = query.where(checkpoints.c.checkpoint_id == place.checkpoint_id)
    bound = ((before or {}).get("configurable") or {}).get("checkpoint_id")
    if bound:
        query = query.where(checkpoints.c.checkpoint_id < checked_id("before", bound))
    query = query.order_by(checkpoints.c.checkpoint_id.desc(), checkpoints.c.space.desc()).limit(_PAGE_ROWS)
    rows: Sequence[Row[Any]] = ()
    while True:
        older = query
        if rows:
            last = (rows[-1].checkpoint_id, rows[-1].space)
            older = query.where(tuple_(checkpoints.c.checkpoint_id, checkpoints.c.space) < last)
        with store._snapshot(None) as own:
            rows = own.execute(older).all()
        yield rows
        if len(rows) < _PAGE_ROWS:
            return
