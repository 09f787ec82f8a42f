"""What a step can return: its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_tasks.errors import BadOutcome
from agent_tasks.steps import StepState

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        output: what ``run.get()`` returns; must be storable. The state itself is returned as its dict.

    Example:
        >>> done({"paid": True})
        Done(output={'paid': True})
    """
    return Done(dict(output) if isinstance(output, StepState) else output)


def fail(reason: str) -> Fail:
    """End the run as failed.

    Args:
        reason: said by ``run.get()`` in its ``RunFailed``.

    Raises:
        BadOutcome: the reason is no text.

    Example:
        >>> fail("the card was declined")
        Fail(reason='the card was declined')
    """
    if not isinstance(reason, str):
        raise BadOutcome(f"fail(…) takes the reason as a text, got {reason!r}: write fail(str(…)) if that says it.")
    return Fail(reason)


def error_line(error: Mapping[str, Any]) -> str:
    """Return the recorded error of a run in a line: the reason of ``fail(…)`` or of a cancel as it is, else with its type.

    Example:
        >>> error_line({"type": "KeyError", "text": "'cart'"}), error_line({"type": "fail", "text": "no such cart"})
        ("KeyError: 'cart'", 'no such cart')
    """
    text = str(error.get("text", ""))
    return text if error.get("type", "fail") in ("fail", "cancelled") else f"{error['type']}: {text}"
