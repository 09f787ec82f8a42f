"""Removing and copying: whole threads, what runs made, and everything but the newest.

Each of these locks the spaces that it works on, as a put and a task's writes do, and leaves no row that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, delete, func, insert, select, update

from checkpoint.langgraph.body import Pointer, Stored, load_body
from checkpoint.langgraph.places import Place, thread_key
from checkpoint.langgraph.reader import batches, write_refs
from checkpoint.langgraph.refs import digests, load_refs
from checkpoint.langgraph.tables import Tables


def locked_spaces(connection: Connection, tables: Tables, thread_id: str) -> Sequence[Row[Any]]:
    """Return the spaces of a thread, which nobody else changes until the transaction ends."""
    spaces = tables.spaces
    query = select(spaces).where(spaces.c.thread == thread_key(thread_id)).order_by(spaces.c.space)
    return connection.execute(query.with_for_update()).all()


def delete_thread(connection: Connection, tables: Tables, thread_id: str) -> list[bytes]:
    """Remove everything of a thread; return its spaces."""
    spaces = [bytes(row.space) for row in locked_spaces(connection, tables, thread_id)]
    for space in spaces:
        _delete_space(connection, tables, space)
    return spaces


def delete_runs(connection: Connection, tables: Tables, run_ids: Sequence[str]) -> list[bytes]:
    """Remove the checkpoints that runs made, in all threads; return the spaces that had some."""
    checkpoints, spaces = tables.checkpoints, tables.spaces
    touched: set[bytes] = set()
    for some in batches(list(run_ids)):
        query = select(checkpoints.c.space).where(checkpoints.c.run_id.in_(some)).distinct()
        touched.update(bytes(row.space) for row in connection.execute(query))
    for space in sorted(touched):
        connection.execute(select(spaces.c.head).where(spaces.c.space == space).with_for_update())
        gone: list[str] = []
        for some in batches(list(run_ids)):
            query = select(checkpoints.c.checkpoint_id).where(
                checkpoints.c.space == space, checkpoints.c.run_id.in_(some)
            )
            gone += connection.scalars(query)
        _delete_checkpoints(connection, tables, space, gone)
        _settle(connection, tables, space)
    return sorted(touched)


def keep_latest(connection: Connection, tables: Tables, thread_id: str, delta_channels: Any) -> None:
    """Remove all checkpoints of a thread but each space's head, and those that the head cannot be read without.

    The head keeps its tasks' writes, so that a run that waits for an answer goes on without a second call of a tool that has
    finished.

    Args:
        connection: In whose transaction.
        tables: Where.
        thread_id: The thread.
        delta_channels: Returns, of a row's metadata, the channels of which a checkpoint may hold only what was added.
    """
    checkpoints = tables.checkpoints
    for row in locked_spaces(connection, tables, thread_id):
        if row.head is None:
            continue
        space = bytes(row.space)
        kept = _needed(connection, tables, space, row.head, delta_channels)
        ids = connection.scalars(select(checkpoints.c.checkpoint_id).where(checkpoints.c.space == space)).all()
        _delete_checkpoints(connection, tables, space, [each for each in ids if each not in kept])
        collect(connection, tables, space)


def copy_thread(connection: Connection, tables: Tables, source: str, target: str) -> None:
    """Copy everything of a thread to another one, which must have nothing.

    Raises:
        ValueError: It has something.
    """
    if source == target or locked_spaces(connection, tables, target):
        raise ValueError(f"thread {target!r} must be empty to become a copy of {source!r}; delete it first")
    for row in locked_spaces(connection, tables, source):
        place = Place(target, row.checkpoint_ns)
        values = {**row._asdict(), "space": place.space, "thread": place.thread, "thread_id": target}
        connection.execute(insert(tables.spaces), values)
        for table in tables.of_space():
            others = [column for column in table.c if column.name != "space"]
            here = bindparam("new_space", place.space, type_=table.c.space.type).label("space")
            query = select(here, *others).where(table.c.space == row.space)
            connection.execute(insert(table).from_select(["space", *(column.name for column in others)], query))


def collect(connection: Connection, tables: Tables, space: bytes) -> None:
    """Remove the parts of lists and the large items that no checkpoint and no write of a space refers to."""
    checkpoints, chunks, writes, blobs = tables.checkpoints, tables.chunks, tables.writes, tables.blobs
    ends: dict[int, int] = {}
    live: set[bytes] = set()
    for stored in connection.scalars(select(checkpoints.c.body).where(checkpoints.c.space == space)):
        body = load_body(stored)
        live |= digests([body.rest]) if body.rest else set()
        for value in body.values.values():
            live |= _direct_digests(value)
            if isinstance(value, Pointer):
                for segment in value.segments:
                    ends[segment.log] = max(segment.until, ends.get(segment.log, 0))
    for stored in connection.scalars(select(writes.c.value).where(writes.c.space == space)):
        live |= digests(write_refs(stored))
    dead: list[dict[str, Any]] = []
    query = select(chunks.c.log, chunks.c.position, chunks.c.refs).where(chunks.c.space == space)
    for row in connection.execute(query):
        if row.position < ends.get(row.log, 0):
            live |= digests(load_refs(row.refs))
        else:
            dead.append({"dead_log": row.log, "dead_position": row.position})
    if dead:
        at = (chunks.c.log == bindparam("dead_log"), chunks.c.position == bindparam("dead_position"))
        connection.execute(delete(chunks).where(chunks.c.space == space, *at), dead)
    there = connection.scalars(select(blobs.c.digest).where(blobs.c.space == space))
    _delete_where(connection, blobs, space, "digest", [bytes(digest) for digest in there if bytes(digest) not in live])


def _direct_digests(value: Stored) -> set[bytes]:
    if isinstance(value, Pointer):
        return set()
    return digests([value] if isinstance(value, bytes) else value)


def _needed(connection: Connection, tables: Tables, space: bytes, head: str, delta_channels: Any) -> set[str]:
    """Return the head, and its ancestors as far back as a channel of it has to be put together from its writes."""
    checkpoints = tables.checkpoints
    kept: set[str] = set()
    missing: set[str] | None = None
    at: str | None = head
    while at is not None and at not in kept:
        query = select(checkpoints).where(checkpoints.c.space == space, checkpoints.c.checkpoint_id == at)
        row = connection.execute(query).first()
        if row is None:
            break
        values = load_body(row.body).values
        missing = set(delta_channels(row.metadata)) if missing is None else missing
        missing -= values.keys()
        kept.add(at)
        at = row.parent_id if missing else None
    return kept


def _settle(connection: Connection, tables: Tables, space: bytes) -> None:
    """Let the head of a space be a checkpoint that is there; a space without any goes."""
    spaces, checkpoints = tables.spaces, tables.checkpoints
    here = checkpoints.c.space == space
    at_head = select(spaces.c.head).join(
        checkpoints, (checkpoints.c.space == spaces.c.space) & (checkpoints.c.checkpoint_id == spaces.c.head)
    )
    if connection.execute(at_head.where(spaces.c.space == space)).first() is None:
        newest = connection.scalar(select(func.max(checkpoints.c.checkpoint_id)).where(here))
        if newest is None:
            _delete_space(connection, tables, space)
            return
        connection.execute(update(spaces).where(spaces.c.space == space).values(head=newest))
    collect(connection, tables, space)


def _delete_space(connection: Connection, tables: Tables, space: bytes) -> None:
    for table in (*tables.of_space(), tables.spaces):
        connection.execute(delete(table).where(table.c.space == space))


def _delete_checkpoints(connection: Connection, tables: Tables, space: bytes, ids: Sequence[str]) -> None:
    for table in (tables.writes, tables.checkpoints):
        _delete_where(connection, table, space, "checkpoint_id", ids)


def _delete_where(connection: Connection, table: Table, space: bytes, column: str, keys: Iterable[Any]) -> None:
    for some in batches(list(keys)):
        connection.execute(delete(table).where(table.c.space == space, table.c[column].in_(some)))
