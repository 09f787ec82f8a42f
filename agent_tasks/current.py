"""What this thread of control works for: an attempt, and within it the bodies that are running."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_tasks.errors import OutsideRun
from agent_tasks.threads import Home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Request

_current: ContextVar[Attempt | None] = ContextVar("agent_tasks_current_run", default=None)


@dataclass
class Body:
    """The body of a recorded call, while it runs: calls made in it are nested."""

    request: Request
    home: Home = field(default_factory=Home)
    ended: bool = False
    spoiled: bool = False  # a call made in it ended the attempt, so that whatever it returns is built on a doubt

    def be_at_home(self) -> None:
        """Begin an async body: from now on its calls have their order in this task."""
        self.home = Home()


#: Bodies that are running, outermost first. Of a thread of control, since a keyed call in another thread is not what
#: the step's own calls are made in.
bodies: ContextVar[tuple[Body, ...]] = ContextVar("agent_tasks_bodies", default=())


def attempt_of_this_context() -> Attempt | None:
    """Return the attempt that this thread of control works for, or None outside a run."""
    return _current.get()


@contextmanager
def working_for(attempt: Attempt) -> Iterator[None]:
    """Bind this context to an attempt; a body may run another run inline, whose calls are not its own."""
    current, inside = _current.set(attempt), bodies.set(())
    try:
        yield
    finally:
        bodies.reset(inside)
        _current.reset(current)


@contextmanager
def outside_run() -> Iterator[None]:
    """Let code that is no part of a step, such as the encoding of a value, call no tool as if it were."""
    current = _current.set(None)
    try:
        yield
    finally:
        _current.reset(current)


class CurrentRun:
    """What a step may ask about its run: ``current_run.run_id``, ``.seq``, ``.step``, ``.retries``, ``.messages``.

    Example:
        >>> current_run.run_id
        Traceback (most recent call last):
        agent_tasks.errors.OutsideRun: current_run.run_id was read outside a step of a run.
    """

    _readable = frozenset({"run_id", "seq", "step", "line", "number", "retries", "messages"})

    def __getattr__(self, name: str) -> Any:
        if name not in self._readable:
            raise AttributeError(f"current_run has no {name!r}; it has {', '.join(sorted(self._readable))}.")
        attempt = _current.get()
        if attempt is None:
            raise OutsideRun(f"current_run.{name} was read outside a step of a run.")
        return getattr(attempt, name)


current_run = CurrentRun()
