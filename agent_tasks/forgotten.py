"""Tasks that have an option of this package and not its base class: plain Celery, which takes any option, and guards nothing."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from agent_tasks.states import Effect, Mode
from agent_tasks.task import LedgerTask
from agent_tasks.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery, Task

logger = logging.getLogger(__name__)


def _is_word(words: type[Effect | Mode], given: object) -> bool:
    return isinstance(given, str) and given in [str(word) for word in words]


def _is_time(given: object) -> bool:
    return isinstance(given, timedelta)


#: What is ours beyond doubt. A task of anybody's may have a ``timeout`` of its own, or a ``why``.
_OURS = {
    "effect": lambda given: _is_word(Effect, given),
    "agent_mode": lambda given: _is_word(Mode, given),
    "tools": lambda given: isinstance(given, (list, tuple)) and any(isinstance(each, Tool) for each in given),
    "dedupe_on": lambda given: isinstance(given, (str, list, tuple)),
    "key_lifetime": _is_time,
    "visible_after": _is_time,
    "settle": _is_time,
}


def forgotten(app: Celery) -> dict[str, list[str]]:
    """Return the tasks without our base class that have options of ours, and those options.

    Args:
        app: whose tasks are looked at.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="memory://", set_as_current=False)
        >>> @app.task(name="pay", effect="keyed", dedupe_on=("order_id",), shared=False)
        ... def pay(order_id):
        ...     ...
        >>> forgotten(app)
        {'pay': ['effect', 'dedupe_on']}
    """
    found = {name: list(_ours(task)) for name, task in sorted(app.tasks.items()) if not isinstance(task, LedgerTask)}
    return {name: options for name, options in found.items() if options}


def _ours(task: Task) -> Iterator[str]:
    for option, is_ours in _OURS.items():
        if is_ours(getattr(task, option, None)):
            yield option


def warn_of_forgotten_bases(instance: Any, **_more: Any) -> None:
    """Say it at a worker's start.

    Args:
        instance: the worker.
    """
    for name, options in forgotten(instance.app).items():
        said = ", ".join(f"{option}=" for option in options)
        logger.warning(
            "task %s has %s, and its base class is not AgentTask, so that nothing reads it: its calls are plain Celery, recorded "
            "nowhere, and may be done twice. Add base=AgentTask",
            name,
            said,
            extra={"action": "base_forgotten", "task": name},
        )
