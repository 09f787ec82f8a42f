"""Saying that something fails: at once, then ever more rarely, and when it is over; or of many things of a kind only some."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Between two lines about things of one kind, in seconds.
KIND_PAUSE = 60.0

#: Kinds that are remembered; a name in a message may be anything, and nobody's memory should grow by it.
MOST_KINDS = 1000

#: Between two lines about the same failure: the first pause, which doubles up to the longest, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


class Complaints:
    """What the log says of a thing that is tried again and again.

    Args:
        subject: what it is called in the log.
        clock: returns seconds; tests move it.

    Example:
        >>> complaints = Complaints("agent-sweeper")
        >>> complaints.failed(ConnectionError("refused"))
        >>> complaints.succeeded()
    """

    def __init__(self, subject: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._subject, self._clock = subject, clock
        self._kind: type[Exception] | None = None
        self._since = self._say_at = self._pause = 0.0
        self._times = 0

    def failed(self, error: Exception) -> None:
        """Hear that it failed; failures of one class are one trouble, and are said once until some time has passed."""
        now = self._clock()
        if self._kind is None:
            self._since, self._times = now, 0
        self._times += 1
        if type(error) is not self._kind:
            self._kind, self._pause = type(error), FIRST_PAUSE
            often = ""
        elif now < self._say_at:
            return
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            often = f" (for {now - self._since:.0f} s now, {self._times} times)"
        self._say_at = now + self._pause
        logger.warning(
            "%s: %s: %s%s",
            self._subject,
            type(error).__name__,
            error,
            often,
            extra={"action": "loop_failed", "loop": self._subject},
        )

    def succeeded(self) -> None:
        """Hear that it works, which is said where it did not before."""
        if self._kind is None:
            return
        self._kind = None
        logger.warning(  # as loud as the trouble, so that whoever read of that reads this
            "%s: works again after %.0f s",
            self._subject,
            self._clock() - self._since,
            extra={"action": "loop_recovered", "loop": self._subject},
        )


class Seldom:
    """Lets one of many lines of a kind pass in a minute, and counts the others.

    Args:
        clock: returns seconds; tests move it.

    Example:
        >>> seldom = Seldom(clock=lambda: 0.0)
        >>> seldom.left_out("order.pay"), seldom.left_out("order.pay"), seldom.left_out("order.ship")
        (0, None, 0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed: dict[str, tuple[float, int]] = {}

    def left_out(self, kind: str) -> int | None:
        """Return how many lines of this kind were left out since the last that passed, or None if this one is, too."""
        now = self._clock()
        at, count = self._passed.get(kind, (float("-inf"), 0))
        if now < at + KIND_PAUSE:
            self._passed[kind] = (at, count + 1)
            return None
        if kind not in self._passed and len(self._passed) >= MOST_KINDS:
            del self._passed[next(iter(self._passed))]
        self._passed[kind] = (now, 0)
        return count
