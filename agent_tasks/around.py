"""What a user's own base class does around the body of a plain task: its ``__call__`` and its ``before_start``.

Celery's tracer would call both for each message, and so for each doorbell. A ``__call__`` that opens an app's context around
``self.run``, as many do, would then run the body with the arguments of the doorbell, and once for each, with no run and no
record; and what a ``before_start`` raises would be stored as the result of a run that goes on. So both are called where the
ledger says that the body is to be run, with the real arguments.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The task whose own ``__call__`` runs in this context, around a body that has not begun.
_around: ContextVar[Task | None] = ContextVar("agent_tasks_around", default=None)

#: Attributes of a task's class: what the user's own was.
_CALL, _BEFORE_START = "_users_call", "_users_before_start"


def keep_call(task: type[Task], base: type[Task]) -> None:
    """Put a ``__call__`` of the user's own around the body, and the base class's in its place.

    Args:
        task: the class of one task.
        base: this package's class.
    """
    if task.__call__ is not base.__call__:
        setattr(task, _CALL, task.__call__)
        setattr(task, "__call__", base.__call__)  # noqa: B010 - of a class, to mypy
        setattr(task, "run", _begun(inspect.getattr_static(task, "run")))  # noqa: B010


def keep_before_start(task: type[Task]) -> None:
    """Keep a ``before_start`` of the user's own from Celery's tracer, for :func:`call_before_start`."""
    if task.before_start is not Task.before_start:
        setattr(task, _BEFORE_START, task.before_start)
        setattr(task, "before_start", Task.before_start)  # noqa: B010


def call_body(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the body of a task, in what a ``__call__`` of the user's own does around it."""
    own = getattr(task, _CALL, None)
    if own is None:
        return task.run(*args, **kwargs)
    token = _around.set(task)
    try:
        return own(*args, **kwargs)
    finally:
        _around.reset(token)


def call_before_start(task: Task, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Call the user's own hook, in each attempt; what it raises ends the step as what the body raises does."""
    own = getattr(task, _BEFORE_START, None)
    if own is not None:
        own(task.request.id, args, kwargs)


def is_from_own_call(task: Task) -> bool:
    """Tell whether the base class's ``__call__`` is called by the user's own, as its ``super()``."""
    return _around.get() is task


def _begun(run: Any) -> Any:
    """Return a body that says that it has begun: a task that is called as a function in it is no ``super()`` any more."""
    function = getattr(run, "__func__", run)

    @wraps(function)
    def begun(*args: Any, **kwargs: Any) -> Any:
        token = _around.set(None)
        try:
            return function(*args, **kwargs)
        finally:
            _around.reset(token)

    return staticmethod(begun) if isinstance(run, staticmethod) else begun
