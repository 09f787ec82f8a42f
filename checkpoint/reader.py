"""Reading checkpoints from SQL: rows to states, each byte checked before it is decoded."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, false, or_, select

from checkpoint.ancestry import load_ancestry
from checkpoint.cache import KnownRun, RunCache
from checkpoint.envelope import unpack
from checkpoint.errors import CheckpointCorrupted, CorruptedBytes
from checkpoint.record import checksum, decode_head, decode_items, moment
from checkpoint.segments import Segments, load_segments
from checkpoint.state import CheckpointState
from checkpoint.tip import Tip
from checkpoint.verifying import Damage, Message, holds, verified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import BindParameter, ColumnElement, Connection, Label, Row, Select, Table

    from checkpoint.tables import Tables


class Reader:
    """Reads checkpoints in the transactions that it is given.

    Args:
        tables: Where they are.
        cache: What need not be read again.
    """

    def __init__(self, tables: Tables, cache: RunCache) -> None:
        self._tables = tables
        self._messages = tables.messages
        self._cache = cache
        self._head_row, self._tip, self._row = _statements(tables)

    def heads(self) -> Select[Any]:
        """Return the query for the checkpoints that are the heads of their runs.

        Its columns are named ``head_…`` and ``checkpoint_…``, so that it can be joined to tables of others.
        """
        return _heads(self._tables)

    def head_row(self, connection: Connection, run_id: str) -> Row[Any] | None:
        """Return a run's head and its checkpoint."""
        return connection.execute(self._head_row, {"run_id": run_id}).one_or_none()

    def tip(self, connection: Connection, run_id: str) -> Tip | None:
        """Return a run's head without its checkpoint."""
        row = connection.execute(self._tip, {"run_id": run_id}).one_or_none()
        return None if row is None else tip_of(row)

    def row(self, connection: Connection, run_id: str, line: int, seq: int) -> Row[Any] | None:
        """Return the row of one checkpoint."""
        return connection.execute(self._row, {"run_id": run_id, "line": line, "seq": seq}).one_or_none()

    def state(
        self,
        connection: Connection | None,
        row: Row[Any],
        bad_places: frozenset[tuple[int, int]] = frozenset(),
        tip: Tip | None = None,
        *,
        stored: bool = False,
    ) -> CheckpointState:
        """Return the state of a row with the columns ``checkpoint_…``.

        Args:
            connection: Where its messages are read; without one, those that were not seen count as damaged.
            row: The row.
            bad_places: Logs and positions of messages that are known to be damaged.
            tip: The head, if the row is its checkpoint: then it is remembered.
            stored: Whether messages are read even where this process knows them.

        Raises:
            Damage: Bytes fail their checksum.
        """
        head, segments, items, chain = self.verify(connection, row, bad_places, stored=stored)
        if tip is not None and (tip.segments, tip.chain) == (segments, row.checkpoint_chain):
            self._cache.put(row.checkpoint_run_id, KnownRun(tip, items, chain))
        try:
            agent_state, metadata = decode_head(head)
            messages = decode_items(items)
        except CorruptedBytes as error:  # whole, but not written by this codec
            raise Damage(error.reason) from error
        return CheckpointState(
            run_id=row.checkpoint_run_id,
            seq=row.checkpoint_seq,
            step=row.checkpoint_step,
            line=row.checkpoint_line,
            messages=messages,
            agent_state=agent_state,
            metadata=metadata,
            created_at=moment(row.checkpoint_created_at),
            version=row.checkpoint_version,
        )

    def verify(
        self,
        connection: Connection | None,
        row: Row[Any],
        bad_places: frozenset[tuple[int, int]] = frozenset(),
        *,
        stored: bool = False,
    ) -> tuple[bytes, Segments, list[bytes], list[bytes]]:
        """Check all bytes of a row with the columns ``checkpoint_…`` and return its parts, still encoded.

        Args:
            connection: Where its messages are read.
            row: The row.
            bad_places: Logs and positions of messages that are known to be damaged.
            stored: Whether messages are read even where this process knows them.

        Returns:
            The head, the segments, the messages, and the chain over them.

        Raises:
            Damage: Bytes fail their checksum.
        """
        run_id: str = row.checkpoint_run_id
        try:
            head = unpack(row.checkpoint_head)
            segments = load_segments(row.checkpoint_segments)
        except (CorruptedBytes, ValueError) as error:
            raise Damage(f"its head: {error}") from error
        bound = (
            run_id,
            row.checkpoint_line,
            row.checkpoint_seq,
            row.checkpoint_parent_line,
            row.checkpoint_step,
            row.checkpoint_version,
            row.checkpoint_created_at,
            row.checkpoint_message_count,
            row.checkpoint_segments,
            row.checkpoint_chain,
            head,
        )
        if checksum(bound) != row.checkpoint_checksum:
            raise Damage("its head does not match its checksum")
        if any(holds(segments, place) for place in bad_places):
            raise Damage("it shares a damaged message with a newer one")
        known = None if stored else self._cache.get(run_id)
        items, chain = verified(
            segments, row.checkpoint_chain, known, partial(self._tail, connection, run_id, segments)
        )
        return head, segments, items, chain

    def unchanged(self, connection: Connection, run_id: str, segments: Segments, chain: list[bytes]) -> int:
        """Return how many messages at the start of the segments are those of `chain`, the links over others."""
        table = self._messages
        stored = (
            select(table.c.chain).where(table.c.run_id == run_id, self._within(segments, 0)).order_by(table.c.position)
        )
        count = 0
        for theirs, ours in zip(connection.scalars(stored), chain[1:], strict=False):
            if theirs != ours:
                break
            count += 1
        return count

    def _tail(self, connection: Connection | None, run_id: str, segments: Segments, start: int) -> Iterator[Message]:
        if connection is None:
            raise Damage("its messages were not read")
        table = self._messages
        rows = (
            select(table.c.log, table.c.position, table.c.chain, table.c.payload)
            .where(table.c.run_id == run_id, self._within(segments, start))
            .order_by(table.c.position)
        )
        for row in connection.execute(rows).all():
            try:
                item = unpack(row.payload)
            except CorruptedBytes as error:
                raise Damage(f"its message {row.position}: {error}", (row.log, row.position)) from error
            yield Message(row.log, row.position, row.chain, item)

    def _within(self, segments: Segments, start: int) -> ColumnElement[bool]:
        """Return the condition for the rows that the segments hold from `start` on."""
        table = self._messages
        ranges = []
        for segment in segments:
            if segment.until > start:
                held = (table.c.log == segment.log, table.c.position >= start, table.c.position < segment.until)
                ranges.append(and_(*held))
                start = segment.until
        return or_(*ranges) if ranges else false()


