"""One way to build the protocol, or one world to put it into, and the verdict that it must get."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .checker import Verdict, check
from .protocol import Protocol
from .rules import EFFECTS, PROTECTIONS, Rules

SAFE = "safe"
STUCK = "stuck"

READ, REPEATABLE, TRANSACTIONAL, KEYED, PROBED, MANUAL = ((effect,) for effect in EFFECTS)

MORE_CLAIMS = {"short": 0, "full": 1}
"""By how many claims each form of the check goes beyond the bound of a variation that grows."""

DESIGN = Rules(READ)


@dataclass(frozen=True)
class Variation:
    """One way to build the protocol, or one world to put it into."""

    name: str
    rules: Rules
    expected: str
    forgiven: frozenset[str] = frozenset()
    only_in_full: bool = False
    """Too large for the tests: `make model` checks it."""
    grows: bool = False
    """`make model` checks it within wider bounds."""

    def check(self, form: str = "short") -> Verdict:
        more = MORE_CLAIMS[form] if self.grows else 0
        rules = replace(self.rules, max_fence=self.rules.max_fence + more)
        return check(Protocol(rules, self.forgiven))

    @property
    def changed(self) -> list[str]:
        """The protections that are taken out or weakened."""
        return [name for name in PROTECTIONS if getattr(self.rules, name) != getattr(DESIGN, name)]

    @property
    def is_designed(self) -> bool:
        return not self.changed and not self.forgiven


def designed(name: str, effects: tuple[str, ...], *, only_in_full: bool = False, **world: object) -> Variation:
    world = {"answers_get_lost": True, **world}
    rules = Rules(effects, **world)  # type: ignore[arg-type]
    return Variation(name, rules, SAFE, only_in_full=only_in_full, grows=not only_in_full)


def but(
    name: str, expected: str, effects: tuple[str, ...], *past: str, only_in_full: bool = False, **fields: object
) -> Variation:
    rules = Rules(effects, **fields)  # type: ignore[arg-type]
    return Variation(name, rules, expected, frozenset(past), only_in_full)
