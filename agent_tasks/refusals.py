"""What is said of a value that cannot be stored: what it is to whoever gave it, and where in it the trouble is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from checkpoint import codec
from checkpoint.errors import CheckpointError, UnstorableValue

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the parts of a step's end are called: the word that a path begins with, and what stands before the step.
_PARTS = {
    "output": "the output of",
    "agent_state": "the state after",
    "messages": "the messages after",
    "metadata": "the metadata after",
}


def refusal(error: CheckpointError, what: str, so: str = "") -> str:
    """Say why a value was not stored.

    Args:
        error: of its encoding.
        what: what the value is: ``the input of agent 'order'``.
        so: what did not happen because of it.

    Example:
        >>> refusal(UnstorableValue("value['cart'][1]", "a set has a reason"), "the input of agent 'order'")
        "['cart'][1] in the input of agent 'order' cannot be stored: a set has a reason"
    """
    if not isinstance(error, UnstorableValue):
        return f"{what} cannot be stored{so}: {error}"
    way = re.sub(r"^\w+", "", error.path)
    return f"{f'{way} in ' if way else ''}{what} cannot be stored{so}: {error.reason}"


def refused_argument(error: CheckpointError, arguments: Mapping[str, Any], subject: str, so: str) -> str:
    """Say which argument of a tool or a task was not stored, and why; see :func:`refusal`."""
    for name, value in arguments.items():
        try:
            codec.encode(value)
        except CheckpointError as of_this_one:
            return refusal(of_this_one, f"argument {name!r} of {subject}", so)
    return refusal(error, f"what {subject} is called with", so)


def refused_end(error: UnstorableValue, subject: str) -> str:
    """Say what of a step's end was not stored, and why; ``subject`` is the step, or the plain task.

    Example:
        >>> refused_end(UnstorableValue("agent_state['cart']", "a set has a reason"), "step 'pay'")
        "['cart'] in the state after step 'pay' cannot be stored: a set has a reason"
    """
    part = _PARTS.get(re.split(r"\W", error.path)[0])
    return str(error) if part is None else refusal(error, f"{part} {subject}")
