"""The writes of a put and of a task: one statement on PostgreSQL, one transaction elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from checkpoint.inserts import new_row, upsert, was_new
from checkpoint.langgraph.lists import Chunk
from checkpoint.langgraph.places import Place
from checkpoint.langgraph.refs import Blobs, dump_blob
from checkpoint.langgraph.tables import Tables
from checkpoint.mysql import CHANGED_SINCE, DEADLOCK, number_of


class Expects(Enum):
    """What a put expects of its space."""

    PARENT_IS_HEAD = "its parent is the head"
    EMPTY = "it has no checkpoint"
    ANYTHING = "nothing"


@dataclass(frozen=True)
class Put:
    """A checkpoint that is to be written, with all that it refers to.

    Args:
        place: Its thread and namespace, and the parent as checkpoint_id.
        expects: What is expected of the space.
        row: Of the checkpoint, without its space.
        chunks: Appends to lists.
        blobs: Large items.
    """

    place: Place
    expects: Expects
    row: dict[str, Any]
    chunks: list[Chunk] = field(default_factory=list)
    blobs: Blobs = field(default_factory=dict)


def write_put(connection: Connection, tables: Tables, put: Put) -> bool:
    """Write a checkpoint and move its space's head to it, if the space is as expected; return whether it was.

    The same checkpoint again changes its row and moves no head.
    """
    space = put.place.space
    if connection.dialect.name == "postgresql":
        row = {f"row_{name}": value for name, value in put.row.items()}
        values = {
            **_prefixed(_names(put.place)),
            **row,
            "parent": put.place.checkpoint_id,
            **_arrays(put.chunks, put.blobs),
        }
        return bool(connection.scalar(_put(tables, put.expects), values))
    if not _move(connection, tables, put):
        return False
    upsert(connection, tables.checkpoints, [{"space": space, **put.row}], _changes)
    if put.chunks:
        names = ("log", "position", "refs")
        connection.execute(
            insert(tables.chunks), [{"space": space, **dict(zip(names, chunk, strict=True))} for chunk in put.chunks]
        )
    _add_blobs(connection, tables, space, put.blobs)
    return True


def write_writes(
    connection: Connection, tables: Tables, place: Place, rows: list[dict[str, Any]], blobs: Blobs, *, again: bool
) -> None:
    """Write what a task wrote.

    Args:
        connection: In whose transaction.
        tables: Where.
        place: The checkpoint that the task runs on; it may not be there yet.
        rows: Without their space and checkpoint.
        blobs: Large items.
        again: Whether a row that is there gets the new value, and not the other way round.
    """
    where = {"space": place.space, "checkpoint_id": place.checkpoint_id}
    if connection.dialect.name == "postgresql":
        columns = {f"{name}s": [row[name] for row in rows] for name in rows[0]}
        values = {**_prefixed(_names(place)), "at": place.checkpoint_id, **columns, **_arrays([], blobs)}
        while not connection.scalar(_writes(tables, again), values):
            pass  # the thread was deleted between two parts of the statement; the next time it is a new one
        return
    _hold(connection, tables, place)
    full = [{**where, **row} for row in rows]
    if again:
        upsert(connection, tables.writes, full, lambda new: [(name, new[name]) for name in _WRITTEN])
    else:
        statement = new_row(tables.writes, connection.dialect.name)
        for row in full:
            was_new(connection, statement, row)
    _add_blobs(connection, tables, place.space, blobs)


def was_taken_back(error: DBAPIError) -> bool:
    """Tell whether the server took back the whole transaction, since two waited for each other."""
    return number_of(error) in (DEADLOCK, CHANGED_SINCE) or getattr(error.orig, "sqlstate", None) == _DEADLOCK


def _hold(connection: Connection, tables: Tables, place: Place) -> None:
    """Make the space of a place, or lock it against whoever would remove what nobody refers to."""
    spaces = tables.spaces
    there = select(spaces.c.space).where(spaces.c.space == place.space).with_for_update(read=True)
    new = new_row(spaces, connection.dialect.name)
    while not was_new(connection, new, {**_names(place), "head": None}) and connection.execute(there).first() is None:
        pass  # it was deleted in between


#: Of PostgreSQL: deadlock_detected.
_DEADLOCK = "40P01"

_WRITTEN = ("task_path", "channel", "value")
_OF_CHECKPOINT = ("parent_id", "run_id", "body", "metadata")


def _changes(new: Any) -> list[tuple[str, Any]]:
    return [(name, new[name]) for name in _OF_CHECKPOINT]


def _names(place: Place) -> dict[str, Any]:
    return {
        "space": place.space,
        "thread": place.thread,
        "thread_id": place.thread_id,
        "checkpoint_ns": place.checkpoint_ns,
    }


def _prefixed(names: dict[str, Any]) -> dict[str, Any]:
    """Return parameters by names that no column has; SQLAlchemy would take them for values of that column."""
    return {f"of_{name}": value for name, value in names.items()}


def _arrays(chunks: list[Chunk], blobs: Blobs) -> dict[str, Any]:
    logs, positions, refs = ([chunk[part] for chunk in chunks] for part in range(3))
    return {
        "logs": logs,
        "positions": positions,
        "refss": refs,
        "digests": sorted(blobs),  # two who write the same ones in one order never wait for each other
        "payloads": [dump_blob(blobs[digest]) for digest in sorted(blobs)],
    }


def _add_blobs(connection: Connection, tables: Tables, space: bytes, blobs: Blobs) -> None:
    if blobs:
        rows = [
            {"space": space, "digest": digest, "payload": dump_blob(item)} for digest, item in sorted(blobs.items())
        ]
        upsert(connection, tables.blobs, rows, lambda new: [("digest", new.digest)])  # the same bytes are there


def _move(connection: Connection, tables: Tables, put: Put) -> bool:
    """Move the head in a transaction that has several statements."""
    spaces, place = tables.spaces, put.place
    new = put.row["checkpoint_id"]
    here = spaces.c.space == place.space
    if put.expects is Expects.PARENT_IS_HEAD:
        moving = update(spaces).where(here, spaces.c.head.in_((place.checkpoint_id, new))).values(head=new)
        return connection.execute(moving).rowcount == 1
    if was_new(connection, new_row(spaces, connection.dialect.name), {**_names(place), "head": new}):
        return True
    if put.expects is Expects.EMPTY:
        free = or_(spaces.c.head.is_(None), spaces.c.head == new)
        return connection.execute(update(spaces).where(here, free).values(head=new)).rowcount == 1
    connection.execute(select(spaces.c.head).where(here).with_for_update())
    there = select(tables.checkpoints.c.space).where(*_is(tables.checkpoints, place.space, new))
    if connection.execute(there).first() is None:
        connection.execute(update(spaces).where(here).values(head=new))
    return True


def _is(table: Table, space: Any, checkpoint_id: Any) -> tuple[ColumnElement[bool], ...]:
    return table.c.space == space, table.c.checkpoint_id == checkpoint_id


# PostgreSQL: every part reads from the one that locks the space, so that none comes before it.


@cache
def _put(tables: Tables, expects: Expects) -> Any:
    """Return the statement of a put; it returns 1 if the space was as expected, and else 0 and writes nothing."""
    spaces, checkpoints = tables.spaces, tables.checkpoints
    new = bindparam("row_checkpoint_id", type_=checkpoints.c.checkpoint_id.type)
    if expects is Expects.PARENT_IS_HEAD:
        parent = bindparam("parent", type_=checkpoints.c.checkpoint_id.type)
        moving: Any = update(spaces).where(spaces.c.space == bindparam("of_space"), spaces.c.head.in_((parent, new)))
        moving = moving.values(head=new)
    else:
        moving = _new_space(tables, new)
        if expects is Expects.EMPTY:
            free = or_(spaces.c.head.is_(None), spaces.c.head == moving.excluded.head)
            moving = moving.on_conflict_do_update(
                index_elements=["space"], set_={"head": moving.excluded.head}, where=free
            )
        else:
            is_there = exists(select(1).where(*_is(checkpoints, bindparam("of_space"), new)))
            head = case((and_(is_there, spaces.c.head.is_not(None)), spaces.c.head), else_=moving.excluded.head)
            moving = moving.on_conflict_do_update(index_elements=["space"], set_={"head": head})
    held = moving.returning(spaces.c.space).cte("held")
    columns = ("checkpoint_id", *_OF_CHECKPOINT)
    row = select(held.c.space, *(bindparam(f"row_{name}", type_=checkpoints.c[name].type) for name in columns))
    saving = postgresql.insert(checkpoints).from_select(["space", *columns], row.select_from(held))
    saved = saving.on_conflict_do_update(
        index_elements=["space", "checkpoint_id"], set_={name: saving.excluded[name] for name in _OF_CHECKPOINT}
    ).cte("saved")
    chunks = _from_arrays(
        insert(tables.chunks), held, (tables.chunks.c.log, tables.chunks.c.position, tables.chunks.c.refs)
    )
    return select(func.count()).select_from(held).add_cte(saved, chunks.cte("added"), _blobs(tables, held))


@cache
def _writes(tables: Tables, again: bool) -> Any:
    """Return the statement of a task's writes; it returns 0 and writes nothing if the space went while it waited."""
    spaces, writes = tables.spaces, tables.writes
    made = _new_space(tables, None).on_conflict_do_nothing().returning(spaces.c.space).cte("made")
    # Whoever removes what nobody refers to locks the space, and so waits for this statement or this one for him.
    locked = (
        select(spaces.c.space).where(spaces.c.space == bindparam("of_space")).with_for_update(read=True).cte("locked")
    )
    held = union_all(select(made.c.space), select(locked.c.space)).cte("held")
    columns = (writes.c.task_id, writes.c.idx, *(writes.c[name] for name in _WRITTEN))
    adding: Any = postgresql.insert(writes)
    at = bindparam("at", type_=writes.c.checkpoint_id.type).label("checkpoint_id")
    adding = _from_arrays(adding, held, columns, at)
    if again:
        changed = {name: adding.excluded[name] for name in _WRITTEN}
        adding = adding.on_conflict_do_update(index_elements=list(writes.primary_key), set_=changed)
    else:
        adding = adding.on_conflict_do_nothing()
    return select(func.count()).select_from(held).add_cte(adding.cte("added"), _blobs(tables, held))


def _new_space(tables: Tables, head: Any) -> Any:
    spaces = tables.spaces
    names = {
        name: bindparam(f"of_{name}", type_=spaces.c[name].type)
        for name in ("space", "thread", "thread_id", "checkpoint_ns")
    }
    return postgresql.insert(spaces).values(**names, head=head)


def _blobs(tables: Tables, held: CTE) -> CTE:
    adding: Any = postgresql.insert(tables.blobs)
    adding = _from_arrays(adding, held, (tables.blobs.c.digest, tables.blobs.c.payload))
    blobs: CTE = adding.on_conflict_do_nothing().cte("blobs_added")
    return blobs


def _from_arrays(adding: Any, held: CTE, columns: tuple[Column[Any], ...], *more: Any) -> Any:
    """Return an insert of the rows that arrays of parameters hold, into the space that `held` has."""
    arrays = (bindparam(f"{column.name}s", type_=ARRAY(column.type)) for column in columns)
    rows = func.unnest(*arrays).table_valued(*columns, name=f"new_{columns[0].table.name}").render_derived()
    values = select(held.c.space, *more, *rows.c).select_from(held.join(rows, true()))
    names = ["space", *(part.name for part in more), *(column.name for column in columns)]
    return adding.from_select(names, values)
