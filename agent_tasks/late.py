"""What an async body comes to after its call has given it up: evidence, and the outcome where the ledger still asks for it (I2).

A plain body keeps its call's thread until it ends, and its call writes the outcome however late that is. An async one is
given up where no cancel ends it, so that its step's thread is free again; whoever runs it brings what it came to then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agent_tasks.current import outside_run
from agent_tasks.loops import NeverBegan
from agent_tasks.operations import CRASHES, describe_failure, text_of, traceback_of
from agent_tasks.states import OperationStatus
from checkpoint import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation
    from agent_tasks.tools import Tool

logger = logging.getLogger(__name__)


def keep_late(attempt: Attempt, tool: Tool[..., Any], operation: Operation, came_to: Callable[[], Any]) -> None:
    """Write what a body came to, which an attempt has given up; in a thread of its own, off the loop.

    Args:
        attempt: whose call it was; it is over, and nothing is written in its name but this.
        tool: that was called.
        operation: the request that the body was run for.
        came_to: returns what it returned, or raises what it raised.
    """
    values: dict[str, Any] = {}
    fact: dict[str, Any] | None = None
    try:
        value = came_to()
        status, said = OperationStatus.SUCCEEDED, "returned"
        values = _stored(tool, value)
    except (asyncio.CancelledError, NeverBegan, *CRASHES):  # it heard the cancel at last, which says nothing
        return
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is said
        said = f"raised {type(error).__name__}"
        if tool.guard.refuses(error) and operation.unsettled == 0:
            status = OperationStatus.FAILED
            values = {"error": codec.dumps(describe_failure(error, tool.known_errors)), "horizon_at": None}
        else:
            status = OperationStatus.UNKNOWN
            fact = {"said": f"{type(error).__name__}: {text_of(error)}", "traceback": traceback_of(error)}
    logger.warning(
        "run %s: the body of %s, which was given up at its limit, %s after that (operation %s)",
        attempt.run_id,
        tool.name,
        said,
        operation.operation_id,
        extra={"action": "late_outcome", "run_id": attempt.run_id, "operation_id": operation.operation_id},
    )
    attempt.runtime.recorder.late(attempt, operation, status, fact=fact, **values)


def _stored(tool: Tool[..., Any], value: Any) -> dict[str, Any]:
    try:
        with outside_run():
            return {"result": codec.dumps(value, "result"), "unsettled": 0}
    except BaseException as error:  # noqa: BLE001 - a value may do anything when it is looked at
        return {"result_missing": 1, "error": codec.dumps(describe_failure(error, tool.known_errors))}
