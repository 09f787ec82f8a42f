"""Functions that work for a run in threads which its step starts itself."""

from __future__ import annotations

import functools
import inspect
import reprlib
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agent_tasks.current import attempt_of_this_context, bodies
from agent_tasks.errors import CarriedElsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_tasks.attempt import Attempt
    from agent_tasks.current import Body

P = ParamSpec("P")
R = TypeVar("R")


def carry_run(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function work for the run of its maker, in whatever thread it is called.

    Tools that a carried function calls need a ``key=``, since calls of several threads have no order. ``asyncio.to_thread``
    carries the run by itself; ``threading.Thread``, executors and ``loop.run_in_executor`` do not.

    Args:
        function: a plain function; each call of it gets a copy of the present context, so that many threads may call it.

    Returns:
        A function with the same parameters and result. It belongs to the step that made it, and raises
        :class:`~agent_tasks.errors.CarriedElsewhere` when it is called after the end of that step or in another one.

    Raises:
        TypeError: the function cannot be called, or is async or a generator, and would go on in the context of whoever
            awaits it; the same at the call of a function that turns out to be async.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool:
        ...     list(pool.map(carry_run(len), ["tea", "milk"]))
        [3, 4]
    """
    if not callable(function):
        raise TypeError(f"carry_run takes a plain function, got {reprlib.repr(function)}, which cannot be called.")
    if _is_lazy(function) or _is_lazy(type(function).__call__):
        raise _async(function)
    context, maker, body = copy_context(), attempt_of_this_context(), next(iter(bodies.get()[-1:]), None)

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        if maker is not None:
            _check_place(function, maker, body)
        value = context.copy().run(function, *args, **kwargs)
        if inspect.iscoroutine(value):  # of a function that hides it, such as a lambda; nothing of it has run
            value.close()
            raise _async(function)
        return value

    return carried


def _is_lazy(function: Any) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_lazy(function) for is_lazy in kinds)


def _async(function: Any) -> TypeError:
    return TypeError(
        f"carry_run takes a plain function, got {_name_of(function)!r}, which is async or a generator: it would go on in the "
        "context of whoever awaits it. Carry the plain function that calls it, for example with asyncio.run(…)."
    )


def _check_place(function: Any, maker: Attempt, body: Body | None) -> None:
    """Refuse the call where it would act on a run that nobody works on here: not even its doubts could be told apart."""
    here = attempt_of_this_context()
    if here is not None and here is not maker:
        where = f"was called in step {here.step!r} of run {here.run_id!r}, attempt {here.number}"
    elif here is None and maker.over and (body is None or body.ended):  # the end waits for a body that is running
        where = "was called after that step had ended"
    else:
        return
    raise CarriedElsewhere(
        f"{_name_of(function)!r} was carried in step {maker.step!r} of run {maker.run_id!r}, attempt {maker.number}, and {where}. "
        "Nothing was called. Call carry_run in the step that calls the function, each time it runs, and keep nothing "
        "carried beyond it, such as in a module or a pool."
    )


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", reprlib.repr(function)))
