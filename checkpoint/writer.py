"""Appending checkpoints in SQL.

The head row decides who appends: it moves by compare-and-set, and everything else is written only after it moved. So
of two processes that save after the same checkpoint one gets `CheckpointConflict`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, func, insert, literal, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from checkpoint.ancestry import line_of, started
from checkpoint.cache import KnownRun, RunCache
from checkpoint.envelope import pack
from checkpoint.errors import CheckpointConflict
from checkpoint.segments import appended, branched, dump_segments, length_of, load_segments
from checkpoint.tip import Tip

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from checkpoint.reader import Reader
    from checkpoint.record import Record
    from checkpoint.segments import Segments
    from checkpoint.tables import Tables

_ATTEMPTS = 5  # a head that moves between a read and its write is read again; each time somebody else got on


class Writer:
    """Appends checkpoints in the transactions that it is given.

    Args:
        tables: Where they are.
        reader: Reads what a save must know.
        cache: Remembers what was saved.
        dialect: ``postgresql`` or ``sqlite``.
    """

    def __init__(self, tables: Tables, reader: Reader, cache: RunCache, dialect: str) -> None:
        self._heads = tables.heads
        self._checkpoints = tables.checkpoints
        self._messages = tables.messages
        self._reader = reader
        self._cache = cache
        self._at_once = dialect == "postgresql"
        self._insert = postgresql.insert if self._at_once else sqlite.insert

    def append(self, connection: Connection, record: Record) -> None:
        """Append a record to its run, or find it there already.

        Raises:
            CheckpointConflict: The head is elsewhere, or holds other content; nothing was written.
        """
        known = self._cache.get(record.run_id)
        tip = None if known is None else known.tip
        if tip is None or (record.line, record.seq) != (tip.line, tip.seq + 1):
            tip = self._reader.tip(connection, record.run_id)
        for _ in range(_ATTEMPTS):
            if tip is not None and (record.line, record.seq) == (tip.line, tip.seq):
                self._refuse_other_content(connection, record)
                return
            parent = self._parent(connection, record, tip)
            moved, written_from = self._next_tip(connection, record, tip, parent)
            checkpoint = _checkpoint(record, None if parent is None else parent.line, moved)
            messages = [
                {
                    "run_id": record.run_id,
                    "log": moved.segments[-1].log,
                    "position": position,
                    "chain": record.chain[position + 1],
                    "payload": pack(record.items[position]),
                }
                for position in range(written_from, len(record.items))
            ]
            write = self._write_at_once if self._at_once else self._write_in_steps
            if write(connection, record.run_id, tip, moved, checkpoint, messages):
                self._cache.put(record.run_id, KnownRun(moved, record.items))
                return
            tip = self._reader.tip(connection, record.run_id)
        raise _conflict(record, f"its head moved {_ATTEMPTS} times meanwhile; load it and go on from there")

    def _parent(self, connection: Connection, record: Record, tip: Tip | None) -> Tip | None:
        """Return the checkpoint that the record follows; None for an input."""
        if tip is None:
            if record.seq:
                raise _conflict(record, "the run has no checkpoint; save seq 0 first")
            return None
        if record.line == tip.line and record.seq == tip.seq + 1:
            return tip
        if record.line <= tip.line or record.seq > tip.seq + 1:
            where = f"the head is at line {tip.line}, seq {tip.seq}"
            raise _conflict(record, f"{where}; load it and go on from there, or start line {tip.line + 1}")
        if record.seq == 0:
            return None
        line = line_of(tip.ancestry, record.seq - 1)
        row = None if line is None else self._reader.row(connection, record.run_id, line, record.seq - 1)
        if row is None:
            raise _conflict(record, f"seq {record.seq - 1}, which it would follow, is not in the head's ancestry")
        return replace(
            tip,
            line=row.checkpoint_line,
            seq=row.checkpoint_seq,
            segments=load_segments(row.checkpoint_segments),
            chain=row.checkpoint_chain,
        )

    def _next_tip(self, connection: Connection, record: Record, tip: Tip | None, parent: Tip | None) -> tuple[Tip, int]:
        """Return the head after this save, and the position from which messages are written."""
        length = len(record.items)
        segments: Segments = () if parent is None else parent.segments
        before = unchanged = length_of(segments)
        if parent is not None and (before > length or record.chain[before] != parent.chain):
            unchanged = self._reader.unchanged(connection, record.run_id, segments, record.chain)
        logs = 0 if tip is None else tip.logs
        if parent is not None and record.line == parent.line and unchanged == before:
            segments, written_from = appended(segments, length), before
        else:
            segments, written_from = branched(segments, unchanged, length, log=logs)
            logs += 1
        if tip is not None and record.line == tip.line:
            ancestry = tip.ancestry
        else:
            ancestry = started(() if tip is None else tip.ancestry, record.line, record.seq)
        return Tip(record.line, record.seq, segments, record.chain[-1], logs, ancestry), written_from

    def _refuse_other_content(self, connection: Connection, record: Record) -> None:
        row = self._reader.row(connection, record.run_id, record.line, record.seq)
        if row is not None:
            parent_line, segments = row.checkpoint_parent_line, row.checkpoint_segments
            if record.checksum(parent_line, segments, row.checkpoint_created_at) == row.checkpoint_checksum:
                return
        raise _conflict(record, "it is saved already with other content; load it, or save yours on a new line")

    def _move_head(self, run_id: str, tip: Tip | None, moved: Tip) -> Any:
        heads = self._heads
        if tip is None:
            return self._insert(heads).values(run_id=run_id, **moved.columns()).on_conflict_do_nothing()
        still = [heads.c[name] == value for name, value in tip.columns().items()]
        return update(heads).where(heads.c.run_id == run_id, *still).values(**moved.columns())

    def _write_in_steps(
        self,
        connection: Connection,
        run_id: str,
        tip: Tip | None,
        moved: Tip,
        checkpoint: dict[str, Any],
        messages: list[dict[str, Any]],
    ) -> bool:
        if connection.execute(self._move_head(run_id, tip, moved)).rowcount != 1:
            return False
        connection.execute(insert(self._checkpoints), checkpoint)
        if messages:
            connection.execute(insert(self._messages), messages)
        return True

    def _write_at_once(
        self,
        connection: Connection,
        run_id: str,
        tip: Tip | None,
        moved: Tip,
        checkpoint: dict[str, Any],
        messages: list[dict[str, Any]],
    ) -> bool:
        """Do the same in one statement: one round trip, and atomic without a transaction around it."""
        head = self._move_head(run_id, tip, moved).returning(self._heads.c.run_id).cte("moved")
        table = self._checkpoints
        values = select(*(literal(value, table.c[name].type) for name, value in checkpoint.items())).select_from(head)
        saved = insert(table).from_select(list(checkpoint), values).cte("saved")
        counted = select(func.count()).select_from(head).add_cte(saved)
        if messages:
            table = self._messages
            names = ("position", "chain", "payload")
            arrays = (literal([row[name] for row in messages], ARRAY(table.c[name].type)) for name in names)
            rows = func.unnest(*arrays).table_valued(*(table.c[name] for name in names), name="rows").render_derived()
            log = literal(moved.segments[-1].log, table.c.log.type)
            values = select(head.c.run_id, log, *(rows.c[name] for name in names)).select_from(head.join(rows, true()))
            counted = counted.add_cte(insert(table).from_select(["run_id", "log", *names], values).cte("added"))
        return connection.scalar(counted) == 1


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


def _conflict(record: Record, reason: str) -> CheckpointConflict:
    return CheckpointConflict(record.run_id, record.line, record.seq, reason)
