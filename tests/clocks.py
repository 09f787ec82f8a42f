"""A clock for tests that count on how much fits into a second: a busy machine changes nothing there."""

from __future__ import annotations

from agent_tasks.clock import Clock


class StandingClock(Clock):
    """Its local time passes only where a test moves it; that of the database goes on, as it does everywhere."""

    def __init__(self) -> None:
        super().__init__(0)
        self._stands_at = super().local()

    def local(self) -> float:
        """See :meth:`Clock.local`."""
        return self._stands_at + self._offset_seconds
