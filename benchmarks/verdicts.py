"""The budgets, and whether figures keep to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import history
from benchmarks.variants import VARIANTS


@dataclass(frozen=True)
class Verdict:
    """One budget.

    Attributes:
        place: where it was measured.
        what: was measured.
        measured: the figure.
        budget: what it has to keep to.
        at_least: the budget is the least that the figure may be, and else the most.
    """

    place: str
    what: str
    measured: float
    budget: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Tell whether the figure keeps to its budget."""
        return self.measured >= self.budget if self.at_least else self.measured <= self.budget

    def __str__(self) -> str:
        bound = f"{'≥' if self.at_least else '≤'} {self.budget:g}"
        return f"{self.place}: {self.what}: {self.measured:g} ({bound}) {'holds' if self.holds else 'MISSED'}"


def verdicts(places: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """Judge everything that has a budget.

    Args:
        places: what each place's parts have found, as in the report.
    """
    return [verdict for place, parts in places.items() for verdict in _of(place, parts)]


def _of(place: str, parts: Mapping[str, Any]) -> Iterator[Verdict]:
    if place == "servers":  # the embedded default is for a laptop, and has none
        for key, said in parts.get("speed", {}).items():
            budget = VARIANTS[key].budget
            if budget is not None:
                yield Verdict(place, VARIANTS[key].label, said["ratio"], budget, at_least=True)
    for what, said in parts.get("trips", {}).items():
        yield Verdict(place, f"round trips of {_NAMES[what]}", said["trips"], said["budget"])
    for what in ("claim", "sweep"):
        sizes = parts.get("history", {}).get(what, {})
        for size, said in sizes.items():
            if int(size) > min(map(int, sizes)):
                yield Verdict(place, f"{what} with {int(size):,} finished runs", said["ratio"], history.BUDGET)


_NAMES = {"step": "a step", "effect": "a first attempt with an effect", "read": "a first attempt of a read"}
