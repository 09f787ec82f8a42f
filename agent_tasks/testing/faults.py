"""Faults: what may happen to a process at a boundary that it crosses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent_tasks.boundary import Point

Kind = Literal["crash", "lost answer", "cancel", "cancel and crash"]
Broker = Literal["redelivers", "emptied"]


class Crash(BaseException):
    """The process is dead. Every later boundary of its runtime raises it again, so nothing more of it happens."""


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule.

    Attributes:
        index: of the crossing that it meets: of the run from its start, or from the fault before.
        point: the boundary there.
        kind: ``crash``; ``lost answer``: the process goes on, and does not know whether its commit happened;
            ``cancel``: somebody cancels the run; ``cancel and crash``: and the process dies before it hears of it.
    """

    index: int
    point: Point
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind} {self.point} (crossing {self.index})"


def faults_at(
    points: list[Point], *, lost_answers: bool, cancels: bool = False, holding: Collection[str] = ()
) -> list[Fault]:
    """Return every fault that can meet one of these crossings.

    Args:
        points: that were crossed, in order.
        lost_answers: answers of commits can be lost.
        cancels: somebody can cancel the run.
        holding: tools in whose bodies the step holds locks that would keep a canceller waiting.
    """
    found = [Fault(index, point, "crash") for index, point in enumerate(points)]
    for index, point in enumerate(points):
        if lost_answers and (point.kind, point.moment) == ("commit", "after"):
            found.append(Fault(index, point, "lost answer"))
        waits = (point.kind, point.moment) == ("commit", "before") or (point.kind == "effect" and point.name in holding)
        if cancels and not waits:
            found += [Fault(index, point, "cancel"), Fault(index, point, "cancel and crash")]
    return found


def lose_answer() -> NoReturn:
    """Raise what a driver raises when the connection breaks before a commit was answered."""
    raise OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))
