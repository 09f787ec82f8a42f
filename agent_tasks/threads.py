"""Calls of tools from threads and asyncio tasks: who works for a run, and whose calls have an order (I4)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def carry_run(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function work for the run of its maker, in whatever thread it is called.

    Tools that a carried function calls need a ``key=``, since calls of several threads have no order. ``asyncio.to_thread``
    carries the run by itself; ``threading.Thread``, executors and ``loop.run_in_executor`` do not.

    Args:
        function: a plain function; each call of it gets a copy of the present context, so that many threads may call it.

    Returns:
        A function with the same parameters and result.

    Raises:
        TypeError: the function is async or a generator, and would go on in the context of whoever awaits it.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool:
        ...     list(pool.map(carry_run(len), ["tea", "milk"]))
        [3, 4]
    """
    if any(is_lazy(function) for is_lazy in (inspect.iscoroutinefunction, inspect.isgeneratorfunction)) or (
        inspect.isasyncgenfunction(function)
    ):
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"carry_run takes a plain function, got {name!r}, which is async or a generator: it would go on in the "
            "context of whoever awaits it. Carry the plain function that calls it, for example with asyncio.run(…)."
        )
    context = copy_context()

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(function, *args, **kwargs)

    return carried


class Home:
    """Where the calls of a step, or of a tool's body, have an order: one thread and, on each event loop, one task.

    The first task that calls a tool on an event loop owns that loop. So ``asyncio.run(main())`` may call tools, whose
    calls are in program order, and of two tasks that run side by side one is refused whichever of them comes first.
    """

    def __init__(self) -> None:
        self._thread, self._ended = threading.get_ident(), False
        loop, task = _loop_and_task()
        self._owners: dict[Any, asyncio.Task[Any] | None] = {} if loop is None else {loop: task}

    def end(self) -> None:
        """The step or the body has returned: what goes on for it has no order any more."""
        self._ended = True

    def why_unordered(self) -> str | None:
        """Return what the caller is that its calls have no order here, or None if they have one."""
        if threading.get_ident() != self._thread:
            return "another thread"
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
