"""Calls of tools from threads, greenlets and asyncio tasks: whose calls have an order (I4)."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_tasks.greenlets import thread_of_control


class Home:
    """Where the calls of a step, or of a tool's body, have an order: one thread, or greenlet, and one task on each event loop.

    The first task that calls a tool on an event loop owns that loop. So ``asyncio.run(main())`` may call tools, whose
    calls are in program order, and of two tasks that run side by side one is refused whichever of them comes first.
    """

    def __init__(self) -> None:
        self._thread, self._ended = thread_of_control(), False
        loop, task = _loop_and_task()
        self._owners: dict[Any, asyncio.Task[Any] | None] = {} if loop is None else {loop: task}

    def end(self) -> None:
        """The step or the body has returned: what goes on for it has no order any more."""
        self._ended = True

    def why_unordered(self) -> str | None:
        """Return what the caller is that its calls have no order here, or None if they have one."""
        here = thread_of_control()
        if here != self._thread:
            return "another thread" if here[0] != self._thread[0] else "another greenlet"
        if self._ended:
            return "what went on after the end"
        loop, task = _loop_and_task()
        if loop is None:
            return None
        if task is None and loop not in self._owners:
            return "a callback of the event loop"
        return None if self._owners.setdefault(loop, task) is task else "another asyncio task"


def _loop_and_task() -> tuple[Any, asyncio.Task[Any] | None]:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None, None
    return loop, asyncio.current_task(loop)
