"""Messages as the worker's parent gets them: what it would end by does not come to its event loop.

Anybody may send a message, and one that is not acked comes to the next worker. So a message that is none is rejected for
good, and of one that says something about itself which no worker can go by, that is left out.
"""

from __future__ import annotations

import logging
import reprlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError
from celery.worker.strategy import default

from agent_tasks.limits import are_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery, Task

logger = logging.getLogger(__name__)


def strategy(task: Task, app: Celery, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Return what receives the messages of a task: Celery's own, which ends its worker by one that it cannot read.

    Args:
        task: whose messages.
        app: of the worker.
        consumer: of the worker.
        **options: of Celery's own.

    Returns:
        A function that raises Celery's ``InvalidTaskError``, by which it rejects the message and says so.
    """
    receive = default(task, app, consumer, **options)

    def received(message: Any, body: Any, *rest: Any, **more: Any) -> Any:
        if not isinstance(body or message.payload, (list, tuple, dict)):
            raise _unreadable(
                f"its body must be a list of arguments, a dict of them and a dict, got {reprlib.repr(message.payload)}"
            )
        return receive(message, body, *rest, **more)

    return received


@contextmanager
def rejecting() -> Iterator[None]:
    """Have a message rejected whose headers nobody can read.

    Raises:
        InvalidTaskError: so it is.
    """
    try:
        yield
    except InvalidTaskError:
        raise
    except Exception as error:
        raise _unreadable(f"it cannot be read: {type(error).__name__}: {error}") from error


def readable(task_id: object, payload: Any) -> tuple[Any, Any, Any]:
    """Return the arguments of a message, and what stands beside them.

    Raises:
        InvalidTaskError: its id is no text, or it has no arguments.
    """
    if not isinstance(task_id, str):
        raise _unreadable(f"its id must be a text, got {reprlib.repr(task_id)}")
    whole = isinstance(payload, (list, tuple)) and len(payload) == 3
    if not whole or not isinstance(payload[0], (list, tuple)) or not isinstance(payload[1], dict):
        raise _unreadable(
            f"its body must be a list of arguments, a dict of them and a dict, got {reprlib.repr(payload)}"
        )
    args, kwargs, embedded = payload
    return args, kwargs, embedded


def countable(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message without time limits and stamps that the parent of a worker would stumble over."""
    kept = dict(headers)
    if not are_limits(kept.get("timelimit")):
        _leave_out(kept, "timelimit", None)
    stamps, stamped = kept.get("stamps"), kept.get("stamped_headers")
    if not isinstance(stamps, (dict, type(None))):
        _leave_out(kept, "stamps", {})
    known = kept.get("stamps") or {}
    if stamped and not (isinstance(stamped, list) and all(isinstance(name, str) and name in known for name in stamped)):
        _leave_out(kept, "stamped_headers", None)
    return kept


def _leave_out(headers: dict[str, Any], name: str, instead: object) -> None:
    logger.warning(
        "%s[%s]: header %r of the message is of no use and is left out, got %s",
        headers.get("task"),
        headers.get("id"),
        name,
        reprlib.repr(headers[name]),
        extra={"action": "header_ignored", "task": headers.get("task")},
    )
    headers[name] = instead


def _unreadable(why: str) -> InvalidTaskError:
    return InvalidTaskError(f"a message was rejected for good: {why[:500]}")
