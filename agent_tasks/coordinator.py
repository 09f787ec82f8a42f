"""A doorbell, from claim to commit: the main path of the engine (I2, I7, I14)."""

from __future__ import annotations

import logging
import time
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from agent_tasks.attempt import Attempt, working_for
from agent_tasks.calls import settle_unasked
from agent_tasks.errors import BadOutcome, LedgerUnavailable, StepSuspended, UnknownStep, did_you_mean
from agent_tasks.operations import CRASHES, name_of, text_of, traceback_of
from agent_tasks.outcomes import Done, Fail, Next, Outcome, error_line
from agent_tasks.states import Question, RunStatus
from agent_tasks.steps import Step, StepState, what_is_wrong
from agent_tasks.suspensions import Ask, Asked, Lost, about, log_attention
from checkpoint import CheckpointState
from checkpoint.errors import CheckpointError, UnstorableValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.agent import Agent
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime
    from agent_tasks.slots import Slot

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Sends of a claim (and of the look that follows it) without an answer before the doorbell is left to the sweeper, and the pause between them in seconds.
_CLAIM_TRIES, _CLAIM_PAUSE_SECONDS = 5, 0.2


@dataclass(frozen=True)
class Crashed:
    """The step ended in a way that takes a worker with it, or that says nothing about it: its lease ends as if it had."""

    error: BaseException


class _News(Exception):
    """Somebody settled an operation while the step ran: look again before the commit."""


