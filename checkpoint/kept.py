"""A checkpoint without its messages, as the stores that are no database keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpoint.record import checksum, moment
from checkpoint.segments import Segments, dump_segments
from checkpoint.state import CheckpointSummary

if TYPE_CHECKING:
    from checkpoint.record import Record
    from checkpoint.succession import Succession


@dataclass(frozen=True)
class Reseal:
    """A person's word for a checkpoint that was edited by hand.

    Args:
        at: When, in microseconds since 1970, UTC.
        reason: Why, in that person's words.
        before: The checksum that the edit broke.
    """

    at: int
    reason: str
    before: bytes


@dataclass(frozen=True)
class Kept:
    """A checkpoint without its messages.

    Args:
        run_id: The run.
        line: Its line.
        seq: Its number.
        parent_line: The line of the checkpoint that it follows; None if it follows none.
        step: The step that made it.
        version: The caller's version of the state's shape.
        created_at: Microseconds since 1970, UTC.
        message_count: How many messages the state holds.
        segments: Where they stand.
        chain: The link after them.
        head: agent_state and metadata, encoded together.
        reseals: What was edited by hand, the oldest first.
    """

    run_id: str
    line: int
    seq: int
    parent_line: int | None
    step: str | None
    version: int
    created_at: int
    message_count: int
    segments: Segments
    chain: bytes
    head: bytes
    reseals: tuple[Reseal, ...] = ()

    @classmethod
    def of(cls, record: Record, succession: Succession) -> Kept:
        """Return what is kept of a record at its place."""
        moved = succession.moved
        return cls(
            run_id=record.run_id,
            line=record.line,
            seq=record.seq,
            parent_line=succession.parent_line,
            step=record.step,
            version=record.version,
            created_at=record.created_at,
            message_count=len(record.items),
            segments=moved.segments,
            chain=moved.chain,
            head=record.head,
        )

    def checksum(self) -> bytes:
        """Return the checksum over all of it; while nothing was edited, the one that a database would keep."""
        bound = (
            self.run_id,
            self.line,
            self.seq,
            self.parent_line,
            self.step,
            self.version,
            self.created_at,
            self.message_count,
            dump_segments(self.segments),
            self.chain,
            self.head,
        )
        edits = [(reseal.at, reseal.reason, reseal.before) for reseal in self.reseals]
        return checksum((*bound, edits) if edits else bound)

    def is_of(self, record: Record) -> bool:
        """Return whether a record of this place says the same; the moment at which it was made may differ."""
        theirs = record.checksum(self.parent_line, dump_segments(self.segments), self.created_at)
        return theirs == self.checksum()

    def summary(self) -> CheckpointSummary:
        """Return what a list shows of it."""
        return CheckpointSummary(
            self.run_id,
            self.line,
            self.seq,
            self.parent_line,
            self.step,
            moment(self.created_at),
            self.version,
            self.message_count,
            len(self.head),
        )
