"""A doorbell of a plain task: its run is worked on, and Celery is told how it ended, as often as it asks."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, TaskPredicate
from sqlalchemy.exc import DataError, SQLAlchemyError

from agent_tasks.cancelling import revoke
from agent_tasks.coordinator import Coordinator, log_no_such_run
from agent_tasks.doorbell import RING_HEADER, names_a_step
from agent_tasks.enqueue import MAX_PRIORITY, WORKERS_LOCK_TIMEOUT_MS
from agent_tasks.errors import (
    AgentTasksError,
    LedgerUnavailable,
    RunFailed,
    RunNotFound,
    RunUnfinished,
    SchemaMissing,
)
from agent_tasks.handle import RunHandle
from agent_tasks.inline import own_ledger, run_to_its_end
from agent_tasks.integration import AppState
from agent_tasks.limits import LONGEST_SECONDS
from agent_tasks.messages import Message, show_run
from agent_tasks.operations import text_of
from agent_tasks.outcomes import error_line
from agent_tasks.plain import STEP, PlainJob
from agent_tasks.progress import Progress
from agent_tasks.schema import is_id
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.submitting import seconds_until
from agent_tasks.task import HEARD_KEY, REVOKED_KEY
from agent_tasks.troubles import first_line
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from celery import Task
    from sqlalchemy import RowMapping

    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

#: What Python raises at a value of a message that no run can have.
_UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)

#: Why a message is rejected.
_TAKEN = "its id is that of run {}, whose result stays its own"

#: Before somebody's own message goes back to the broker, since no ledger is there to keep it, in seconds.
_REQUEUE_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Answer:
    """What Celery is told.

    Attributes:
        ended: the run has; otherwise the result stays as it is.
        output: of a run that succeeded.
        error: what a run that failed ended on.
        revoked: why a run was cancelled.
        retried: the run waits, for a retry perhaps.
    """

    ended: bool
    output: Any = None
    error: BaseException | None = None
    revoked: str | None = None
    retried: bool = False


NOTHING_NEW = Answer(ended=False)


def answer(task: Task, job: PlainJob) -> Answer:
    """Work on the run of the doorbell that the task has as its request.

    Whatever goes wrong on the way, but for the run's own end, is no result: the run goes on later.

    Raises:
        Reject: the message is somebody's own, and no ledger is there to keep it, which is tried again; or its id is that of
            another call or no id at all, which is final.
    """
    request, runtime = task.request, AppState.of(task.app).runtime
    is_kept = _is_doorbell(request)  # by the ledger; of somebody's own message perhaps only the broker knows
    try:
        if not is_kept:
            refused = _receive(task, job, runtime)
            if refused is not None:
                return refused
            is_kept = True
        return _work(task, job, runtime, str(request.id))
    except (LedgerUnavailable, SQLAlchemyError) as error:
        extra = {"action": "ledger_unavailable", "run_id": request.id}
        logger.warning("doorbell of run %s: %s", request.id, first_line(error), extra=extra)
        if not is_kept:
            time.sleep(_REQUEUE_PAUSE_SECONDS)
            raise Reject(error, requeue=True) from error
    except Reject:
        raise
    except KeyboardInterrupt:  # of the body's own, and logged; Celery would end the worker, or lose one of its threads
        return NOTHING_NEW
    except Exception:  # such as a time limit in the middle of a commit
        extra = {"action": "answer_failed", "run_id": request.id}
        logger.exception("the message of run %s was not answered; it comes again", request.id, extra=extra)
        if not is_kept:
            time.sleep(_REQUEUE_PAUSE_SECONDS)
            raise Reject("not answered", requeue=True) from None
    return NOTHING_NEW


def answer_eagerly(task: Task, job: PlainJob, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call to its end in this process, on a ledger of its own; waits pass at once.

    Returns:
        The output of the run.

    Raises:
        RunUnfinished: a person is asked, because of what the body raised; or it waited too often.
        RunFailed: the run ended as failed, and nobody raised anything; else the exception itself, of whatever class.
    """
    request = task.request
    message = Message.of_request(task.app, task)
    with own_ledger() as runtime:
        job.make(runtime, request.id, args, kwargs, message, queue="inline", priority=0)
        raised = run_to_its_end(runtime, job, request.id)
        row = _find(runtime, request.id)
        assert row is not None  # noqa: S101 - it was made above
        if row["status"] not in FINISHED:
            try:
                RunHandle(runtime, request.id).get(timeout=0)
            except RunUnfinished as unfinished:
                raise unfinished from raised.get(request.id)
    answered, error = _end_of(task, job, row, raised.get(request.id)), raised.get(request.id)
    if job.tool is not None and error is not None:  # raised in place of one whose class no later attempt could make
        error = error.__cause__ or error
    if answered.error is not None:
        raise answered.error if error is None or isinstance(error, TaskPredicate) else error
    return answered.output


def tell_that_result_is_stored(task: Task) -> None:
    """Let a run rest whose end Celery knows; if that cannot be written now, it is rung for and told again."""
    request, runtime = task.request, AppState.of(task.app).runtime
    finished_at = Progress.of(request).kept
    if finished_at is None:
        return
    stored = partial(runtime.decisions.result_stored, run_id=request.id, finished_at=finished_at)
    try:
        runtime.boundary.commit("result", runtime.engine, stored)
    except (AgentTasksError, SQLAlchemyError) as error:
        extra = {"action": "ledger_unavailable", "run_id": request.id}
        logger.warning(
            "run %s: its result is stored, and is stored again: %s", request.id, first_line(error), extra=extra
        )


