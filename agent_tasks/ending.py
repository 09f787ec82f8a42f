"""The end of an attempt: its step's commit, its suspension, or its crash (I2, I7, I13, I14)."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from agent_tasks import shortcuts
from agent_tasks.calling import settle_unasked
from agent_tasks.cancelling import end_cancelled, end_or_settle
from agent_tasks.coalescing import GoesOn, commit_held, goes_on
from agent_tasks.doorbell import Ring
from agent_tasks.errors import LedgerUnavailable, NotWritable, StepSuspended
from agent_tasks.fallback import fall_back
from agent_tasks.leaving import Left, left_by
from agent_tasks.lines import NEXT_STEP
from agent_tasks.next_calls import NEXT_CALLS, noted, plan_next
from agent_tasks.next_waits import noted_wait, reason_to_sleep
from agent_tasks.operations import text_of
from agent_tasks.outcomes import MAX_REASON, Done, Fail, Next, Outcome, error_line
from agent_tasks.refusals import refused_end
from agent_tasks.retries import Retry, ended_on
from agent_tasks.runs import Owner, is_cancelled
from agent_tasks.schema import CALLS_PROTOCOL, PLAIN_PROTOCOL, WAITS_PROTOCOL
from agent_tasks.states import FINISHED, Question, RunStatus
from agent_tasks.suspensions import Ask, Cancelled, FallBack, Lost, Wait, about, log_attention
from agent_tasks.texts import storable
from agent_tasks.waits import GIVEN, NEXT_WAIT, NotYet
from checkpoint.errors import CheckpointError, UnstorableValue

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime
    from checkpoint import CheckpointState

logger = logging.getLogger(__name__)

#: A run that was left so may have questions for a person.
_ASKING = (RunStatus.NEEDS_ATTENTION, RunStatus.WAITING)


#: What a checkpoint's metadata say of the one step that follows it.
_OF_ONE_STEP = (NEXT_CALLS, NEXT_WAIT, GIVEN)

#: Names of the commits that make no checkpoint.
_BOUNDARIES: dict[type, str] = {Retry: "retry", NotYet: "not yet"}


@dataclass(frozen=True)
class Crashed:
    """The step ended in a way that takes a worker with it, or that says nothing about it: its lease ends as if it had."""

    error: BaseException


class _News(Exception):
    """Somebody settled an operation while the step ran: look again before the commit."""


class Ending:
    """Ends the attempts of one process.

    Args:
        runtime: of this process.

    Attributes:
        raised: what ended a run as failed, or stopped its attempt, as it was raised; by run id, for a caller in this
            process. None for a run that ended by itself.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.raised: dict[str, BaseException | None] = {}

    def settle(self, attempt: Attempt, outcome: Outcome | Retry | NotYet | Crashed) -> GoesOn | None:
        """End an attempt whose step has ended.

        Returns:
            What its process goes on with as the run's owner, or None if the lease has ended.
        """
        going = None
        # Never trust what was raised or returned: a step may have swallowed its suspension.
        if attempt.doomed is None and attempt.agent.coalesce is not None and isinstance(outcome, Next):
            going = goes_on(attempt, outcome, self._next_state(attempt, outcome))
        if going is not None and going.held:
            return going
        if not isinstance(attempt.doomed, Lost):
            with suppress(StepSuspended):
                commit_held(attempt)
        if attempt.doomed is not None:
            self.suspend(attempt)
        elif isinstance(outcome, Crashed):
            self._crashed(attempt, outcome)
        else:
            return self._commit(attempt, outcome, going)
        return None

    def _commit(
        self, attempt: Attempt, outcome: Outcome | Retry | NotYet, going: GoesOn | None = None
    ) -> GoesOn | None:
        """Checkpoint, position and the release of the lease in one transaction; the doorbell after it (I7).

        Where its owner is ``going`` on with the next step, the lease begins anew in place of its release.
        """
        runtime = self.runtime
        try:
            left = (
                left_by(runtime.store, outcome, self._next_state(attempt, outcome))
                if going is None
                else Left(going.snapshot)
            )
        except UnstorableValue as error:  # the step's state or output: nothing was written
            subject = f"step {attempt.step!r}" if attempt.run["task"] is None else attempt.agent.subject
            return self._refused(attempt, error, refused_end(error, subject))

        def work(connection: Connection) -> RunStatus | tuple[Operation, ...] | None:
            row = runtime.runs.owned(connection, attempt)
            if row is None:
                return self._committed_before(connection, attempt, outcome, going)
            if runtime.recorder.looked_again(connection, attempt, row):
                raise _News
            stops = is_cancelled(row)
            if isinstance(outcome, (Retry, NotYet)):
                return (
                    end_or_settle(runtime, connection, attempt) if stops else self._wait(connection, attempt, outcome)
                )
            if not isinstance(outcome, Next) and attempt.line:
                orphans = runtime.ledger.left_behind(connection, attempt)
                if orphans:
                    return tuple(orphans)
            runtime.ledger.adopt(connection, attempt)
            if left.snapshot is not None:
                runtime.store.save(left.snapshot, connection=connection)
            if stops and isinstance(outcome, Next):
                end_cancelled(runtime, connection, attempt, advance=True)
                return RunStatus.CANCELLED
            return self._move(connection, attempt, outcome, going, left.output)

        moved: Any = None

        def at_once() -> RunStatus | None:
            nonlocal moved
            if going is not None:
                return shortcuts.keep_on(runtime, attempt, going)
            if left.snapshot is not None and isinstance(outcome, (Next, Done)):
                moved = shortcuts.commit(runtime, attempt, outcome, left.snapshot, left.output)
            return None if moved is None else RunStatus.QUEUED if isinstance(outcome, Next) else RunStatus.SUCCEEDED

        try:
            committed = runtime.recorder.write(attempt, _BOUNDARIES.get(type(outcome), "step"), work, at_once)
        except _News:
            with suppress(StepSuspended):
                settle_unasked(attempt, at_end=True, goes_on=isinstance(outcome, (Next, Retry, NotYet)))
            return self.settle(attempt, outcome)
        except StepSuspended:
            return None  # the lease expires, or a later attempt finds what was recorded
        except NotWritable as error:
            if isinstance(outcome, Fail):
                raise
            return self._refused(attempt, error, str(error))
        except UnstorableValue as error:  # of whatever else the commit encodes: it would be refused again, for ever
            if isinstance(outcome, Fail):
                raise
            return self._refused(attempt, error, str(error))
        except CheckpointError as error:  # what it would follow was damaged meanwhile; the next attempt looks at it
            pause = runtime.settings.backoff_seconds(attempt.number)
            attempt.doomed = Wait(f"since its checkpoint could not be saved: {error}", seconds=pause)
            self.suspend(attempt)
            return None
        if committed is RunStatus.RUNNING:
            return going
        if isinstance(committed, tuple):
            attempt.doomed = Ask(
                "effects that this line does not ask for", tuple(about(Question.ORPHAN, o) for o in committed)
            )
            self.suspend(attempt)
        elif committed is None:
            attempt.doomed = Lost(f"the lease of fence {attempt.fence} was lost before its commit")
            self.suspend(attempt)
        elif committed in FINISHED:
            self._ended(attempt, outcome, committed)
        elif committed is RunStatus.QUEUED:
            if moved is None:
                runtime.ring(attempt.run_id)
            else:
                runtime.bell.ring(Ring.of(moved._asdict()))
        elif isinstance(outcome, (Retry, NotYet, Next)):
            logger.info(
                "run %s waits: %s",
                attempt.run_id,
                reason_to_sleep(outcome) if isinstance(outcome, Next) else outcome.reason,
                extra={
                    "action": "step_retried" if isinstance(outcome, Retry) else "run_waits",
                    "run_id": attempt.run_id,
                    "seq": attempt.seq,
                },
            )
        return None

    def _refused(self, attempt: Attempt, error: Exception, said: str) -> GoesOn | None:
        """End the run as failed whose step ended in something that cannot be written; nothing of it was."""
        attempt.raised = error
        attempt.failure = {"type": type(error).__name__, "text": storable(said), "traceback": ""}
        return self._commit(attempt, Fail(said))

    def _wait(self, connection: Connection, attempt: Attempt, outcome: Retry | NotYet) -> RunStatus:
        if isinstance(outcome, Retry):
            return self._retry(connection, attempt, outcome)
        self.runtime.ledger.forget_reads(connection, attempt.run_id, from_seq=attempt.seq, to_seq=attempt.seq)
        self.runtime.runs.ask_again(connection, attempt, outcome.until, outcome.reason)
        return RunStatus.WAITING

    def _retry(self, connection: Connection, attempt: Attempt, retry: Retry) -> RunStatus:
        """Let the run wait for its next try, which does again what this one ended on (I5)."""
        ledger = self.runtime.ledger
        operations = ledger.of_run(connection, attempt.run_id, from_seq=attempt.seq)
        for operation in ended_on(attempt.asked, operations, attempt.seq):
            ledger.set_back(connection, operation)
        self.runtime.runs.retry(connection, attempt, retry)
        return RunStatus.WAITING

    def _ended(self, attempt: Attempt, outcome: Outcome | Retry | NotYet | None, status: RunStatus) -> None:
        said, self.raised[attempt.run_id] = str(status), None
        if isinstance(outcome, Fail) and status is RunStatus.FAILED:
            said = f"failed: {error_line(_error_of(attempt, outcome))}"
            self.raised[attempt.run_id] = attempt.raised
        logger.info(
            "run %s %s",
            attempt.run_id,
            said,
            extra={"action": "run_ended", "run_id": attempt.run_id, "seq": attempt.seq},
        )

    def _next_state(self, attempt: Attempt, outcome: Outcome | Retry | NotYet) -> CheckpointState:
        state = attempt.state
        return replace(
            state,
            seq=attempt.seq,
            line=attempt.line,
            step=attempt.step,
            created_at=None,
            metadata={
                **{name: value for name, value in state.metadata.items() if name not in _OF_ONE_STEP},
                "committed_by": attempt.token,
                NEXT_STEP: outcome.step if isinstance(outcome, Next) else None,
                **noted(outcome),
                **noted_wait(outcome),
            },
        )

    def _committed_before(
        self, connection: Connection, attempt: Attempt, outcome: Outcome | Retry | NotYet, going: GoesOn | None
    ) -> RunStatus | None:
        """A commit whose answer was lost is found by the token that its checkpoint carries.

        One that kept the lease is found by the lease, if that is still kept.
        """
        if going is not None:
            owner = Owner(attempt.run_id, attempt.fence, attempt.token, attempt.seq + 1)
            if self.runtime.runs.owned(connection, owner) is not None:
                return RunStatus.RUNNING
        try:
            state = self.runtime.store.load(attempt.run_id, attempt.seq, connection=connection)
        except CheckpointError:
            return None
        if state.metadata.get("committed_by") != attempt.token:
            return None
        return RunStatus.SUCCEEDED if isinstance(outcome, Done) else RunStatus.QUEUED

    def _move(
        self, connection: Connection, attempt: Attempt, outcome: Outcome, going: GoesOn | None, output: bytes | None
    ) -> RunStatus:
        runs, bell = self.runtime.runs, self.runtime.bell
        if isinstance(outcome, Next):
            queue = bell.queue_for(f"{attempt.agent.name}.{outcome.step}")
            if outcome.batch is not None:
                plan_next(connection, attempt, outcome.batch)
            needed = WAITS_PROTOCOL if outcome.check else CALLS_PROTOCOL if outcome.batch else PLAIN_PROTOCOL
            protocol = max(needed, int(attempt.run["protocol"]))  # a line may begin before such a step again
            if going is not None:
                runs.go_on(connection, attempt, seq=attempt.seq, step=outcome.step, queue=queue, protocol=protocol)
                return RunStatus.RUNNING
            runs.advance(
                connection,
                attempt,
                step=outcome.step,
                queue=queue,
                protocol=protocol,
                until=outcome.until,
                waiting_for=reason_to_sleep(outcome),
            )
            return RunStatus.QUEUED if outcome.until is None else RunStatus.WAITING
        if isinstance(outcome, Done):
            runs.finish(connection, attempt, RunStatus.SUCCEEDED, output=output, advance=True)
            return RunStatus.SUCCEEDED
        runs.finish(connection, attempt, RunStatus.FAILED, error=_error_of(attempt, outcome), advance=False)
        return RunStatus.FAILED

    def suspend(self, attempt: Attempt) -> None:
        """End a doomed attempt: its run waits, for a time or for a person, or is another's by now."""
        suspension = attempt.doomed
        assert suspension is not None  # noqa: S101 - the callers looked
        if attempt.raised is not None:
            self.raised[attempt.run_id] = attempt.raised
        if isinstance(suspension, Lost):
            logger.info(
                "run %s: %s",
                attempt.run_id,
                suspension.reason,
                extra={"action": "lease_lost", "run_id": attempt.run_id, "fence": attempt.fence},
            )
            return
        if isinstance(suspension, FallBack):
            fall_back(attempt, suspension)
            return
        runtime = self.runtime

        def work(connection: Connection, given: Wait | Ask | Cancelled) -> RunStatus | None:
            row = runtime.runs.owned(connection, attempt)
            if row is None:
                return None
            if isinstance(given, Cancelled) or (is_cancelled(row) and not attempt.settles_only):
                return end_or_settle(runtime, connection, attempt)
            status = runtime.runs.suspend(connection, attempt, given)
            if status in _ASKING:
                for asked in given.questions:
                    runtime.ledger.doubt(connection, asked)
                    runtime.inbox.open(connection, attempt.run_id, asked)
            return status

        try:
            try:
                status = runtime.recorder.write(attempt, "suspend", partial(work, given=suspension))
            except NotWritable as error:  # what it waits for, or the question: it looks again, and says why
                pause = runtime.settings.backoff_seconds(attempt.number)
                suspension = Wait(f"since what it stopped at could not be written: {text_of(error)}", seconds=pause)
                status = runtime.recorder.write(attempt, "suspend", partial(work, given=suspension))
        except StepSuspended:
            return
        if isinstance(suspension, (Ask, Wait)) and suspension.questions and status in _ASKING:
            log_attention(attempt.run_id, suspension, is_kept=runtime.is_kept)
            return
        if status is RunStatus.CANCELLED:
            self._ended(attempt, None, status)
            return
        logger.log(
            logging.WARNING if status is RunStatus.WAITING else logging.INFO,
            "run %s: %s: %s",
            attempt.run_id,
            status or "lease lost",
            suspension.reason,
            extra={"action": "step_suspended", "run_id": attempt.run_id, "seq": attempt.seq},
        )
        if status is RunStatus.QUEUED:
            runtime.ring(attempt.run_id)

    def _crashed(self, attempt: Attempt, crashed: Crashed) -> None:
        """The step would have taken its worker with it; its lease ends as if it had."""
        from agent_tasks.sweeper import end_lease

        self.raised[attempt.run_id] = crashed.error
        logger.error(
            "run %s: step %s raised %s",
            attempt.run_id,
            attempt.step,
            type(crashed.error).__name__,
            extra={"action": "step_crashed", "run_id": attempt.run_id, "seq": attempt.seq},
        )
        try:
            end_lease(self.runtime, attempt.run_id, attempt.token)
        except (LedgerUnavailable, SQLAlchemyError) as error:
            logger.warning("run %s: its lease could not be given back (%s); it expires", attempt.run_id, error)
        if isinstance(crashed.error, KeyboardInterrupt):
            raise crashed.error  # somebody wants this process to end


def _error_of(attempt: Attempt, outcome: Fail) -> dict[str, Any]:
    return attempt.failure or {"type": "fail", "text": storable(outcome.reason[:MAX_REASON]), "traceback": ""}
