"""What a probe can answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True)
class Happened:
    """The effect happened.

    Args:
        result: what the body would have returned; the step gets it.
        external_id: the vendor's name of it.

    Example:
        >>> Happened({"id": "ch_1"}, external_id="ch_1").external_id
        'ch_1'
    """

    result: Any = None
    external_id: str | None = None


@dataclass(frozen=True)
class NotHappened:
    """The effect did not happen and *cannot still happen*.

    Only true when the vendor voids or rejects the reference from now on, or when the tool's horizon and its
    ``visible_after`` have passed; before that the engine treats it as :class:`AskAgain`.
    """


@dataclass(frozen=True)
class AskAgain:
    """Nobody can tell yet.

    Args:
        after: how long to wait before the probe runs again.
    """

    after: timedelta


@dataclass(frozen=True)
class PartlyHappened:
    """A part of the effect happened; a person decides, with the evidence before him."""

    evidence: Any = field(default=None)


@dataclass(frozen=True)
class CannotTell:
    """The probe cannot tell, now or later; a person decides."""

    reason: str = ""


Answer = Happened | NotHappened | AskAgain | PartlyHappened | CannotTell
