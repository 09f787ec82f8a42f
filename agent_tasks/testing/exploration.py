"""What an exploration found, for a reader and as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent_tasks.boundary import Point
    from agent_tasks.testing.ending import Ending
    from agent_tasks.testing.faults import Broker, Fault


@dataclass(frozen=True)
class Schedule:
    """One play with faults in it.

    Attributes:
        faults: in their order; the second one meets the process that recovers from the first.
        broker: ``redelivers`` the message that was not acked, or was ``emptied``.
        met: for each fault that was met, whether an attempt was open then (the run was ``running``).
        problems: empty if the recovery was right.
    """

    faults: tuple[Fault, ...]
    broker: Broker
    met: tuple[bool, ...]
    problems: tuple[str, ...]

    @property
    def point(self) -> Point:
        """The boundary of the last fault."""
        return self.faults[-1].point

    @property
    def crashed(self) -> bool:
        """Whether every fault was met at all."""
        return len(self.met) == len(self.faults)

    @property
    def failed(self) -> bool:
        """Whether something was wrong, or a fault never met its crossing."""
        return bool(self.problems) or not self.crashed

    def __str__(self) -> str:
        faults = ", then ".join(map(str, self.faults))
        return f"{faults} (broker {self.broker}): {'; '.join(self.problems) or 'ok'}"


@dataclass
class Exploration:
    """What an exploration found.

    Attributes:
        ending: how the run ends without a fault.
        points: the boundaries that the run crosses without a fault, in order.
        schedules: the plays with faults.
        seed: of the draw, where not every schedule was played.
    """

    ending: Ending
    points: list[Point] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    seed: int | None = None

    @property
    def failures(self) -> list[Schedule]:
        """The schedules that went wrong, and those that never met their crossing."""
        return [schedule for schedule in self.schedules if schedule.failed]

    def summary(self) -> dict[str, Any]:
        """Return the numbers as JSON can hold them.

        Returns:
            ``ending`` (``status`` with the ``output`` or the ``error``, shortened, and the ``step`` that failed),
            ``crossings`` and ``boundaries`` of a run without a fault; ``schedules``, how many of them with a fault that met
            an open attempt, the ``seed`` if they were drawn; the same numbers for each boundary (of the last fault); and what
            is ``wrong``.
        """
        return {
            "ending": self.ending.summary(),
            "crossings": len(self.points),
            "boundaries": len(set(self.points)),
            "schedules": len(self.schedules),
            "met_an_open_attempt": sum(any(schedule.met) for schedule in self.schedules),
            "seed": self.seed,
            "by_boundary": by_boundary((s.point, s.met[-1]) for s in self.schedules if s.crashed),
            "wrong": [str(schedule) for schedule in self.failures],
        }

    def report(self) -> str:
        """Return the same for a reader: how the run ends, how often each boundary was hit, and what went wrong."""
        found = self.summary()
        drawn = "" if self.seed is None else f", drawn with seed {self.seed}"
        lines = [f"without a fault the run {self.ending}"]
        lines += [f"{found['crossings']} crossings of {found['boundaries']} boundaries"]
        lines += [f"{found['schedules']} schedules{drawn}; {found['met_an_open_attempt']} met an open attempt"]
        lines += [
            f"  {hit['schedules']:4d} × {name} ({hit['met_an_open_attempt']} open)"
            for name, hit in found["by_boundary"].items()
        ]
        return "\n".join([*lines, *(f"  WRONG {wrong}" for wrong in found["wrong"])])


def by_boundary(hits: Iterable[tuple[Point, bool]]) -> dict[str, dict[str, int]]:
    """Count how often each boundary was hit, and how often an attempt was open then.

    Example:
        >>> from agent_tasks.boundary import Point
        >>> by_boundary([(Point("ack", "doorbell", "before"), True)])
        {'before ack doorbell': {'schedules': 1, 'met_an_open_attempt': 1}}
    """
    found = list(hits)
    every = Counter(str(point) for point, _ in found)
    opened = Counter(str(point) for point, is_open in found if is_open)
    return {name: {"schedules": every[name], "met_an_open_attempt": opened[name]} for name in sorted(every)}
