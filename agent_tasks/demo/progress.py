"""What the demo says while it runs, on stderr: steps, kills, resumptions and why, a line each."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from agent_tasks.demo.journal import JournalEntry
from agent_tasks.demo.kills import CarriedOut
from agent_tasks.demo.operator import Answered
from agent_tasks.demo.shop_ledger import Effect
from agent_tasks.demo.tally import cart_of

__all__ = ["Progress"]


class Progress:
    """Prints lines with the seconds since the start.

    Args:
        out: Where the lines go; stderr if not given.
        quiet_seconds: How long nothing may be said before :meth:`waits` speaks.
    """

    def __init__(self, out: TextIO | None = None, quiet_seconds: float = 2.0) -> None:
        self._out, self._quiet_seconds = out or sys.stderr, quiet_seconds
        self._started = self._said_at = time.monotonic()
        self._kills_shown = 0
        self._happened: Counter[tuple[str, str]] = Counter()

    def title(self, text: str) -> None:
        """Begin a part of the demo."""
        print(f"\n{text}", file=self._out, flush=True)
        self._started = self._said_at = time.monotonic()
        self._kills_shown = 0
        self._happened.clear()

    def say(self, what: str, about: str = "") -> None:
        """Print one line."""
        self._said_at = time.monotonic()
        print(f"{self._said_at - self._started:6.1f} s  {about:<12} {what}", file=self._out, flush=True)

    def waits(self, what: Callable[[], str]) -> None:
        """Tell what is waited for, if nothing was said for a while.

        Args:
            what: Gives the words; only called if they are needed.
        """
        if time.monotonic() - self._said_at >= self._quiet_seconds:
            self.say(f"waits {what()}")

    def steps(
        self, entries: Sequence[JournalEntry], carts: Mapping[str, str], why: Callable[[str], str | None]
    ) -> None:
        """Tell what the workers did.

        Args:
            entries: New ones of the journal.
            carts: The cart's id for each run's.
            why: Says for a run's id what it waits for; None if it has gone on meanwhile.
        """
        for entry in entries:
            said = _SAID.get(entry.action)
            if entry.action == "step_begun" and entry.attempt is not None and entry.attempt > 1:
                said = "resumed: step {step} begins, attempt {attempt}"
            if entry.action == "step_suspended":
                said = why(entry.run_id)
            elif said is not None:
                said = said.format(step=entry.step, attempt=entry.attempt, said=entry.said)
            if said is not None:
                self.say(said, carts.get(entry.run_id, entry.run_id))

    def kills(self, carried_out: Sequence[CarriedOut]) -> None:
        """Tell of the kills that were not told of yet."""
        for done in carried_out[self._kills_shown :]:
            whom = "the whole worker" if done.kill.who == "worker" else f"child {done.pid}"
            self.say(f"KILLED {whom}: {done.kill.tool} has happened and nobody has recorded it", done.cart)
        self._kills_shown = len(carried_out)

    def effects(self, ledger: Sequence[Effect]) -> None:
        """Tell of the effects in a shop's ledger that were not told of yet, and which of them happened before.

        Args:
            ledger: All of it, oldest first.
        """
        owner = cart_of(ledger)
        for effect in ledger[self._happened.total() :]:
            cart, kind = owner[effect["id"]], effect["kind"]
            self._happened[cart, kind] += 1
            times, done = self._happened[cart, kind], _DONE[kind]
            self.say(
                done if times == 1 else f"{done.upper()} AGAIN: the shop's ledger has {times} {kind}s of this cart",
                cart,
            )

    def answers(self, answered: Sequence[Answered], carts: Mapping[str, str]) -> None:
        """Tell what the operator answered."""
        for one in answered:
            self.say(
                f"the operator, asked about the e-mail, says {one.reply}, since {one.why}",
                carts.get(one.run_id, one.run_id),
            )


_SAID = {
    "step_begun": "step {step}",
    "child_died": "its process is dead; the lease is given back",
    "child_killed": "its process is past its deadline and is killed",
    "lease_taken_over": "its lease ran out; taken over",
    "told": "{said}",
}
_DONE = {"order": "ordered", "charge": "charged", "mail": "mailed"}
