"""How an agent's steps share a message: what ``coalesce=`` says."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from agent_tasks.errors import ConfigurationError, did_you_mean

#: A checkpoint is committed after each step.
EACH = "each"

#: Steps that call no tool wait for the next boundary with their checkpoints.
BOUNDARIES = "boundaries"


@dataclass(frozen=True)
class Coalesce:
    """How steps share a message.

    Args:
        seconds: once so many have passed since the message was answered, its next step has a message of its own: other runs
            wait for a worker, too. The step under way is not cut short.
        checkpoints: when they are committed. ``each``: after each step. ``boundaries``: those of steps that made no recorded
            call wait until there is something that must not be done twice, or be lost: before the next recorded call of a
            tool, after a step that made one, and at an outcome other than another step.

    Raises:
        ConfigurationError: ``seconds`` is no number above 0, or there is no such way to commit checkpoints.

    Example:
        >>> Coalesce(seconds=2.5)
        Coalesce(seconds=2.5, checkpoints='each')
        >>> Coalesce(checkpoints="boundary")
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: checkpoints= of Coalesce must be 'each' or 'boundaries', got 'boundary'. Did you mean 'boundaries'?
    """

    seconds: float = 1.0
    checkpoints: str = EACH

    def __post_init__(self) -> None:
        if type(self.seconds) not in (int, float) or not isfinite(self.seconds) or self.seconds <= 0:
            raise ConfigurationError(f"seconds= of Coalesce must be a number above 0, got {self.seconds!r}.")
        if self.checkpoints not in (EACH, BOUNDARIES):
            near = did_you_mean(str(self.checkpoints), (EACH, BOUNDARIES))
            raise ConfigurationError(
                f"checkpoints= of Coalesce must be {EACH!r} or {BOUNDARIES!r}, got {self.checkpoints!r}.{near}"
            )


def coalesce_of(given: object, subject: str) -> Coalesce | None:
    """Return what ``coalesce=`` says; None for an agent each of whose steps has a message of its own.

    Raises:
        ConfigurationError: it is neither True or False nor a Coalesce.

    Example:
        >>> coalesce_of(True, "agent 'shop'")
        Coalesce(seconds=1.0, checkpoints='each')
    """
    if given is None or given is False:
        return None
    if given is True:
        return Coalesce()
    if isinstance(given, Coalesce):
        return given
    meant = ""
    if isinstance(given, str):
        meant = f" Write Coalesce(checkpoints={given!r})." if given in (EACH, BOUNDARIES) else ""
    elif isinstance(given, (int, float)):
        meant = f" Write Coalesce(seconds={given!r})."
    elif given is Coalesce:
        meant = " Write Coalesce()."
    raise ConfigurationError(f"coalesce= of {subject} must be True, False or a Coalesce, got {given!r}.{meant}")
