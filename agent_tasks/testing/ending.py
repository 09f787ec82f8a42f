"""How a run ended, for a reader and to compare: with what output, or in which step and why it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_tasks.cli.output import short
from agent_tasks.operations import qualified
from agent_tasks.outcomes import error_line
from agent_tasks.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Longest output or error in a report, in characters.
LONGEST_SAID = 300

#: What the record of a failed run calls an end that somebody chose: the agent by ``fail(…)``, or a person.
_CHOSEN = ("fail", "aborted")


@dataclass(frozen=True)
class Ending:
    """How a run ended, or how it was left.

    Attributes:
        status: of the run.
        output: of ``done(…)``.
        error: as it is recorded of a run that failed or was cancelled.
        step: in which it failed, where that is known.

    Example:
        >>> print(Ending(RunStatus.SUCCEEDED, output=[1, 2]))
        succeeded with [1, 2]
        >>> print(Ending(RunStatus.FAILED, error={"type": "KeyError", "text": "'nn'"}, step="buy"))
        failed in step buy: KeyError: 'nn'
    """

    status: RunStatus
    output: Any = None
    error: Mapping[str, Any] = field(default_factory=dict)
    step: str | None = None

    @property
    def raised(self) -> str | None:
        """The qualified name of the exception that the run failed with; None if it ended in another way."""
        kind = str(self.error.get("type", ""))
        return kind if self.status is RunStatus.FAILED and kind not in _CHOSEN else None

    def is_like(self, other: Ending) -> bool:
        """Tell whether both ended alike: with one status and output, or with errors of one kind, whose words may differ."""
        return (self.status, self.output, self.error.get("type")) == (
            other.status,
            other.output,
            other.error.get("type"),
        )

    def summary(self) -> dict[str, str]:
        """Return the same as JSON can hold it: ``status``, and ``output`` or ``error`` (shortened) and ``step``."""
        said = {"status": str(self.status)}
        if self.status is RunStatus.SUCCEEDED:
            said["output"] = short(self.output, LONGEST_SAID)
        if self.error:
            said["error"] = short(error_line(self.error), LONGEST_SAID)
        if self.step is not None:
            said["step"] = self.step
        return said

    def __str__(self) -> str:
        said = self.summary()
        where = f" in step {self.step}" if self.step is not None else ""
        if self.status is RunStatus.SUCCEEDED:
            return f"succeeded with {said['output']}"
        if self.status is RunStatus.FAILED:
            by = " by its own fail(…)" if self.error.get("type") == "fail" else ""
            return f"failed{by}{where}: {said.get('error', '')}"
        return (
            "was " + said["error"] if self.status is RunStatus.CANCELLED and self.error else f"was left {self.status!s}"
        )


def is_one_of(raised: str, classes: tuple[type[BaseException], ...]) -> bool:
    """Tell whether a recorded exception is of one of these classes, or of one that is made from them.

    Args:
        raised: the qualified name of its class, which is all that a ledger keeps of it.
        classes: to look among.

    Example:
        >>> is_one_of("KeyError", (LookupError,)), is_one_of("KeyError", (OSError,))
        (True, False)
    """
    return any(raised in _names(cls) for cls in classes)


def _names(cls: type[BaseException]) -> Iterator[str]:
    yield from (
        qualified(cls),
        cls.__name__,
    )  # what the engine itself refuses at the commit is recorded without a module
    for made in type.__subclasses__(cls):
        yield from _names(made)
