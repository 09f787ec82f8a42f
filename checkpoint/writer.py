"""Appending checkpoints in SQL.

The head row decides who appends: it moves by compare-and-set, and everything else is written only after it moved. So
of two processes that save after the same checkpoint one gets `CheckpointConflict`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, bindparam, func, insert, select, true, update

from checkpoint.cache import KnownRun, RunCache
from checkpoint.envelope import pack
from checkpoint.errors import CheckpointCorrupted
from checkpoint.inserts import new_row, was_new
from checkpoint.reader import Reader
from checkpoint.segments import appended, dump_segments, length_of
from checkpoint.succession import conflict, other_content, succeed
from checkpoint.tip import Tip
from checkpoint.verifying import Damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import CTE, Column, Connection, FromClause, Table

    from checkpoint.record import Record
    from checkpoint.segments import Segments
    from checkpoint.succession import Succession
    from checkpoint.tables import Tables

_ATTEMPTS = 5  # a head that moves between a read and its write is read again; each time somebody else got on


@dataclass(frozen=True)
class Append:
    """A checkpoint, or several, that can follow the head as it was last seen, without a look at the database.

    Args:
        parameters: Of the parts that `append_parts` returns.
        record: The checkpoint; the last one of several.
        tip: The head after it.
    """

    parameters: dict[str, Any]
    record: Record
    tip: Tip


class Writer:
    """Appends checkpoints in the transactions that it is given.

    Args:
        tables: Where they are.
        reader: Reads what a save must know.
        cache: Remembers what was saved.
        dialect: ``postgresql``, ``sqlite`` or ``mysql``.
    """

    def __init__(self, tables: Tables, reader: Reader, cache: RunCache, dialect: str) -> None:
        self._reader = reader
        self._cache = cache
        self._at_once = dialect == "postgresql"
        self._start, self._move, self._add_checkpoint, self._add_messages = _statements(tables, dialect)

    def append(self, connection: Connection, record: Record) -> None:
        """Append a record to its run, or find it there already.

        Raises:
            CheckpointConflict: The head is elsewhere, or holds other content; nothing was written.
            CheckpointCorrupted: The ancestor that a new line would start from is damaged; nothing was written.
        """
        known = self._cache.get(record.run_id)
        tip = None if known is None else known.tip
        if tip is None or (record.line, record.seq) != (tip.line, tip.seq + 1):
            tip = self._reader.tip(connection, record.run_id)
        for _ in range(_ATTEMPTS):
            if tip is not None and (record.line, record.seq) == (tip.line, tip.seq):
                self._refuse_other_content(connection, record)
                return
            succession = succeed(record, tip, _History(self._reader, connection, record.run_id))
            if self._write(connection, record, tip, succession):
                self._cache.put(record.run_id, KnownRun(succession.moved, record.items, record.chain))
                return
            tip = self._reader.tip(connection, record.run_id)
        raise conflict(record, f"its head moved {_ATTEMPTS} times meanwhile; load it and go on from there")

    def plan(self, record: Record) -> Append | None:
        """Return how a record follows the head that this process saw last, or None if that needs a look at the database."""
        known = self._cache.get(record.run_id)
        tip = None if known is None else known.tip
        moved = None if tip is None else _followed(tip, record)
        if tip is None or moved is None:
            return None
        return Append(self._values(record, tip, moved, tip.line, length_of(tip.segments)), record, moved)

    def plan_several(self, records: Sequence[Record]) -> Append | None:
        """Return how records that follow each other follow that head, or None if that needs a look at the database."""
        known = self._cache.get(records[0].run_id)
        if known is None:
            return None
        tip, rows = known.tip, []
        for record in records:
            moved = _followed(tip, record)
            if moved is None:
                return None
            rows.append(_checkpoint(record, tip.line, moved))
            tip = moved
        values = _head(record, known.tip, tip)
        values.update((f"checkpoints_{name}", [row[name] for row in rows]) for name in rows[0])
        positions, chains, payloads = _added(record, length_of(known.tip.segments))
        values.update(log=tip.segments[-1].log if tip.segments else 0)
        values.update(positions=positions, chains=chains, payloads=payloads)
        return Append(values, record, tip)

    def carried_out(self, append: Append) -> None:
        """Remember what was planned as the head, since it was written."""
        record = append.record
        self._cache.put(record.run_id, KnownRun(append.tip, record.items, record.chain))

    def _refuse_other_content(self, connection: Connection, record: Record) -> None:
        row = self._reader.row(connection, record.run_id, record.line, record.seq)
        if row is not None:
            parent_line, segments = row.checkpoint_parent_line, row.checkpoint_segments
            if record.checksum(parent_line, segments, row.checkpoint_created_at) == row.checkpoint_checksum:
                return
        raise other_content(record)

    def _write(self, connection: Connection, record: Record, tip: Tip | None, succession: Succession) -> bool:
        """Write the record if the head is still at `tip`; return whether it was."""
        moved, parent_line, written_from = succession.moved, succession.parent_line, succession.written_from
        statement = self._start if tip is None else self._move
        if self._at_once:
            return bool(connection.scalar(statement, self._values(record, tip, moved, parent_line, written_from)))
        head = _head(record, tip, moved)
        if tip is None:
            written = was_new(connection, statement, head)
        else:
            written = connection.execute(statement, head).rowcount == 1
        if not written:
            return False
        connection.execute(self._add_checkpoint, _checkpoint(record, parent_line, moved))
        positions, chain, payloads = _added(record, written_from)
        if payloads:
            rows = zip(positions, chain, payloads, strict=True)
            names, log = ("run_id", "log", "position", "chain", "payload"), moved.segments[-1].log
            connection.execute(
                self._add_messages, [dict(zip(names, (record.run_id, log, *row), strict=True)) for row in rows]
            )
        return True

    @staticmethod
    def _values(
        record: Record, tip: Tip | None, moved: Tip, parent_line: int | None, written_from: int
    ) -> dict[str, Any]:
        """Return the parameters of a statement that writes all of it."""
        values = _head(record, tip, moved)
        values.update((f"checkpoint_{name}", value) for name, value in _checkpoint(record, parent_line, moved).items())
        positions, chains, payloads = _added(record, written_from)
        values.update(log=moved.segments[-1].log, positions=positions, chains=chains, payloads=payloads)
        return values


@dataclass(frozen=True)
class _History:
    """What one run's rows say; see `checkpoint.succession.History`."""

    reader: Reader
    connection: Connection
    run_id: str

    def parent(self, line: int, seq: int) -> tuple[Segments, bytes] | None:
        row = self.reader.row(self.connection, self.run_id, line, seq)
        if row is None:
            return None
        try:
            _, segments, _, chain = self.reader.verify(self.connection, row, stored=True)
        except Damage as damage:
            raise CheckpointCorrupted(self.run_id, row.checkpoint_line, row.checkpoint_seq, damage.reason) from damage
        return segments, chain[-1]

    def unchanged(self, segments: Segments, chain: list[bytes]) -> int:
        return self.reader.unchanged(self.connection, self.run_id, segments, chain)


