"""What a step can return: its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """The run succeeded."""

    output: Any = None


@dataclass(frozen=True)
class Fail:
    """The run failed."""

    reason: str


@dataclass(frozen=True)
class Next:
    """The run goes on with another step."""

    step: str


Outcome = Done | Fail | Next


def done(output: Any = None) -> Done:
    """End the run as succeeded.

    Args:
        output: what ``run.get()`` returns; must be storable.

    Example:
        >>> done({"paid": True})
        Done(output={'paid': True})
    """
    return Done(output)


def fail(reason: str) -> Fail:
    """End the run as failed.

    Args:
        reason: said by ``run.get()`` in its ``RunFailed``.

    Example:
        >>> fail("the card was declined")
        Fail(reason='the card was declined')
    """
    return Fail(reason)
