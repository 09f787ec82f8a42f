"""Tools that write to the ledger's own database: effect and outcome in one commit."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from agent_tasks.current import outside_run
from agent_tasks.database import IDLE_IN_TRANSACTION_MS
from agent_tasks.errors import InsideTransaction, ToolOverran, is_a
from agent_tasks.operations import CRASHES, Operation, describe_failure, failure_seen_by_step
from agent_tasks.putting_off import put_off
from agent_tasks.runs import is_cancelled
from agent_tasks.states import OperationStatus
from agent_tasks.suspensions import Cancelled, Lost, RetryLater
from agent_tasks.troubles import is_read_only, lost_a_race, runs_again
from checkpoint import codec
from checkpoint.mysql import IDLE_SECONDS, NO_SAVEPOINT, allow_idle, is_mysql, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Request

#: PostgreSQL: the body caught the error of a statement and went on, in a transaction that can only be rolled back.
_FAILED_TRANSACTION = "25P02"

#: No server takes more for an idle transaction: PostgreSQL counts in an integer, MySQL ends at a year.
_LONGEST_IDLE_MS = 2**31 - 1

#: MySQL: the savepoint that a body's transaction begins with.
_BODY = "agent_body"


@dataclass(frozen=True)
class Executed:
    """What the body returned."""

    value: Any


class _BodyFailed(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Raced(Exception):
    """Another row stands there than was seen, or others settled one meanwhile: roll the effect back."""


class _Stopped(Exception):
    """Somebody wants the run to end: roll the effect back."""


class _NotOwner(Exception):
    """The lease was lost: roll the effect back."""


def execute_transactional(attempt: Attempt, request: Request, seen: Operation | None) -> Executed | None:
    """Run the body and record its outcome in one transaction; None if another row stands there than was seen.

    The fenced outcome is the last statement before the commit, so that the run's row is not locked while user code runs.
    Where the ledger is one of Django's databases, the transaction is on Django's own connection: the ORM is part of it.
    """
    runtime, tool, place = attempt.runtime, request.tool, attempt.runtime.transactions
    if place is not None:
        place.check_free()

    def work(connection: Connection) -> Executed:
        operation = request.unsent(attempt)  # anew each time: waiting for a lost database is not the body's time
        operation.connection = connection
        with (
            _time_allowed(connection, request.timeout_seconds),
            _kept_whole(connection, tool.subject),
            _kept_open(connection, tool.subject),
        ):
            executed = Executed(_run_body(attempt, request, operation))
        if place is not None and (spoilt := place.spoilt()) is not None:
            raise _BodyFailed(InsideTransaction(f"the body of transactional {tool.subject}: {spoilt}"))
        try:
            with outside_run():
                result = codec.dumps(executed.value, "result")
        except Exception as error:  # of the value, and not of the ledger, whatever its class
            raise _BodyFailed(error) from error
        if operation.remaining() <= 0:
            raise _BodyFailed(
                ToolOverran(
                    f"run {attempt.run_id!r}: the body of transactional {tool.subject} took longer than its timeout "
                    f"({request.timeout_seconds:g} s); it was rolled back. Do less in it, or give it a longer timeout=."
                )
            )
        run = _owned(attempt, connection)
        if run is None:
            raise _NotOwner
        attempt.cancelled = is_cancelled(run)
        if attempt.cancelled and request.parent is None:
            raise _Stopped
        if runtime.recorder.looked_again(connection, attempt, run):
            raise _Raced
        if not runtime.ledger.record(
            connection, attempt, request, seen, status=OperationStatus.SUCCEEDED, result=result
        ):
            raise _Raced
        return executed

    try:
        return runtime.recorder.write(attempt, "effect and outcome", work, place=place)
    except _Raced:
        return None
    except _Stopped:
        attempt.suspend(Cancelled())
    except _NotOwner:
        attempt.suspend(Lost(f"the lease was lost while {tool.name} ran; its transaction was rolled back"))
    except CRASHES:
        raise
    except Exception as failure:  # noqa: BLE001 - rolled back, so it is known not to have happened
        error = failure.error if isinstance(failure, _BodyFailed) else failure
        if is_a(error, RetryLater):
            attempt.suspend(error.wait)
        _record_failure(attempt, request, seen, error)
        return None  # recorded by somebody else meanwhile


def _owned(attempt: Attempt, connection: Connection) -> RowMapping | None:
    try:
        return attempt.runtime.runs.owned(connection, attempt)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _FAILED_TRANSACTION:
            raise _BodyFailed(error) from error
        raise


@contextmanager
def _kept_open(connection: Connection, subject: str) -> Iterator[None]:
    """Let the body end only its own savepoints: a commit of its own would part the effect from its record."""
    refusal = InsideTransaction(
        f"the body of transactional {subject} ended the transaction that it was handed, which is the engine's to "
        "end. Leave commit() and rollback() out, or use operation.connection.begin_nested()."
    )
    refused = []

    def refuse(_connection: Connection) -> None:
        refused.append(refusal)
        raise refusal

    events = ("commit", "rollback")
    for name in events:
        event.listen(connection, name, refuse)
    try:
        yield
    finally:
        for name in events:
            event.remove(connection, name, refuse)
    if refused:  # and the body caught it; the transaction is of no use any more
        raise _BodyFailed(refusal)


@contextmanager
def _kept_whole(connection: Connection, subject: str) -> Iterator[None]:
    """Notice where MySQL has ended the transaction by itself, and the body went on in another one.

    It rolls all of it back where a statement loses a deadlock, whose error the body may have caught; and a change of a table
    commits. A savepoint ends with either.
    """
    if not is_mysql(connection):
        yield
        return
    connection.exec_driver_sql(f"SAVEPOINT {_BODY}")
    yield
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {_BODY}")
    except DBAPIError as error:
        if number_of(error) != NO_SAVEPOINT:
            raise
        raise _BodyFailed(
            InsideTransaction(
                f"the body of transactional {subject} went on after its transaction had ended: a statement lost a deadlock, and "
                "the body caught its error; or it changed a table, which MySQL commits. Let the error of a deadlock pass, "
                "which runs the body again, and change no tables in it."
            )
        ) from error


@contextmanager
def _time_allowed(connection: Connection, seconds: float) -> Iterator[None]:
    """Let a body that works on something else for a while keep its transaction open."""
    needed_ms = min(int((seconds + 5) * 1000), _LONGEST_IDLE_MS)
    if connection.dialect.name == "postgresql" and needed_ms > IDLE_IN_TRANSACTION_MS:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {needed_ms}")
    longer = is_mysql(connection) and needed_ms > IDLE_SECONDS * 1000
    if longer:
        allow_idle(connection, needed_ms // 1000)
    try:
        yield
    finally:
        if longer:
            with suppress(SQLAlchemyError):  # a lost connection, which is not used again
                allow_idle(connection, IDLE_SECONDS)


def _run_body(attempt: Attempt, request: Request, operation: Operation) -> Any:
    try:
        with attempt.body_of(request):
            return attempt.runtime.boundary.effect(
                request.tool.name, lambda: request.tool.run(operation, request.arguments)
            )
    except CRASHES:
        raise
    except Exception as error:
        said = _raced(_database_error(attempt, error))
        if said is not None and (said.connection_invalidated or is_read_only(said) or runs_again(said)):
            # Rolled back by the server, so that nothing of the body stands (I5). A lost connection, or a server that takes no
            # writes, is waited for; a lost race for locks, or for the session's statements, is run again as a whole.
            raise said from error
        raise _BodyFailed(error) from error


def _database_error(attempt: Attempt, error: Exception) -> DBAPIError | None:
    place = attempt.runtime.transactions
    if isinstance(error, DBAPIError) or place is None:
        return error if isinstance(error, DBAPIError) else None
    return place.database_error(error)


def _raced(error: DBAPIError | None) -> DBAPIError | None:
    """Return what was lost behind a savepoint that is gone, since MySQL took the whole transaction back; or the error itself."""
    behind: BaseException | None = error
    while error is not None and number_of(error) == NO_SAVEPOINT and behind is not None:
        if isinstance(behind, DBAPIError) and lost_a_race(behind):
            return behind
        behind = behind.__context__
    return error


def _record_failure(attempt: Attempt, request: Request, seen: Operation | None, error: Exception) -> None:
    put_off(attempt, request.tool, error)
    failure = describe_failure(error, request.tool.known_errors)
    recorded = attempt.runtime.recorder.record(
        attempt, request, seen, status=OperationStatus.FAILED, error=codec.dumps(failure), result=None
    )
    if recorded:
        raise failure_seen_by_step(failure, request.tool, error) from error
