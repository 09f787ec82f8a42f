"""Where a run stands, and what its next checkpoint builds on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkpoint.ancestry import Ancestry, dump_ancestry
from checkpoint.segments import Segments, dump_segments


@dataclass(frozen=True)
class Tip:
    """The head of a run, as its row says.

    Args:
        line: Its line.
        seq: Its number.
        segments: Where its messages stand.
        chain: The link after them.
        logs: How many logs the run has started.
        ancestry: Which line holds which seq.
    """

    line: int
    seq: int
    segments: Segments
    chain: bytes
    logs: int
    ancestry: Ancestry

    def columns(self) -> dict[str, Any]:
        """Return the columns of its row; comparing all of them makes a remembered tip safe to build on."""
        return {
            "line": self.line,
            "seq": self.seq,
            "segments": dump_segments(self.segments),
            "chain": self.chain,
            "logs": self.logs,
            "ancestry": dump_ancestry(self.ancestry),
        }
