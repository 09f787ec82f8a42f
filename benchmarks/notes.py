"""What runs say when they come to their last body: a line in a file, which all processes append to."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Notes:
    """Lines of a run's id and a moment, in seconds of the clock that all processes of a host share.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, run_id: str) -> None:
        """Say that a run has come to its last body."""
        line = f"{run_id} {time.monotonic()}\n".encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)  # one write, so that lines of two processes never mix
        finally:
            os.close(descriptor)

    def moments(self) -> dict[str, float]:
        """Return when each run first said so."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        found: dict[str, float] = {}
        for run_id, moment in map(str.split, lines):
            found.setdefault(run_id, float(moment))
        return found
