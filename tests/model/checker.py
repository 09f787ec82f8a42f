"""Breadth-first search through every state that a model can reach.

Knows nothing of runs or tools. The trace it shows is a shortest one, because the search goes layer by layer.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(slots=True)
class Step(Generic[S]):
    """One transition that the model allows."""

    label: str
    state: S
    violation: str | None = None
    """The kind of rule that this transition breaks."""
    luck: bool = False
    """It may happen, but nobody may rely on it: it does not count as a way out for liveness."""


class Model(Protocol[S]):
    """What the checker needs to know of a model."""

    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterable[Step[S]]: ...

    def ended(self, state: S) -> bool: ...


@dataclass(frozen=True)
class Verdict:
    """What a search found: `kind` is "safe", "stuck" or the kind of the violation."""

    kind: str
    states: int
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.kind}, {self.states:,} states"]
        if self.trace:
            lines.append(f"shortest trace, {len(self.trace)} moves:")
        return "\n".join([*lines, *(f"  {n:>2}. {label}" for n, label in enumerate(self.trace, 1))])


class TooLarge(Exception):
    """The search met more states than its bound; a verdict would claim more than was looked at."""


class _Search(Generic[S]):
    def __init__(self, model: Model[S], limit: int) -> None:
        self.model = model
        self.limit = limit
        self.number: dict[S, int] = {}
        self.parents: list[tuple[int, str]] = []
        self.before: list[list[int]] = []

    def add(self, state: S, parent: int, label: str) -> int:
        if len(self.parents) >= self.limit:
            raise TooLarge(f"the model has more than {self.limit:,} states; lower its bounds or raise the limit")
        number = self.number[state] = len(self.parents)
        self.parents.append((parent, label))
        self.before.append([])
        return number

    def trace(self, number: int) -> list[str]:
        labels = []
        while number:
            number, label = self.parents[number]
            labels.append(label)
        return labels[::-1]

    def run(self) -> Verdict:
        start = self.model.initial()
        self.add(start, 0, "")
        layer = [(0, start)]
        while layer:
            following = []
            for here, state in layer:
                for step in self.model.steps(state):
                    if step.violation:
                        return Verdict(step.violation, len(self.parents), [*self.trace(here), step.label])
                    number = self.number.get(step.state)
                    if number is None:
                        number = self.add(step.state, here, step.label)
                        following.append((number, step.state))
                    if not step.luck:
                        self.before[number].append(here)
            layer = following
        stuck = next(self._without_a_way_out(), None)
        if stuck is None:
            return Verdict("safe", len(self.parents))
        return Verdict("stuck", len(self.parents), self.trace(stuck))

    def _without_a_way_out(self) -> Iterator[int]:
        """States, nearest first, from which no path leads to an end."""
        ends = [number for state, number in self.number.items() if self.model.ended(state)]
        hopeful = set(ends)
        while ends:
            for number in self.before[ends.pop()]:
                if number not in hopeful:
                    hopeful.add(number)
                    ends.append(number)
        return (number for number in range(len(self.parents)) if number not in hopeful)


def check(model: Model[S], limit: int = 1_000_000) -> Verdict:
    """Search every state of a model.

    Args:
        model: where to start, which steps a state allows, and which states are ends.
        limit: how many states to hold at most.

    Returns:
        The first violation with a shortest trace to it; else a state from which no path ends ("stuck"); else "safe",
        which then holds for every schedule within the model's bounds.

    Raises:
        TooLarge: the model has more than `limit` states.
    """
    collected = gc.isenabled()
    gc.disable()  # states are tuples without cycles, and looking for some takes a third of the time
    try:
        return _Search(model, limit).run()
    finally:
        if collected:
            gc.enable()
