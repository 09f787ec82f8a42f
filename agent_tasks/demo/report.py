"""What the demo ends with: both worlds side by side, as a table or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agent_tasks.demo.agent import LEASE_SECONDS
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.compared import Compared
from agent_tasks.demo.durable import Durable
from agent_tasks.demo.kills import CarriedOut, Kill

__all__ = ["Report"]

_ROWS = ("orders", "charges", "emails", "doubled", "lost")


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found out, with every number of a world read from its vendor's ledger."""

    carts: Sequence[Cart]
    planned: Sequence[Kill]
    durable: Durable
    plain: Compared

    @property
    def faults(self) -> list[str]:
        """What the durable side owes, or why it proves less than it says; none if all is well."""
        world, faults = self.durable.world, []
        if world["doubled"]:
            faults.append(f"{world['doubled']} effects happened twice")
        if world["lost"]:
            faults.append(f"{world['lost']} carts lack an order, a charge or an e-mail")
        if self.durable.succeeded != len(self.carts):
            faults.append(f"only {self.durable.succeeded} of {len(self.carts)} runs succeeded")
        if len(self.durable.kills) != len(self.planned):
            faults.append(f"only {len(self.durable.kills)} of {len(self.planned)} planned kills happened")
        if len(self.durable.recovery_seconds) != len(self.durable.kills):
            faults.append("not every killed step was seen to begin again")
        return faults

    def json(self) -> str:
        """One JSON object."""
        world = self.durable.world
        return json.dumps(
            {
                "runs": len(self.carts),
                "worker_kills": _count(self.durable.kills, "worker"),
                "child_kills": _count(self.durable.kills, "child"),
                "succeeded": self.durable.succeeded,
                "world": {kind: world[kind] for kind in ("orders", "charges", "emails")},
                "plain_celery": self.plain.world,
                "recovery_seconds": self.durable.recovery_seconds,
            }
        )

    def table(self) -> str:
        """The same for people."""
        both = (self.durable, self.plain)
        lines = [
            f"What the outside world got, by its own ledger, of {len(self.carts)} each that were wanted:",
            "",
            _row("", "agent tasks", "plain Celery"),
            *(_row(name, *(str(side.world[name]) for side in both)) for name in _ROWS),  # type: ignore[literal-required]
            _row("children killed", *(str(_count(side.kills, "child")) for side in both)),
            _row("workers killed", *(str(_count(side.kills, "worker")) for side in both)),
            "",
            "Seconds from each kill to the step's next attempt: "
            + ", ".join(f"{seconds:.1f}" for seconds in self.durable.recovery_seconds),
            "A dead child is noticed within half a second. The runs of a dead worker are taken over when their lease has run out, by a",
            f"worker that has seen the ledger for a whole lease ({LEASE_SECONDS:g} s) itself, so that kills in a row add up.",
        ]
        if len(self.plain.kills) < len(self.planned):
            lines.append("Plain Celery had no cart left for the rest of the kills.")
        return "\n".join(lines)


def _count(kills: Sequence[CarriedOut], who: str) -> int:
    return sum(done.kill.who == who for done in kills)


def _row(name: str, *cells: str) -> str:
    return f"  {name:<16}" + "".join(f"{cell:>14}" for cell in cells)