@cache
def _statements(tables: Tables, dialect: str) -> tuple[Any, Any, Any, Any]:
    """Return what gives a run its head, moves it, and inserts a checkpoint and messages.

    Built once, since building them costs as much as running them.
    """
    start, move = _start(tables, dialect), _move(tables)
    if dialect == "postgresql":
        start, move = _with_rows(start, tables), _with_rows(move, tables)
    return start, move, insert(tables.checkpoints), insert(tables.messages)


def append_parts(tables: Tables, guard: FromClause, *, several: bool = False) -> tuple[CTE, CTE, CTE]:
    """Return the parts of a PostgreSQL statement that writes an `Append`; see `SqlStore.append_parts`."""
    return _parts(_move(tables).where(tables.heads.c.run_id == guard.c.run_id), tables, several=several)


def _followed(tip: Tip, record: Record) -> Tip | None:
    """Return the head after a record that follows it on its line and only adds messages; None for any other."""
    before = length_of(tip.segments)
    if (record.line, record.seq) != (tip.line, tip.seq + 1):
        return None
    if before > len(record.items) or record.chain[before] != tip.chain:
        return None  # an older message was changed
    return replace(tip, seq=record.seq, segments=appended(tip.segments, len(record.items)), chain=record.chain[-1])


def _head(record: Record, tip: Tip | None, moved: Tip) -> dict[str, Any]:
    head = {"run": record.run_id, **{f"new_{name}": value for name, value in moved.columns().items()}}
    if tip is not None:
        head.update((f"old_{name}", value) for name, value in tip.columns().items())
    return head


