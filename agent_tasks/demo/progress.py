"""What the demo says while it runs, on stderr: steps, crashes and resumptions, a line each."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from agent_tasks.demo.journal import JournalEntry
from agent_tasks.demo.kills import CarriedOut
from agent_tasks.demo.operator import Answered

__all__ = ["Progress"]


class Progress:
    """Prints lines with the seconds since the start.

    Args:
        out: Where the lines go; stderr if not given.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._started = time.monotonic()
        self._kills_shown = 0

    def title(self, text: str) -> None:
        """Begin a part of the demo."""
        print(f"\n{text}", file=self._out)
        self._started, self._kills_shown = time.monotonic(), 0

    def say(self, what: str, about: str = "") -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._started:6.1f} s  {about:<12} {what}", file=self._out, flush=True)

    def steps(self, entries: Sequence[JournalEntry], carts: Mapping[str, str]) -> None:
        """Tell what the workers did.

        Args:
            entries: New ones of the journal.
            carts: The cart's id for each run's.
        """
        for entry in entries:
            said = _SAID.get(entry.action)
            if entry.action == "step_begun" and entry.attempt is not None and entry.attempt > 1:
                said = "resumed: step {step} begins, attempt {attempt}"
            if said is not None:
                self.say(said.format(step=entry.step, attempt=entry.attempt), carts.get(entry.run_id, entry.run_id))

    def kills(self, carried_out: Sequence[CarriedOut]) -> None:
        """Tell of the kills that were not told of yet."""
        for done in carried_out[self._kills_shown :]:
            whom = "the whole worker" if done.kill.who == "worker" else f"child {done.pid}"
            self.say(f"KILLED {whom}: {done.kill.tool} has happened and nobody has recorded it", done.cart)
        self._kills_shown = len(carried_out)

    def answers(self, answered: Sequence[Answered], carts: Mapping[str, str]) -> None:
        """Tell what the operator answered."""
        for one in answered:
            self.say(f"operator: {one.reply}, since {one.why}", carts.get(one.run_id, one.run_id))


_SAID = {
    "step_begun": "step {step}",
    "child_died": "its process is dead; the lease is given back",
    "child_killed": "its process is past its deadline and is killed",
    "lease_taken_over": "its lease ran out; taken over",
}
