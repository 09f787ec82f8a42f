"""Calls that are made together: planned in one commit, carried out by a few threads, and drained before anything is raised.

What a batch does about a failure is the same in every attempt. With ``on_error="raise"`` no call is begun after the first
failure came; a later attempt, which finds that failure recorded, begins none that was not begun by then, since the step
may have gone on after it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_tasks.calling import call_of_batch
from agent_tasks.current import attempt_of_this_context, outside_run
from agent_tasks.errors import BadBatch, NotAwaited, OutsideRun, is_a
from agent_tasks.loops import KeptLoop
from agent_tasks.operations import CRASHES
from agent_tasks.planned_calls import COLLECT, CONCURRENCY, RAISE, Batch, Call, FailedCall, batch_of
from agent_tasks.plans import plan, planned
from agent_tasks.runs import is_cancelled
from agent_tasks.states import OperationStatus
from agent_tasks.suspensions import Lost
from checkpoint import codec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Request
    from agent_tasks.operations import Operation


def run_calls(calls: Iterable[Call], *, on_error: str = RAISE, max_concurrency: int = CONCURRENCY) -> list[Any]:
    """Make calls together, in a step or in the body of a tool.

    All are committed as planned before the first one begins. Threads carry them out, and nothing is under way any more when
    this returns or raises. After a crash those that succeeded return their recorded results, and the others run.

    Args:
        calls: made by ``tool.call(…)``. What tells two calls of one tool without a key apart is their place in the list.
        on_error: ``raise``: begin no further call after the first failure, wait for those under way, and raise the failure
            that comes first in the list. ``collect``: make all calls, and return a :class:`FailedCall` in the place of each
            that failed.
        max_concurrency: calls under way at the same time.

    Returns:
        The results, in the order of the list.

    Raises:
        BadBatch: something is no call, there are more than ``agent_max_batch``, or two calls with one key differ; nothing was
            recorded.
        NotAwaited: this is the event loop of an async step.
        OutsideRun: this is no step of a run.
        UnorderedCalls: calls without a key are made in another thread than the step's own.
        UnguardedTool: the agent does not list a tool.

    Example:
        >>> from celery import Celery
        >>> from agent_tasks import Agent, done, tool
        >>> @tool(effect="read")
        ... def price(item):
        ...     return {"tea": 300, "milk": 120}[item]
        >>> shop = Agent("batch-shop", app=Celery("shop", broker="memory://"), tools=[price])
        >>> @shop.step
        ... def add_up(state):
        ...     return done(sum(run_calls([price.call(item) for item in state["items"]])))
        >>> shop.run_inline({"items": ["tea", "milk"]})
        420
    """
    batch = batch_of(calls, on_error, max_concurrency)
    attempt = attempt_of_this_context()
    if attempt is None:
        raise OutsideRun(
            f"run_calls was called outside a run, where nothing is recorded; none of its {len(batch.calls)} calls was made. "
            "Call it in a step."
        )
    if KeptLoop.is_running_here():
        raise NotAwaited(
            f"run {attempt.run_id!r}: run_calls was called on the event loop of step {attempt.step!r}, which it would stop. Nothing was "
            "sent; return calls([…], then=…) from the step, or make the step a plain function: its batch may hold async tools."
        )
    return run_batch(attempt, batch)


def run_batch(attempt: Attempt, batch: Batch) -> list[Any]:
    """See :func:`run_calls`."""
    check_size(attempt, batch)
    if not batch.calls:
        attempt.raise_if_doomed()
        return []
    with attempt.call_under_way(*dict.fromkeys(call.tool for call in batch.calls)):
        attempt.stop_if_cancelled()
        number = attempt.together.next_number()
        requests = [attempt.request_of(call, number) for call in batch.calls]
        _plan(attempt, requests)
        return _Running(attempt, batch, requests).results()


def check_size(attempt: Attempt, batch: Batch) -> None:
    """Refuse more calls than the settings allow.

    Raises:
        BadBatch: so it is.
    """
    most = attempt.runtime.settings.max_batch
    if len(batch.calls) > most:
        raise BadBatch(
            f"run {attempt.run_id!r}: a batch of step {attempt.step!r} has {len(batch.calls)} calls, and agent_max_batch allows "
            f"{most}. Nothing was sent; make several batches, or set agent_max_batch."
        )


def _plan(attempt: Attempt, requests: list[Request]) -> None:
    """Commit the calls that the ledger does not know as pending, all of them or none."""
    runtime = attempt.runtime
    recorded = {request.operation_id: request for request in requests if request.tool.guard.record}
    attempt.together.planned.update(recorded)
    missing = {name: request for name, request in recorded.items() if _is_missing(attempt.known.get(name))}
    if not missing:
        return
    inside = requests[0].parent is not None  # a call in the body of another one goes on with it

    def work(connection: Connection) -> list[Operation] | None:
        run = runtime.runs.owned(connection, attempt, share=True)
        if run is None:
            return None
        attempt.cancelled = is_cancelled(run)
        if attempt.cancelled and not inside:
            return []
        plan(runtime.ledger, connection, attempt, missing.values())
        return planned(runtime.ledger, connection, list(missing))

    found = runtime.recorder.write(attempt, "plan", work)
    if found is None:
        attempt.suspend(Lost("the lease was lost before a batch of calls began"))
    attempt.known.update((operation.operation_id, operation) for operation in found)
    attempt.raise_if_doomed()
    attempt.stop_if_cancelled()


def _is_missing(known: Operation | None) -> bool:
    return known is None or (known.status is OperationStatus.DROPPED and known.attempts == 0)


@dataclass(frozen=True)
class _End:
    """What a call came to."""

    value: Any = None
    error: BaseException | None = None


def _is_failure(error: BaseException | None) -> bool:
    """Tell what a call came to from what takes its worker along, or says nothing about the call."""
    return is_a(error, Exception) and not is_a(error, CRASHES)


class _Running:
    """A batch whose calls are planned."""

    def __init__(self, attempt: Attempt, batch: Batch, requests: list[Request]) -> None:
        self.attempt, self.batch, self.requests = attempt, batch, requests
        #: The place in the list at which each operation is called; those with one key are called once.
        self._at = {self._place(number): number for number in reversed(range(len(requests)))}
        self._ends: dict[int, _End] = {}
        self._stopped = False

    def _place(self, number: int) -> str | int:
        request = self.requests[number]
        return request.operation_id if request.tool.guard.record else number

    def results(self) -> list[Any]:
        """Carry the calls out, and return or raise what they came to."""
        interrupted = self._carry_out()
        if interrupted is not None:
            self.attempt.note_raised(interrupted)
        self.attempt.raise_if_doomed()
        errors = [self._ends[number].error for number in sorted(self._ends) if self._ends[number].error is not None]
        ends_process = next((error for error in errors if not _is_failure(error)), None)
        first = interrupted or ends_process or (errors[0] if errors and self.batch.on_error == RAISE else None)
        if first is not None:
            raise first
        return [self._result(number) for number in range(len(self.requests))]

    def _result(self, number: int) -> Any:
        made = self._at[self._place(number)]
        end = self._ends[made]
        if isinstance(end.error, Exception):
            return FailedCall(self.batch.calls[number], end.error)
        if made == number:
            return end.value
        with outside_run():  # each place has a value of its own, as each call of a recorded operation has
            return codec.loads(codec.dumps(end.value))

    def _carry_out(self) -> BaseException | None:
        """Begin the calls in order, and wait until none is under way; return what struck this thread meanwhile."""
        attempt, numbers = self.attempt, sorted(self._to_begin())
        identifiers = {self.requests[number].operation_id for number in numbers}
        attempt.together.open |= identifiers
        threads = min(self.batch.max_concurrency, len(numbers), attempt.runtime.most_threads or len(numbers)) or 1
        interrupted: BaseException | None = None
        with ThreadPoolExecutor(threads, thread_name_prefix=f"calls of {attempt.step}") as pool:
            futures: list[Future[None]] = []
            try:
                futures.extend(pool.submit(self._call, number, copy_context()) for number in numbers)
            except BaseException as error:  # noqa: BLE001 - a time limit, say: what has begun comes to its end all the same
                self._stopped, interrupted = True, error
            while True:
                try:
                    wait(futures)
                    break
                except BaseException as error:  # noqa: BLE001
                    self._stopped, interrupted = True, interrupted or error
        attempt.together.open -= identifiers
        return interrupted

    def _to_begin(self) -> list[int]:
        numbers = list(self._at.values())
        if self.batch.on_error == COLLECT or not any(self._failed_before(self.requests[number]) for number in numbers):
            return numbers
        known = self.attempt.known
        return [
            n for n in numbers if (seen := known.get(self.requests[n].operation_id)) is not None and seen.attempts > 0
        ]

    def _failed_before(self, request: Request) -> bool:
        seen = self.attempt.known.get(request.operation_id)
        return seen is not None and seen.status is OperationStatus.FAILED and seen.row["args_digest"] == request.digest

    def _call(self, number: int, context: Context) -> None:
        request = self.requests[number]
        try:
            if not self._stopped:
                self._ends[number] = _End(context.run(call_of_batch, self.attempt, request))
        except BaseException as error:  # noqa: BLE001 - raised in the step's own thread, after the others have ended
            self._ends[number] = _End(error=error)
            self._stopped = self._stopped or self.batch.on_error == RAISE or not _is_failure(error)
        finally:
            self.attempt.together.open.discard(request.operation_id)
