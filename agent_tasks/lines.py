"""Lines: where in its history a run stands, and where a new line of it begins (I12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkpoint.state import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkpoint import CheckpointState

#: Who the audit trail names where no person decided.
ENGINE = "engine"

#: How the audit trail begins an entry by which a person resumed a run.
RESUMED = "resume from step"

#: Where a checkpoint's metadata name the step that follows it.
NEXT_STEP = "next_step"


@dataclass(frozen=True)
class NewLine:
    """A line that begins at an older checkpoint: the run goes on behind it, and what came after it stays as it is.

    Attributes:
        number: of the new line.
        parent_line, seq: of the checkpoint.
        step, queue: that follow it.
    """

    number: int
    parent_line: int
    seq: int
    step: str
    queue: str

    def columns(self) -> dict[str, Any]:
        """Return what the run's row says from then on."""
        return {
            "line": self.number,
            "parent_line": self.parent_line,
            "line_start_seq": self.seq,
            "seq": self.seq,
            "next_step": self.step,
            "queue": self.queue,
            "attempts": 0,
            "retries": 0,
        }


def standing_line(run: Mapping[Any, Any]) -> int:
    """Return the line of the checkpoint that a run stands at: its own, or its parent's while it has none of its own.

    Example:
        >>> standing_line({"line": 2, "parent_line": 0, "line_start_seq": 3, "seq": 3})
        0
        >>> standing_line({"line": 2, "parent_line": 0, "line_start_seq": 3, "seq": 4})
        2
    """
    return int(run["line"] if run["seq"] > run["line_start_seq"] else run["parent_line"])


def next_place(run: Mapping[Any, Any]) -> Position:
    """Return where the run's next checkpoint is to be saved."""
    return Position(str(run["run_id"]), int(run["line"]), int(run["seq"]) + 1)


def step_after(state: CheckpointState) -> str | None:
    """Return the step that follows a checkpoint, or None where the release that made it did not say."""
    step = state.metadata.get(NEXT_STEP)
    return step if isinstance(step, str) else None