class Coordinator:
    """Works on the runs of one process.

    Args:
        runtime: of this process.

    Attributes:
        raised: what steps raised that ended their runs as failed, by run id; for a caller in this process.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.raised: dict[str, Exception] = {}

    def handle(self, agent: Agent, step: str, run_id: str, seq: int) -> bool:
        """Answer a doorbell: claim, run the step's body, settle, commit, ring.

        Returns:
            False if there was nothing to do: the step is done, or somebody works on it.
        """
        token = self.runtime.new_token()
        deadline = self.runtime.clock.local() + self.runtime.settings.step_timeout_seconds
        slot = self.runtime.slots.take(run_id, token, deadline=deadline)
        try:
            attempt = self._claim(agent, step, run_id, seq, token, slot)
            if attempt is None:
                self._ring_if_stale(run_id)
                return False
            outcome = self._run_body(attempt)
            self._settle(attempt, outcome)
        finally:
            slot.free()
        return True

    # -- claim -------------------------------------------------------------------------------------------------------

    def _claim(self, agent: Agent, step: str, run_id: str, seq: int, token: str, slot: Slot) -> Attempt | None:
        runtime = self.runtime

        def work(connection: Connection) -> tuple[RowMapping, CheckpointState | CheckpointError | None] | None:
            row = runtime.runs.claim(
                connection, run_id, seq, agent=agent.name, step=step, owner=runtime.owner, token=token
            )
            return None if row is None else (row, self._latest(connection, run_id))

        claimed = self._send(lambda: runtime.boundary.commit("claim", runtime.engine, work))
        if claimed is None:
            return None
        row, state = claimed
        slot.claimed(int(row["fence"]))
        if not isinstance(state, CheckpointState) or (state.line, state.seq) != (row["line"], row["seq"]):
            self._park_for_checkpoint(agent, row, slot, state)
            return None
        first = row["attempts"] == 1 and row["line"] == 0
        # A second statement, since the first may have waited for the run's row and would miss what was written meanwhile.
        look = partial(runtime.ledger.of_run, run_id=run_id, from_seq=seq)
        known = [] if first else self._send(lambda: runtime.boundary.read(runtime.engine, look))
        return Attempt(runtime, agent, row, state, known, slot)

    def _latest(self, connection: Connection, run_id: str) -> CheckpointState | CheckpointError | None:
        try:
            return self.runtime.store.load_latest(run_id, connection=connection)
        except CheckpointError as error:  # nothing that verifies, or a value that this release cannot read
            return error

    def _send(self, ask: Callable[[], T]) -> T:
        for _ in range(_CLAIM_TRIES - 1):
            try:
                return ask()
            except LedgerUnavailable:
                time.sleep(_CLAIM_PAUSE_SECONDS)
        return ask()

    def _park_for_checkpoint(self, agent: Agent, row: RowMapping, slot: Slot, found: object) -> None:
        nothing = CheckpointState(run_id=row["run_id"], seq=row["seq"], line=row["line"])
        attempt = Attempt(self.runtime, agent, row, nothing, [], slot)
        why = str(found) if isinstance(found, CheckpointError) else "it does not verify"
        asked = Asked(
            Question.CHECKPOINT,
            attempt.run_id,
            attempts=int(row["fence"]),
            detail={"line": row["line"], "seq": row["seq"], "why": why},
        )
        attempt.doomed = Ask(f"checkpoint {row['seq']} of line {row['line']} cannot be used: {why}", (asked,))
        self._suspend(attempt)

    def _ring_if_stale(self, run_id: str) -> None:
        """A doorbell that is not the run's next rings only after moving a passed due_at, so that copies do not multiply."""
        runtime = self.runtime
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None or row["status"] != RunStatus.QUEUED or row["due_at"] > row["now"]:
            return
        moved = runtime.boundary.commit(
            "ring",
            runtime.engine,
            lambda connection: runtime.due.rung(connection, run_id, row["due_at"], runtime.settings.ring_again_seconds),
        )
        if moved:
            runtime.ring(run_id)

    # -- body --------------------------------------------------------------------------------------------------------

    def _run_body(self, attempt: Attempt) -> Outcome | Crashed:
        step = attempt.agent.steps[attempt.step]
        view = StepState(attempt.state)
        logger.info(
            "run %s: step %s begins, attempt %s at fence %s",
            attempt.run_id,
            attempt.step,
            attempt.number,
            attempt.fence,
            extra={
                "action": "step_begun",
                "run_id": attempt.run_id,
                "seq": attempt.seq,
                "step": attempt.step,
                "attempt": attempt.number,
            },
        )
        try:
            try:
                with working_for(attempt):
                    returned = step.function(view)
            finally:
                attempt.close()
            outcome = self._outcome_of(attempt, step, returned)
            settle_unasked(attempt, at_end=True)
        except StepSuspended as suspended:
            attempt.doomed = attempt.doomed or Lost(str(suspended))
            return Fail(str(suspended))
        except (*CRASHES, CancelledError) as error:
            return Crashed(error)
        except Exception as error:  # noqa: BLE001 - the step failed
            return self._failed(attempt, error)
        return outcome

    def _outcome_of(self, attempt: Attempt, step: Step, returned: Any) -> Outcome:
        attempt.raise_if_doomed()
        if isinstance(returned, (Done, Fail)):
            return returned
        name = returned.name if isinstance(returned, Step) else getattr(returned, "__name__", None)
        if isinstance(returned, Step) or callable(returned):
            if name not in attempt.agent.steps or (
                isinstance(returned, Step) and returned.agent_name != attempt.agent.name
            ):
                raise UnknownStep(
                    f"run {attempt.run_id!r}: step {step.name!r} returned {name!r}, which is no step of agent "
                    f"{attempt.agent.name!r}.{did_you_mean(str(name), attempt.agent.steps)}"
                )
            return Next(str(name))
        raise BadOutcome(f"run {attempt.run_id!r}: step {step.name!r} {what_is_wrong(returned, attempt.agent.steps)}")

    def _failed(self, attempt: Attempt, error: Exception) -> Outcome:
        said, text = text_of(error), traceback_of(error)
        logger.warning(
            "run %s: step %s failed\n%s",
            attempt.run_id,
            attempt.step,
            text,
            extra={"action": "step_failed", "run_id": attempt.run_id, "seq": attempt.seq},
        )
        attempt.raised = error
        attempt.failure = {"type": name_of(error), "text": said, "traceback": text}
        with suppress(StepSuspended):  # a doubt or an orphan comes first; the step fails again after it is settled
            settle_unasked(attempt, at_end=True)
        return Fail(said)

    # -- settle ------------------------------------------------------------------------------------------------------

    def _settle(self, attempt: Attempt, outcome: Outcome | Crashed) -> None:
        # Never trust what was raised or returned: a step may have swallowed its suspension.
        if attempt.doomed is not None:
            self._suspend(attempt)
        elif isinstance(outcome, Crashed):
            self._crashed(attempt, outcome)
        else:
            self._commit(attempt, outcome)

    def _commit(self, attempt: Attempt, outcome: Outcome) -> None:
        """Checkpoint, position and the release of the lease in one transaction; the doorbell after it (I7)."""
        runtime = self.runtime
        state = self._next_state(attempt)

        def work(connection: Connection) -> bool | tuple[Operation, ...]:
            row = runtime.runs.owned(connection, attempt)
            if row is None:
                return self._committed_before(connection, attempt)
            if runtime.recorder.looked_again(connection, attempt, row):
                raise _News
            ends = not isinstance(outcome, Next)
            if ends and attempt.line:
                left = runtime.ledger.left_behind(connection, attempt)
                if left:
                    return tuple(left)
            runtime.ledger.adopt(connection, attempt)
            self._move(connection, attempt, outcome)
            if not isinstance(outcome, Fail):
                runtime.store.save(state, connection=connection)
            return True

        try:
            committed = runtime.recorder.write(attempt, "step", work)
        except _News:
            with suppress(StepSuspended):
                settle_unasked(attempt, at_end=True)
            self._settle(attempt, outcome)
            return
        except StepSuspended:
            return  # the lease expires, or a later attempt finds what was recorded
        except UnstorableValue as error:  # the step's state or output: nothing was written
            attempt.raised = error
            attempt.failure = {"type": type(error).__name__, "text": str(error), "traceback": ""}
            self._commit(attempt, Fail(str(error)))
            return
        if isinstance(committed, tuple):
            attempt.doomed = Ask(
                "effects that this line does not ask for", tuple(about(Question.ORPHAN, o) for o in committed)
            )
            self._suspend(attempt)
        elif not committed:
            logger.info(
                "run %s: the lease of fence %s was lost before its commit",
                attempt.run_id,
                attempt.fence,
                extra={"action": "lease_lost", "run_id": attempt.run_id, "fence": attempt.fence},
            )
        elif isinstance(outcome, Next):
            runtime.ring(attempt.run_id)
        else:
            self._ended(attempt, outcome)

    def _ended(self, attempt: Attempt, outcome: Done | Fail) -> None:
        said = "succeeded"
        if isinstance(outcome, Fail):
            said = f"failed: {error_line(_error_of(attempt, outcome))}"
            if attempt.raised is not None:
                self.raised[attempt.run_id] = attempt.raised
        logger.info(
            "run %s %s",
            attempt.run_id,
            said,
            extra={"action": "run_ended", "run_id": attempt.run_id, "seq": attempt.seq},
        )

    def _next_state(self, attempt: Attempt) -> CheckpointState:
        state = attempt.state
        return replace(
            state,
            seq=attempt.seq,
            line=attempt.line,
            step=attempt.step,
            created_at=None,
            metadata={**state.metadata, "committed_by": attempt.token},
        )

    def _committed_before(self, connection: Connection, attempt: Attempt) -> bool:
        """A commit whose answer was lost is found by the token that its checkpoint carries."""
        try:
            state = self.runtime.store.load(attempt.run_id, attempt.seq, connection=connection)
        except CheckpointError:
            return False
        return state.metadata.get("committed_by") == attempt.token

    def _move(self, connection: Connection, attempt: Attempt, outcome: Outcome) -> None:
        runs, bell = self.runtime.runs, self.runtime.bell
        if isinstance(outcome, Next):
            queue = bell.queue_for(f"{attempt.agent.name}.{outcome.step}")
            runs.advance(connection, attempt, step=outcome.step, queue=queue)
        elif isinstance(outcome, Done):
            runs.finish(connection, attempt, RunStatus.SUCCEEDED, output=outcome.output, advance=True)
        else:
            runs.finish(connection, attempt, RunStatus.FAILED, error=_error_of(attempt, outcome), advance=False)

    def _suspend(self, attempt: Attempt) -> None:
        suspension = attempt.doomed
        assert suspension is not None  # noqa: S101 - both callers looked
        if isinstance(suspension, Lost):
            logger.info(
                "run %s: %s",
                attempt.run_id,
                suspension.reason,
                extra={"action": "lease_lost", "run_id": attempt.run_id, "fence": attempt.fence},
            )
            return
        runtime = self.runtime

        def work(connection: Connection) -> RunStatus | None:
            status = runtime.runs.suspend(connection, attempt, suspension)
            if status is RunStatus.NEEDS_ATTENTION and isinstance(suspension, Ask):
                for asked in suspension.questions:
                    runtime.ledger.doubt(connection, asked)
                    runtime.inbox.open(connection, attempt.run_id, asked)
            return status

        try:
            status = runtime.recorder.write(attempt, "suspend", work)
        except StepSuspended:
            return
        if status is RunStatus.NEEDS_ATTENTION and isinstance(suspension, Ask):
            log_attention(attempt.run_id, suspension)
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


def _error_of(attempt: Attempt, outcome: Fail) -> dict[str, Any]:
    return attempt.failure or {"type": "fail", "text": outcome.reason, "traceback": ""}
