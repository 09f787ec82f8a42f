"""Tools that write to the ledger's own database: effect and outcome in one commit (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from agent_tasks.boundary import lost_a_race
from agent_tasks.errors import ToolOverran
from agent_tasks.operations import Operation, describe_failure, failure_seen_by_step
from agent_tasks.states import OperationStatus
from agent_tasks.suspensions import Lost
from checkpoint import codec

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Request


@dataclass(frozen=True)
class Executed:
    """What the body returned."""

    value: Any


class _BodyFailed(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Raced(Exception):
    """Another row stands there than was seen: roll the effect back."""


class _NotOwner(Exception):
    """The lease was lost: roll the effect back."""


def execute_transactional(attempt: Attempt, request: Request, seen: Operation | None) -> Executed | None:
    """Run the body and record its outcome in one transaction; None if another row stands there than was seen.

    The fenced outcome is the last statement before the commit, so that the run's row is not locked while user code runs.
    """
    runtime, tool = attempt.runtime, request.tool
    operation = request.unsent(attempt)
    attempt.enter(request.operation_id)

    def work(connection: Connection) -> Executed:
        operation.connection = connection
        executed = Executed(_run_body(attempt, request, operation))
        result = codec.dumps(executed.value)
        if operation.remaining() <= 0:
            raise _BodyFailed(
                ToolOverran(
                    f"run {attempt.run_id!r}: the body of transactional tool {tool.name!r} took longer than its timeout "
                    f"({request.timeout_seconds:g} s); it was rolled back. Do less in it, or give it a longer timeout=."
                )
            )
        if runtime.runs.owned(connection, attempt) is None:
            raise _NotOwner
        if not runtime.ledger.record(
            connection, attempt, request, seen, status=OperationStatus.SUCCEEDED, result=result
        ):
            raise _Raced
        return executed

    try:
        return runtime.recorder.write(attempt, "effect and outcome", work)
    except _Raced:
        return None
    except _NotOwner:
        attempt.suspend(Lost(f"the lease was lost while {tool.name} ran; its transaction was rolled back"))
    except Exception as failure:  # noqa: BLE001 - rolled back, so it is known not to have happened
        error = failure.error if isinstance(failure, _BodyFailed) else failure
        _record_failure(attempt, request, seen, error)
        return None  # recorded by somebody else meanwhile
    finally:
        attempt.leave()


def _run_body(attempt: Attempt, request: Request, operation: Operation) -> Any:
    try:
        return attempt.runtime.boundary.effect(
            request.tool.name, lambda: request.tool.run(operation, request.arguments)
        )
    except Exception as error:
        if isinstance(error, DBAPIError) and (error.connection_invalidated or lost_a_race(error)):
            raise  # a lost connection is waited for, a lost race for locks is run again as a whole
        raise _BodyFailed(error) from error


def _record_failure(attempt: Attempt, request: Request, seen: Operation | None, error: Exception) -> None:
    failure = describe_failure(error, request.tool)
    recorded = attempt.runtime.recorder.record(
        attempt, request, seen, status=OperationStatus.FAILED, error=codec.dumps(failure), result=None
    )
    if recorded:
        raise failure_seen_by_step(failure, request.tool, error) from error
