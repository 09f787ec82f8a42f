"""Calls that their own exception puts off: nothing happened, and the vendor says when to come again (I8, I15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_tasks.retries import retry_after, said_of
from agent_tasks.states import OperationStatus
from agent_tasks.suspensions import Wait

if TYPE_CHECKING:
    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation
    from agent_tasks.tools import Tool


def put_off(attempt: Attempt, tool: Tool[..., Any], error: Exception, operation: Operation | None = None) -> None:
    """Let the run wait if the exception of a call that did not happen says how long; the step never sees it.

    Args:
        attempt: in which the call was made.
        tool: that was called.
        error: what its body raised.
        operation: where it stands as executing; its row then holds the date, which so survives a crash right here.

    Raises:
        StepSuspended: the call was put off.
    """
    seconds = retry_after(error)
    if seconds is None:
        return
    said = said_of(error)
    reason = f"to call {tool.name} again in {seconds:g} s, as it was told to ({said})"
    if operation is None:
        attempt.suspend(Wait(reason, seconds=seconds))
    until = operation.in_(seconds)
    attempt.runtime.recorder.outcome(
        attempt, operation, OperationStatus.PENDING, fact={"said": f"{said}; again in {seconds:g} s"}, ask_at=until
    )
    attempt.suspend(Wait(reason, until=until))