def _is_doorbell(request: Any) -> bool:
    """Tell whether the request is this package's own: the worker's parent says so, and it names the run that its id is."""
    info, args = request.delivery_info or {}, request.args
    return bool(info.get(RING_HEADER)) and names_a_step(args) and args[0] == request.id


def _work(task: Task, job: PlainJob, runtime: Runtime, run_id: str) -> Answer:
    coordinator = Coordinator(runtime)
    if is_id(run_id):
        info = task.request.delivery_info or {}
        if (reason := info.get(REVOKED_KEY)) is not None:
            heard = info.get(HEARD_KEY)
            ago = None if heard is None else runtime.clock.local() - float(heard)
            with suppress(RunNotFound):
                revoke(runtime, run_id, why=str(reason), seconds_ago=ago)
        coordinator.handle(job, STEP, run_id, 1)
        row = _find(runtime, run_id)
        if row is None:  # which was said
            return NOTHING_NEW
    else:
        row = None
    if row is None or row["agent"] != job.name:
        log_no_such_run(job.subject, run_id)
        return NOTHING_NEW
    if row["status"] not in FINISHED:
        return Answer(ended=False, retried=row["status"] == RunStatus.WAITING)
    _show(task, runtime, row)
    return _end_of(task, job, row, coordinator.ending.raised.get(run_id))


def _receive(task: Task, job: PlainJob, runtime: Runtime) -> Answer | None:
    """Make the run of a message that is no doorbell: somebody sent it by name, and only the broker kept it so far.

    Returns:
        None if the run is there; else why it never will be, however often the message came.
    """
    request = task.request
    info = request.delivery_info or {}
    queue = info.get("routing_key") if not info.get("exchange") else None
    try:
        message = Message.of_request(task.app, task)
        values: dict[str, Any] = {"queue": queue or runtime.bell.queue_for(job.name)}
        values |= {"priority": _priority(info.get("priority")), "ends_in": _seconds_to_expiry(task)}
        values |= {"lock_timeout_ms": WORKERS_LOCK_TIMEOUT_MS}
        job.make(runtime, request.id, request.args, request.kwargs, message, **values)
    except (LedgerUnavailable, SchemaMissing):
        raise
    except (AgentTasksError, DataError, *_UNREADABLE) as error:  # no run was made, and none would be another time
        if not is_id(request.id):
            raise _rejected(job, request.id, error, "its id cannot be that of a run") from error
        if _find(runtime, request.id) is not None:
            raise _rejected(job, request.id, error, _TAKEN.format(request.id)) from error
        if isinstance(error, (AgentTasksError, TypeError)):
            return Answer(ended=True, error=error)
        return Answer(ended=True, error=AgentTasksError(f"task {job.name!r}: no run was made: {text_of(error)}"))
    return None


def _priority(given: object) -> int:
    """Return the priority that a message was sent with; as the transports do, take the nearest that there is."""
    return min(max(0, given), MAX_PRIORITY) if isinstance(given, int) else 0


def _seconds_to_expiry(task: Task) -> float | None:
    """Return when it is too late to begin the run of somebody's own message; whether it was begun, the ledger knows."""
    expires = task.request.expires
    if expires is None:
        return None
    return min(max(-LONGEST_SECONDS, seconds_until(task.app, expires)), LONGEST_SECONDS)


def _rejected(job: PlainJob, run_id: object, error: Exception, reason: str) -> Reject:
    """Refuse a message under whose id nothing can be stored, or only the result of another call, which stays so."""
    logger.error(
        "a message to task %s was rejected, since %s; send the call again under another id if it is another job: %s",
        job.name,
        reason,
        text_of(error),
        extra={"action": "message_rejected", "run_id": run_id, "task": job.name},
    )
    return Reject(error, requeue=False)


def _show(task: Task, runtime: Runtime, row: RowMapping) -> None:
    progress = Progress.of(task.request)
    progress.kept, progress.ended = None if row["due_at"] is None else row["finished_at"], row["status"]
    if progress.shown:
        return
    with suppress(CheckpointError):  # then the hooks see the doorbell's arguments
        state = runtime.store.load(row["run_id"], 0).agent_state
        show_run(task.request, row, state["args"], state["kwargs"])


def _end_of(task: Task, job: PlainJob, row: RowMapping, raised: BaseException | None) -> Answer:
    if row["status"] == RunStatus.SUCCEEDED:
        return Answer(ended=True, output=codec.loads(row["output"]))
    record = codec.loads(row["error"])
    if row["status"] == RunStatus.CANCELLED:
        return Answer(ended=True, revoked=str(record["text"]))
    error = job.failure(row, raised)
    if error is None or isinstance(
        error, TaskPredicate
    ):  # to Celery a word about the message, such as to bring it again
        error = RunFailed(f"run {row['run_id']!r} of task {job.name!r} failed: {error_line(record)}")
        error.__cause__ = raised
    return Answer(ended=True, error=error)


def _find(runtime: Runtime, run_id: str) -> RowMapping | None:
    return runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
