"""What the workers of the demo say about steps: the engine's own log, as JSON lines in a file that the demo reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JOURNAL_VARIABLE", "Journal", "JournalEntry", "keep_journal"]

#: The environment variable that names the file; unset means that nothing is written.
JOURNAL_VARIABLE = "AGENT_DEMO_JOURNAL"
_FIELDS = ("action", "run_id", "step", "attempt", "said")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One thing that a worker did with a run.

    Attributes:
        action: what it did, in the engine's word: ``step_begun``, ``child_died``, ``lease_taken_over`` …; or ``told``
            where a tool of the demo has something to say.
        run_id: of the run.
        step: of the run, where the action is about one.
        attempt: number of the attempt at that step.
        at: microseconds since 1970, UTC.
        said: what a tool of the demo says.
    """

    action: str
    run_id: str
    at: int
    step: str | None = None
    attempt: int | None = None
    said: str | None = None


def keep_journal(environ: Mapping[str, str]) -> None:
    """Let this process, and those that it forks, write down what the engine logs about runs.

    Args:
        environ: Names the file as ``AGENT_DEMO_JOURNAL``; without it nothing happens.
    """
    path = environ.get(JOURNAL_VARIABLE)
    if not path:
        return
    handler = logging.FileHandler(path, encoding="utf-8")  # appends, and each line is one write
    handler.setFormatter(_AsJson())
    handler.addFilter(lambda record: hasattr(record, "action") and hasattr(record, "run_id"))
    logger = logging.getLogger("agent_tasks")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


class Journal:
    """Reads the file while workers write it.

    Args:
        path: The file; it may not be there yet.

    Example:
        >>> Journal("nowhere.jsonl").new_entries()
        []
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._read_to = 0
        self.entries: list[JournalEntry] = []

    def new_entries(self) -> list[JournalEntry]:
        """Read what was written since the last call; all of it stays in ``entries``."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]  # the last line may be half written
        self._read_to += len(whole)
        new = [JournalEntry(**json.loads(line)) for line in whole.splitlines()]
        self.entries.extend(new)
        return new

    def resumed_at(self, run_id: str, killed_at: int) -> int | None:
        """When a run that lost its process was worked on again: its next attempt's start, or None if there is none."""
        begun = (e.at for e in self.entries if e.action == "step_begun" and e.run_id == run_id and e.at > killed_at)
        return min(begun, default=None)


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        return json.dumps({**said, "at": int(record.created * 1_000_000)})
