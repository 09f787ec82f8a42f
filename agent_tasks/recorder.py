"""What an attempt writes about its operations: each write through the boundary, and repeated until its fate is known."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import SQLAlchemyError

from agent_tasks import shortcuts
from agent_tasks.clock import microseconds
from agent_tasks.errors import AgentTasksError, ConfigurationError, LedgerUnavailable, NotWritable
from agent_tasks.operations import PROBE, text_of
from agent_tasks.runs import is_cancelled
from agent_tasks.states import IN_DOUBT, Effect, OperationStatus, Question, Reply, RunRequest, RunStatus
from agent_tasks.suspensions import Lost, Wait, about
from agent_tasks.troubles import first_line
from agent_tasks.unwritable import values_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.attempt import Attempt
    from agent_tasks.boundary import Transactions
    from agent_tasks.ledger import Request
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Writes that bring what only this process knows: an effect that has happened, an answer that was bought. Without them a person
#: would be asked, or the world, so that no refusal ends them before the step's time limit does.
_KNOWN_OUTCOMES = frozenset({"outcome", "record"})

#: First and longest pause, in seconds, before a write that got no answer is sent again.
_PAUSES = (0.05, 1.0)


class Recorder:
    """The fenced writes of attempts on one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def write(
        self,
        attempt: Attempt,
        name: str,
        work: Callable[[Connection], T],
        at_once: Callable[[], T | None] | None = None,
        place: Transactions | None = None,
    ) -> T:
        """Commit ``work``, again and again while the database gives no answer.

        Each ``work`` finds its own earlier success, so that a lost answer is asked for and not doubled; it is fenced, so that a
        late one changes nothing that is another's (I2). A known outcome is sent again for whatever the database raises: what
        was refused did not happen, and what makes a server refuse it (a standby, a right, a table that is being changed) may be
        mended while the step lasts. Celery's soft time limit may strike in the middle: the write is finished all the same, and
        the attempt goes no further than that.

        Args:
            attempt: whose write it is.
            name: of the boundary.
            work: gets the connection.
            at_once: does the same in one statement (see :mod:`agent_tasks.folded`); what it returns, or None if it changed
                nothing, and then ``work`` decides.
            place: another library's way to the ledger's database; the ledger's own engine if not given.

        Raises:
            InForkedProcess: this is a child of the attempt's process.
            NotWritable: a value is none that the database takes.
            StepSuspended: the database refused, or gave no answer until the step's time limit.
        """
        attempt.check_process(f"the ledger was used ({name})")
        (first, longest), pause, is_said = _PAUSES, 0.0, False
        while True:
            try:
                if pause:
                    self.runtime.clock.pause(pause)
                with values_refused(attempt.run_id, name):
                    done = None if at_once is None else at_once()
                    if done is None:
                        done = self.runtime.boundary.commit(name, place or self.runtime.engine, work)
                    return done
            except NotWritable:
                raise
            except SoftTimeLimitExceeded:
                again = self.runtime.settings.backoff_seconds(attempt.number)
                attempt.doomed = attempt.doomed or Wait(f"since its soft time limit struck at {name!r}", seconds=again)
            except LedgerUnavailable as error:
                if self.runtime.clock.local() >= attempt.deadline:
                    attempt.suspend(Lost(f"the ledger gave no answer until the step's time limit: {error}"))
            except (SQLAlchemyError, AgentTasksError) as error:
                mendable = name in _KNOWN_OUTCOMES and isinstance(error, (SQLAlchemyError, ConfigurationError))
                if not mendable or self.runtime.clock.local() >= attempt.deadline:
                    attempt.suspend(Lost(f"the ledger refused to write {name!r}: {error}"))
                if not is_said:
                    is_said = True
                    _say_refused(attempt, name, error)
            pause = min(2 * pause or first, longest)

    def find(self, attempt: Attempt, operation_id: str) -> Operation | None:
        """Read one operation anew."""
        found = self.write(attempt, "look", lambda connection: self.runtime.ledger.find(connection, operation_id))
        if found is None:
            attempt.known.pop(operation_id, None)
        else:
            attempt.known[operation_id] = found
        return found

    def begin(self, attempt: Attempt, request: Request, seen: Operation | None) -> Operation | None:
        """Commit the intent of a request (I3); None if another row stands there than was seen.

        The deadline counts from before the intent was sent, and a lost answer does not prolong it (I6).
        """
        runtime = self.runtime
        deadline = runtime.clock.local() + request.timeout_seconds

        def work(connection: Connection) -> tuple[bool, Operation | None]:
            run = runtime.runs.owned(connection, attempt, share=True)
            if run is None:
                return False, None
            attempt.cancelled = is_cancelled(run)
            if attempt.cancelled and request.parent is None:  # a call in the body of another one goes on with it
                return True, runtime.ledger.begun_before(connection, attempt, request, seen)
            if self.looked_again(connection, attempt, run):
                return True, None
            return True, runtime.ledger.begin(connection, attempt, request, seen)

        def at_once() -> tuple[bool, Operation | None] | None:
            begun = shortcuts.intend(runtime, attempt, request)
            return None if begun is None else (True, begun)

        try:
            owns, operation = self.write(attempt, "intent", work, at_once if seen is None else None)
        except NotWritable:  # nothing was sent, and the step may know why
            raise
        except BaseException as error:  # noqa: BLE001 - a time limit, say: the intent may be committed all the same
            said = f"{type(error).__name__}: {text_of(error)}"
            attempt.note_raised(error)
            attempt.suspend(Lost(f"the intent of {request.tool.name} was interrupted: {said}"))
        if not owns:
            attempt.suspend(Lost(f"the lease was lost before {request.tool.name} began"))
        if operation is None:
            attempt.stop_if_cancelled()
        else:
            operation.deadline = deadline
            attempt.known[operation.operation_id] = operation
            if attempt.doomed is not None:  # meanwhile
                self.never_sent(attempt, operation)
                attempt.raise_if_doomed()
        return operation

    def looked_again(self, connection: Connection, attempt: Attempt, run: RowMapping) -> bool:
        """Read again what others may have settled since the attempt looked; ``run`` is its locked row (I13).

        Returns:
            True if there was news: what the attempt decided by is old.
        """
        if run["wakeups"] == attempt.wakeups:
            return False
        for operation in self.runtime.ledger.of_run(connection, attempt.run_id, from_seq=attempt.seq):
            attempt.known[operation.operation_id] = operation
        attempt.wakeups = int(run["wakeups"])
        return True

    def record(self, attempt: Attempt, request: Request, seen: Operation | None, **outcome: Any) -> bool:
        """Commit the outcome of a call without an intent; False if another row stands there than was seen."""
        runtime = self.runtime

        def work(connection: Connection) -> tuple[bool, bool]:
            run = runtime.runs.owned(connection, attempt, share=True)
            if run is None:
                return False, False
            attempt.cancelled = is_cancelled(run)  # what was bought is recorded; the next call does not begin
            recorded = runtime.ledger.record(connection, attempt, request, seen, **outcome)
            return True, recorded or runtime.ledger.recorded_before(connection, attempt, request, outcome["status"])

        def at_once() -> tuple[bool, bool] | None:
            return (True, True) if shortcuts.record(runtime, attempt, request, **outcome) else None

        owns, recorded = self.write(attempt, "record", work, at_once if seen is None else None)
        if not owns:
            attempt.suspend(Lost(f"the lease was lost while {request.tool.name} ran"))
        return recorded

    def outcome(
        self,
        attempt: Attempt,
        operation: Operation,
        status: OperationStatus,
        *,
        fact: dict[str, Any] | None = None,
        **values: Any,
    ) -> None:
        """Commit what became of a request; ``fact`` is kept as evidence.

        An attempt that lost its lease still brings its outcome: it settles the operation while that stands at the
        attempt's own request and wakes the run; otherwise it is kept as evidence (I2). The same where others wrote about
        the operation although the lease is the attempt's own.

        Raises:
            LeaseLost: the attempt does not own the run any more.
            NotWritable: a value is none that the database takes; what became of the request is still to be written.
            StepSuspended: it does, and its outcome is not what the ledger says; the next attempt goes by the ledger (I5).
        """
        runtime, woke = self.runtime, False

        def work(connection: Connection) -> tuple[bool, bool]:
            nonlocal woke
            run = runtime.runs.find(connection, attempt.run_id, lock=True)
            if run is not None and runtime.runs.is_owner(run, attempt):
                attempt.cancelled = is_cancelled(run)
                return True, self._own_outcome(connection, attempt, operation, status, fact, values)
            woke = run is not None and self._late_outcome(connection, attempt, operation, status, fact, values)
            return False, False

        def at_once() -> tuple[bool, bool] | None:
            run = shortcuts.succeed(runtime, attempt, operation, values["result"])
            if run is None:
                return None
            attempt.cancelled = run.request == RunRequest.CANCEL
            return True, True

        usual = status is OperationStatus.SUCCEEDED and fact is None and values.keys() == {"result", "unsettled"}
        try:
            owns, settled = self.write(attempt, "outcome", work, at_once if usual else None)
        except NotWritable:
            raise
        except BaseException as error:  # noqa: BLE001 - the step must not take it for what the tool raised (I15)
            attempt.note_raised(error)
            attempt.suspend(Lost(f"the outcome of {operation.tool} could not be written: {text_of(error)}"))
        if woke:
            runtime.ring(attempt.run_id)
        if not owns:
            attempt.suspend(Lost(f"the lease was lost while {operation.tool} ran"))
        if not settled:
            attempt.suspend(Wait(f"since others have written what became of {operation.tool} while it ran"))
        operation.row = {**operation.row, **values, "status": status}
        attempt.known[operation.operation_id] = operation

    def _own_outcome(
        self,
        connection: Connection,
        attempt: Attempt,
        operation: Operation,
        status: OperationStatus,
        fact: dict[str, Any] | None,
        values: dict[str, Any],
    ) -> bool:
        fence = None if status in IN_DOUBT else attempt.fence
        settled = self.runtime.ledger.settle(
            connection, operation, from_=(OperationStatus.EXECUTING,), fence=fence, status=status, **values
        )
        if not settled:
            found = self.runtime.ledger.find(connection, operation.operation_id)
            if found is not None and _is_written(found, attempt, operation, status):
                return True  # by an earlier sending, whose answer was lost
            self._late_outcome(connection, attempt, operation, status, fact, values)
            return False
        if fact is not None:
            self.runtime.ledger.add_evidence(
                connection, operation.operation_id, what=status.value, attempt=operation.attempts, **fact
            )
        return True

    def _late_outcome(
        self,
        connection: Connection,
        attempt: Attempt,
        operation: Operation,
        status: OperationStatus,
        fact: dict[str, Any] | None,
        values: dict[str, Any],
    ) -> bool:
        ledger, decisions = self.runtime.ledger, self.runtime.decisions
        ledger.add_evidence(
            connection,
            operation.operation_id,
            what=f"late {status.value}",
            attempt=operation.attempts,
            fence=attempt.fence,
            **(fact or {"said": None}),
        )
        if status in IN_DOUBT:
            return False
        # A row set back to pending at this very request was not sent again yet: its success still counts.
        from_ = {*IN_DOUBT, OperationStatus.PENDING} if status is OperationStatus.SUCCEEDED else IN_DOUBT
        fence, token = attempt.fence, attempt.token
        if ledger.settle(connection, operation, from_=from_, fence=fence, token=token, status=status, **values):
            self.runtime.inbox.withdraw(connection, operation.operation_id, "a late outcome settled it")
            was = [RunStatus.WAITING]
            if not self.runtime.inbox.is_blocked(connection, attempt.run_id):
                was.append(RunStatus.NEEDS_ATTENTION)
            return decisions.wake(connection, attempt.run_id, was=was)
        found = ledger.find(connection, operation.operation_id)
        told = None if found is None else contradiction(found, attempt, operation, status)
        if told is not None:
            self.runtime.inbox.open(connection, attempt.run_id, about(told, operation))
        return False

    def late(
        self,
        attempt: Attempt,
        operation: Operation,
        status: OperationStatus,
        *,
        fact: dict[str, Any] | None = None,
        **values: Any,
    ) -> None:
        """Commit what became of a request that the attempt has given up, as one that lost its lease does (I2).

        The attempt is over: nothing of it is asked for or told.
        """
        runtime = self.runtime

        def work(connection: Connection) -> bool:
            run = runtime.runs.find(connection, attempt.run_id, lock=True)
            return run is not None and self._late_outcome(connection, attempt, operation, status, fact, values)

        if self.write_late(attempt, "outcome", work, f"the late outcome of {operation.tool}"):
            runtime.ring(attempt.run_id)

    def write_late(self, attempt: Attempt, name: str, work: Callable[[Connection], T], what: str) -> T | None:
        """Commit what is known of a request that the attempt has given up; a ledger that is away is waited for until its limit.

        Args:
            attempt: that has given it up.
            name: of the boundary.
            work: gets the connection; as in :meth:`write`.
            what: is written, for the log.

        Returns:
            What ``work`` returned; None if it could not be kept.
        """
        runtime, pause = self.runtime, _PAUSES[0]
        while True:
            try:
                return runtime.boundary.commit(name, runtime.engine, work)
            except (SQLAlchemyError, AgentTasksError) as error:
                if not isinstance(error, LedgerUnavailable) or runtime.clock.local() >= attempt.deadline:
                    logger.warning(
                        "run %s: %s could not be kept: %s",
                        attempt.run_id,
                        what,
                        error,
                        extra={"action": "late_outcome_lost", "run_id": attempt.run_id},
                    )
                    return None
            self.runtime.clock.pause(pause)
            pause = min(2 * pause, _PAUSES[1])

    def never_sent(self, attempt: Attempt, operation: Operation) -> None:
        """Take back an intent whose body did not begin; an earlier request that nobody settled stays in doubt."""
        unsettled = operation.unsettled > 0
        self.outcome(attempt, operation, OperationStatus.UNKNOWN if unsettled else OperationStatus.PENDING)

    def answer(
        self,
        attempt: Attempt,
        operation: Operation,
        said: str,
        *,
        settles: OperationStatus | None = None,
        **values: Any,
    ) -> bool:
        """Commit a probe's answer about the request it was asked about (I14).

        Returns:
            False if the operation was settled by somebody else meanwhile.
        """
        runtime = self.runtime

        def work(connection: Connection) -> tuple[bool, bool]:
            if runtime.runs.owned(connection, attempt) is None:
                return False, False
            runtime.ledger.add_evidence(
                connection, operation.operation_id, what="probe", said=said, attempt=operation.attempts
            )
            if settles is not None:
                values.update(status=settles, resolved_by=PROBE, resolved_why=None)
            fence = attempt.fence if settles is not None else None
            settled = runtime.ledger.settle(connection, operation, from_=IN_DOUBT, fence=fence, **values)
            if settled and settles is not None:  # a person may have been asked, and need not answer any more
                runtime.inbox.withdraw(connection, operation.operation_id, "its probe answered")
            return True, settled

        owns, settled = self.write(attempt, "answer", work)
        if not owns:
            attempt.suspend(Lost(f"the lease was lost while {operation.tool} was asked about"))
        self.find(attempt, operation.operation_id)
        return settled

    def conflict_reply(self, attempt: Attempt, operation_id: str, digest: str) -> Reply | None:
        """Return what a person said about other arguments for an operation, if anything."""
        return self.write(
            attempt, "look", lambda connection: self.runtime.inbox.conflict_reply(connection, operation_id, digest)
        )


