"""Whether code is at work for a Celery worker: there, what is on a ledger of its own is forgotten by a crash and done again."""

from __future__ import annotations

from typing import Any

from celery import signals
from celery._state import _task_stack

from agent_tasks.current import attempt_of_this_context
from agent_tasks.doorbell import InlineBell

#: The worker of the command line that this process is, or was forked from.
_worker: Any = None


def in_worker() -> bool:
    """Tell whether this process is a worker or a child of one, or this thread works on a task that a worker received.

    So does a thread into which a step has carried its run.

    A worker that somebody runs in a thread of his own process, as test suites do, is no reason to refuse anything
    outside of its tasks.

    Example:
        >>> in_worker()
        False
    """
    attempt = attempt_of_this_context()
    if _worker is not None or (attempt is not None and not isinstance(attempt.runtime.bell, InlineBell)):
        return True
    received = (task.request for task in _task_stack.stack)
    return any(not request.called_directly and not request.is_eager for request in received)


def _begins(sender: Any = None, **_more: Any) -> None:
    from celery.apps.worker import Worker  # which only a worker needs

    global _worker  # before it forks, so that its children know
    if isinstance(sender, Worker):
        _worker = sender


def _ends(sender: Any = None, **_more: Any) -> None:
    global _worker
    if sender is _worker:
        _worker = None


signals.worker_init.connect(_begins, weak=False)
signals.worker_shutdown.connect(_ends, weak=False)
