"""What a new checkpoint follows, and where it leaves its run: the rules of `save`, the same for every store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from checkpoint.ancestry import line_of, started
from checkpoint.errors import CheckpointConflict
from checkpoint.segments import appended, branched, length_of
from checkpoint.tip import Tip

if TYPE_CHECKING:
    from checkpoint.record import Record
    from checkpoint.segments import Segments


class History(Protocol):
    """What a store knows of the run that is saved to."""

    def parent(self, line: int, seq: int) -> tuple[Segments, bytes] | None:
        """Return where the messages of a checkpoint stand and the link after them; None if there is none.

        Raises:
            CheckpointCorrupted: It is damaged: a line that stands on damage could not be read again.
        """

    def unchanged(self, segments: Segments, chain: list[bytes]) -> int:
        """Return how many messages at the start of the segments are those of `chain`, the links over others."""


@dataclass(frozen=True)
class Succession:
    """How a checkpoint follows another one.

    Args:
        moved: The head after it.
        parent_line: The line of the one it follows; None for an input.
        written_from: The position from which on its messages are new.
    """

    moved: Tip
    parent_line: int | None
    written_from: int


@dataclass(frozen=True)
class _Parent:
    line: int
    segments: Segments
    chain: bytes


def succeed(record: Record, tip: Tip | None, history: History) -> Succession:
    """Return how a record follows the head of its run.

    Args:
        record: The checkpoint, which is not the head already.
        tip: The head; None for a run that has no checkpoint.
        history: Where older checkpoints are looked up.

    Raises:
        CheckpointConflict: It cannot follow anything there.
        CheckpointCorrupted: The ancestor that a new line would start from is damaged.
    """
    parent = _parent(record, tip, history)
    length = len(record.items)
    segments: Segments = () if parent is None else parent.segments
    before = unchanged = length_of(segments)
    if parent is not None and (before > length or record.chain[before] != parent.chain):
        unchanged = history.unchanged(segments, record.chain)
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
    moved = Tip(record.line, record.seq, segments, record.chain[-1], logs, ancestry)
    return Succession(moved, None if parent is None else parent.line, written_from)


def conflict(record: Record, reason: str) -> CheckpointConflict:
    """Return the error that refuses a record."""
    return CheckpointConflict(record.run_id, record.line, record.seq, reason)


def other_content(record: Record) -> CheckpointConflict:
    """Return the error that refuses a record whose place is the head's, and whose content is not."""
    return conflict(record, "it is saved already with other content; load it, or save yours on a new line")


def _parent(record: Record, tip: Tip | None, history: History) -> _Parent | None:
    """Return the checkpoint that the record follows; None for an input."""
    if tip is None:
        if record.seq:
            raise conflict(record, "the run has no checkpoint; save seq 0 first")
        return None
    if record.line == tip.line and record.seq == tip.seq + 1:
        return _Parent(tip.line, tip.segments, tip.chain)
    if record.line <= tip.line or record.seq > tip.seq + 1:
        where = f"the head is at line {tip.line}, seq {tip.seq}"
        raise conflict(record, f"{where}; load it and go on from there, or start line {tip.line + 1}")
    if record.seq == 0:
        return None
    line = line_of(tip.ancestry, record.seq - 1)
    found = None if line is None else history.parent(line, record.seq - 1)
    if line is None or found is None:
        raise conflict(record, f"seq {record.seq - 1}, which it would follow, is not in the head's ancestry")
    return _Parent(line, *found)
