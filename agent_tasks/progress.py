"""How far this process is with the request of a plain task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tasks.suspensions import RetryLater

#: In a request: the progress of this process with it.
_KEY = "agent_progress"


@dataclass
class Progress:
    """What this process knows of its work on a request.

    It is an object, which no message holds: whoever sends one cannot say that its call is answered already.

    Attributes:
        answered: its run is, or was, worked on here, so that a further call of the task is one of the body's own.
        eager: it is a call by ``.apply()``.
        shown: the request has the real arguments.
        kept: when the run ended, of which Celery has to hear; None if it has not.
        ended: how the run ended.
        retry: what the body's ``self.retry`` raised.
    """

    answered: bool = False
    eager: bool = False
    shown: bool = False
    kept: int | None = None
    ended: str | None = None
    retry: RetryLater | None = None

    @classmethod
    def of(cls, request: Any) -> Progress:
        """Return the progress with a request."""
        found = request.get(_KEY)
        if not isinstance(found, cls):
            found = cls()
            request.update({_KEY: found})
        return found