@cache
def _heads(tables: Tables) -> Select[Any]:
    heads, checkpoints = tables.heads, tables.checkpoints
    same = and_(
        checkpoints.c.run_id == heads.c.run_id,
        checkpoints.c.line == heads.c.line,
        checkpoints.c.seq == heads.c.seq,
    )
    columns = (*_labelled(heads, "head"), *_labelled(checkpoints, "checkpoint"))
    return select(*columns).select_from(heads.outerjoin(checkpoints, same))


@cache
def _statements(tables: Tables) -> tuple[Select[Any], Select[Any], Select[Any]]:
    """Return the queries for a head with its checkpoint, for a head, and for a checkpoint.

    Built once, since building them costs as much as running them.
    """
    run_id: BindParameter[str] = bindparam("run_id")
    heads, table = tables.heads, tables.checkpoints
    head_row = _heads(tables).where(heads.c.run_id == run_id)
    tip = select(*_labelled(heads, "head")).where(heads.c.run_id == run_id)
    row = select(*_labelled(table, "checkpoint")).where(
        table.c.run_id == run_id, table.c.line == bindparam("line"), table.c.seq == bindparam("seq")
    )
    return head_row, tip, row


def _labelled(table: Table, prefix: str) -> list[Label[Any]]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def tip_of(row: Row[Any]) -> Tip:
    """Return the head that the columns ``head_…`` of a row describe.

    Raises:
        CheckpointCorrupted: They describe none.
    """
    try:
        segments, ancestry = load_segments(row.head_segments), load_ancestry(row.head_ancestry)
    except ValueError as error:
        reason = f"the row of its head: {error}; load(…, line=) still reads what is intact"
        raise CheckpointCorrupted(row.head_run_id, row.head_line, row.head_seq, reason) from error
    return Tip(row.head_line, row.head_seq, segments, row.head_chain, row.head_logs, ancestry)