def _say_refused(attempt: Attempt, name: str, error: Exception) -> None:
    logger.warning(
        "run %s: the ledger refused to write the %s of a call (%s: %s), which is tried again until the step's time limit",
        attempt.run_id,
        name,
        type(error).__name__,
        first_line(error),
        extra={"action": "outcome_refused", "run_id": attempt.run_id, "seq": attempt.seq},
    )


def _is_written(found: Operation, attempt: Attempt, operation: Operation, status: OperationStatus) -> bool:
    """Tell whether a row says what the attempt itself wrote of its request, and nobody else."""
    request = (found.attempts, found.row["token"]) == (operation.attempts, attempt.token)
    return request and found.status is status and found.row["resolved_by"] is None


def contradiction(found: Operation, attempt: Attempt, operation: Operation, status: OperationStatus) -> Question | None:
    """Return what a person must be told, where a late outcome makes what the ledger says about its operation wrong."""
    if status is OperationStatus.SUCCEEDED:
        return Question.DOUBLED if _is_doubled(found, attempt, operation) else None
    believed = found.status is OperationStatus.SUCCEEDED and found.attempts == operation.attempts
    refused = status is OperationStatus.FAILED and operation.effect is not Effect.REPEATABLE
    return Question.REFUSED if believed and refused else None


def _is_doubled(found: Operation, attempt: Attempt, operation: Operation) -> bool:
    if operation.effect is Effect.REPEATABLE:
        return False
    if found.status in (OperationStatus.FAILED, OperationStatus.DROPPED):
        return True
    if found.attempts == operation.attempts and found.row["token"] == attempt.token:
        return False
    if operation.effect is not Effect.KEYED:
        return True  # a second request is a second effect
    life = attempt.agent.tools[operation.tool].guard.key_lifetime
    return bool(found.started_at - found.first_started_at > microseconds(life))  # else both met the vendor's key
