"""Calls of tools that are awaited: numbered in the task that awaits them, carried out in a thread, their bodies on the kept loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_tasks.calling import carry_out
from agent_tasks.current import attempt_of_this_context, bodies
from agent_tasks.errors import NotAwaited
from agent_tasks.late import keep_late
from agent_tasks.loops import KeptLoop, NeverBegan, in_thread, run_body
from agent_tasks.states import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation
    from agent_tasks.tools import Tool


def check_place(attempt: Attempt, tool: Tool[..., Any]) -> None:
    """Refuse a call that would do nothing where it is made, or stop the loop of all async steps.

    Raises:
        NotAwaited: so it is.
    """
    if tool.is_async:
        check_loop(attempt, tool, f"{tool.name}(…)")
    elif tool.guard.record and KeptLoop.is_running_here():
        raise NotAwaited(
            f"run {attempt.run_id!r}: {tool.subject} is a plain function and was called on the event loop of step {attempt.step!r}, "
            f"which it would stop. Nothing was sent; write `await {tool.name}.aio(…)`, or declare the tool `async def`."
        )


def check_loop(attempt: Attempt, tool: Tool[..., Any], said: str) -> None:
    """Refuse a call that nobody here can await.

    Raises:
        NotAwaited: no event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NotAwaited(
            f"run {attempt.run_id!r}: {tool.subject} is called with await, and no event loop runs where step {attempt.step!r} called "
            f"it. Nothing was sent; make what calls it `async def`, up to the step, and write `await {said}`."
        ) from None


def awaited(attempt: Attempt, tool: Tool[..., Any], arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    """Return the call, which begins when it is awaited; a step that ends before that is told so."""
    token = object()
    call = _awaited(attempt, tool, arguments, token)
    attempt.expect_await(token, tool.subject, call)
    return call


async def _awaited(attempt: Attempt, tool: Tool[..., Any], arguments: dict[str, Any], token: object) -> Any:
    attempt.awaits(token)
    with attempt.call_under_way(tool):  # here, since the order of calls is that of their task
        attempt.stop_if_cancelled()
        request = attempt.request(tool, arguments)
        try:
            return await in_thread(carry_out, attempt, request)
        except NeverBegan:
            raise asyncio.CancelledError from None


def run_here(tool: Tool[..., Any], body: Coroutine[Any, Any, Any], operation: Operation) -> Any:
    """Run the body of an async tool, which is waited for in this thread, until its deadline at the latest.

    A cancel stops no thread, so a body that may have an effect lasts as long as those that it awaits. What one comes to that
    was given up is kept all the same.
    """
    first = bodies.get()[-1].be_at_home if tool.guard.record else None
    acts = tool.guard.effect is not Effect.READ
    attempt = attempt_of_this_context()

    def give_up() -> Callable[[Callable[[], Any]], None]:
        if operation.interim is not None:
            operation.interim.given_up = True
        return partial(keep_late, attempt, tool, operation)  # type: ignore[arg-type]

    late = give_up if acts and attempt is not None else None
    what = f"the body of {tool.subject}"
    return run_body(body, what, operation.remaining(), first=first, with_threads=acts, late=late)
