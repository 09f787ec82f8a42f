"""What the demo ends with: both worlds side by side, as a table or as one JSON object.

The table has a row for each kind of effect and side: how many carts got exactly one, more than one, or none. A row adds
up to the number of carts. The object's ``orders``, ``charges`` and ``emails`` count effects, repetitions included; its
``doubled`` is the number of pairs of a cart and a kind that happened more than once, and its ``lost`` the number of those
that never happened: the sums of the table's last two columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agent_tasks.demo.agent import LEASE_SECONDS
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.compared import Compared
from agent_tasks.demo.durable import Durable
from agent_tasks.demo.kills import CarriedOut, Kill
from agent_tasks.demo.tally import Share, Tally

__all__ = ["Report"]

#: How plain Celery is set up, and what its numbers do and do not say.
_ABOUT_PLAIN = """\
Plain Celery has the same shop and the same kills, each right after the shop's answer. A cart is a chain of three tasks of
one call each, with acks_late, reject_on_worker_lost, prefetch 1, results in SQL, and autoretry where the connection was refused.
An order carries the same idempotency key in every attempt. worker_deduplicate_successful_tasks is on and cannot help: the kill
comes before a success is stored.
  Doubled: a task whose child was killed is delivered again, and its charge or e-mail happens again, unless its worker is killed
    before it has given the message back.
  Lost: this broker, a folder of files, forgets what a killed worker held, prefetched tasks too; with a task goes the rest of its
    chain. This is the broker's doing. Redis gives such tasks out again after the visibility timeout (an hour by default), RabbitMQ
    at once: then nothing is missing, and a call that had happened happens again.
  Not tried: tasks that ask before they charge again. The shop can be asked about a charge, which is what the probe of the agent
    tasks does, and a task could do it by hand. An e-mail it cannot be asked about: there the agent tasks stopped and asked a
    person, for whom the demo looked into the mail log."""

_KINDS = {"orders": "orders", "charges": "charges", "emails": "e-mails"}


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
        faults, wanted = [], len(self.carts)
        for kind, name in _KINDS.items():
            share = _share(self.durable.world, kind)
            if (share.once, share.more, share.none) != (wanted, 0, 0):
                faults.append(
                    f"{name}: of {wanted} carts {share.once} got exactly one, {share.more} more than one, {share.none} none"
                )
        if self.durable.succeeded != wanted:
            faults.append(f"only {self.durable.succeeded} of {wanted} runs succeeded")
        if len(self.durable.kills) != len(self.planned):
            faults.append(f"only {len(self.durable.kills)} of {len(self.planned)} planned kills happened")
        if len(self.durable.recovery_seconds) != len(self.durable.kills):
            faults.append("not every killed step was seen to begin again")
        return faults

    def json(self) -> str:
        """One JSON object."""
        plain = self.plain.world
        return json.dumps(
            {
                "runs": len(self.carts),
                "worker_kills": _count(self.durable.kills, "worker"),
                "child_kills": _count(self.durable.kills, "child"),
                "succeeded": self.durable.succeeded,
                "world": _effects(self.durable.world),
                "plain_celery": {**_effects(plain), "doubled": plain.doubled, "lost": plain.lost},
                "recovery_seconds": self.durable.recovery_seconds,
            }
        )

    def table(self) -> str:
        """The same for people."""
        sides: dict[str, Durable | Compared] = {"agent tasks": self.durable, "plain Celery": self.plain}
        lines = [
            f"What the outside world got, by the shop's own ledger. Of {len(self.carts)} carts, so many got",
            "",
            _row("", "", "exactly one", "more than one", "none"),
        ]
        for kind, name in _KINDS.items():
            for label, side in zip((name, ""), sides, strict=True):
                share = _share(sides[side].world, kind)
                lines.append(_row(label, side, *map(str, (share.once, share.more, share.none))))
        lines.append("")
        for side, bought in sides.items():
            children = _number(_count(bought.kills, "child"), "child", "children")
            workers = _number(_count(bought.kills, "worker"), "whole worker", "whole workers")
            lines.append(f"Killed under {side}: {children}, {workers}.")
        missed = len(self.planned) - len(self.plain.kills)
        if missed:
            lines += [
                f"Not all planned kills found a cart under plain Celery: {missed} of {len(self.planned)} did not happen, since too few carts",
                "were left that came to the call that was to be hit. So it was killed less often, which flatters it.",
            ]
        lines += [
            "",
            "Seconds from each kill to the step's next attempt: "
            + ", ".join(f"{seconds:.1f}" for seconds in self.durable.recovery_seconds),
            "A dead child is noticed within half a second. The runs of a dead worker are taken over when their lease has run out, by a",
            f"worker that has seen the ledger for a whole lease ({LEASE_SECONDS:g} s) itself, so that kills in a row add up.",
            "",
            _ABOUT_PLAIN,
        ]
        return "\n".join(lines)


def _share(world: Tally, kind: str) -> Share:
    share: Share = getattr(world, kind)
    return share


def _effects(world: Tally) -> dict[str, int]:
    return {kind: _share(world, kind).effects for kind in _KINDS}


def _count(kills: Sequence[CarriedOut], who: str) -> int:
    return sum(done.kill.who == who for done in kills)


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _row(kind: str, side: str, *cells: str) -> str:
    return f"  {kind:<9}{side:<14}" + "".join(f"{cell:>15}" for cell in cells)