def _added(record: Record, written_from: int) -> tuple[list[int], list[bytes], list[bytes]]:
    """Return the positions, links and payloads of the messages from a position on."""
    positions = list(range(written_from, len(record.items)))
    return positions, record.chain[written_from + 1 :], [pack(record.items[position]) for position in positions]


def _start(tables: Tables, dialect: str) -> Any:
    """Return the statement that gives a run its head, unless it has one."""
    heads = tables.heads
    new = {column.name: bindparam(f"new_{column.name}", type_=column.type) for column in _moving(heads)}
    return new_row(heads, dialect).values(run_id=bindparam("run"), **new)


def _move(tables: Tables) -> Any:
    """Return the statement that moves a run's head, if all of it is still as expected."""
    heads = tables.heads
    new = {column.name: bindparam(f"new_{column.name}", type_=column.type) for column in _moving(heads)}
    still = [column == bindparam(f"old_{column.name}") for column in _moving(heads)]
    return update(heads).where(heads.c.run_id == bindparam("run"), *still).values(new)


def _moving(heads: Table) -> list[Column[Any]]:
    return [column for column in heads.c if not column.primary_key]


def _with_rows(moving: Any, tables: Tables) -> Any:
    """Return `moving` with the new rows, each written only if the head moved; it returns 1 then, and else 0.

    One statement is one round trip, and atomic without a transaction around it.
    """
    head, saved, added = _parts(moving, tables)
    return select(func.count()).select_from(head).add_cte(saved, added)


def _parts(moving: Any, tables: Tables, *, several: bool = False) -> tuple[CTE, CTE, CTE]:
    """Return `moving`, which has a row if the head moved, and the new rows, each written only if it has one."""
    head = moving.returning(tables.heads.c.run_id).cte("moved")
    table = tables.checkpoints
    if several:
        arrays = (bindparam(f"checkpoints_{column.name}", type_=ARRAY(column.type)) for column in table.c)
        made = func.unnest(*arrays).table_valued(*table.c, name="made").render_derived()
        values = select(*made.c).select_from(head.join(made, true()))
    else:
        values = select(*(bindparam(f"checkpoint_{column.name}", type_=column.type) for column in table.c))
        values = values.select_from(head)
    saved = insert(table).from_select([column.name for column in table.c], values).cte("saved")
    table = tables.messages
    columns = (table.c.position, table.c.chain, table.c.payload)
    arrays = (bindparam(f"{column.name}s", type_=ARRAY(column.type)) for column in columns)
    rows = func.unnest(*arrays).table_valued(*columns, name="rows").render_derived()
    values = select(head.c.run_id, bindparam("log", type_=table.c.log.type), *rows.c).select_from(
        head.join(rows, true())
    )
    added = insert(table).from_select(["run_id", "log", *(column.name for column in columns)], values).cte("added")
    return head, saved, added


def _checkpoint(record: Record, parent_line: int | None, moved: Tip) -> dict[str, Any]:
    segments = dump_segments(moved.segments)
    return {
        "run_id": record.run_id,
        "line": record.line,
        "seq": record.seq,
        "parent_line": parent_line,
        "step": record.step,
        "version": record.version,
        "created_at": record.created_at,
        "message_count": len(record.items),
        "segments": segments,
        "chain": moved.chain,
        "head": pack(record.head),
        "checksum": record.checksum(parent_line, segments),
    }
