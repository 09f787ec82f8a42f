"""A doorbell, from claim to commit: the main path of the engine (I2, I7, I14)."""

from __future__ import annotations

import inspect
import logging
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agent_tasks import shortcuts
from agent_tasks.attempt import Attempt
from agent_tasks.calling import settle_doubts, settle_unasked
from agent_tasks.cancelling import expire
from agent_tasks.children import EndingChildren
from agent_tasks.coalescing import next_attempt
from agent_tasks.current import working_for
from agent_tasks.ending import Crashed, Ending
from agent_tasks.errors import (
    BadOutcome,
    CarriedElsewhere,
    LedgerUnavailable,
    StepSuspended,
    UnknownStep,
    did_you_mean,
    is_a,
)
from agent_tasks.fallback import examine
from agent_tasks.lines import next_place, standing_line
from agent_tasks.loops import KeptLoop
from agent_tasks.mistaken import what_is_mistaken
from agent_tasks.next_calls import begins_with_calls, next_with_calls, run_step
from agent_tasks.next_waits import after_answer, is_answer, next_with_wait, sleep_on
from agent_tasks.operations import CRASHES, describe_failure, text_of, traceback_of
from agent_tasks.outcomes import Calls, Done, Fail, Next, Outcome
from agent_tasks.retries import Retry, as_told
from agent_tasks.runs import is_cancelled, steps_allowed
from agent_tasks.states import RunStatus
from agent_tasks.steps import Step, StepState, what_is_wrong
from agent_tasks.suspensions import Ask, Cancelled, RetryLater, steps_are_spent
from agent_tasks.waits import Check, NotYet, Sleep, WaitUntil
from checkpoint import CheckpointState
from checkpoint.errors import CheckpointError, CheckpointNotFound
from checkpoint.values import keeping_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from agent_tasks.agent import Agent
    from agent_tasks.coalescing import GoesOn, Show
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime
    from agent_tasks.slots import Slot

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Sends of a claim (and of the look that follows it) without an answer before the doorbell is left to the sweeper, and the pause between them in seconds.
_CLAIM_TRIES, _CLAIM_PAUSE_SECONDS = 5, 0.2


class Coordinator:
    """Works on the runs of one process.

    Args:
        runtime: of this process.

    Attributes:
        ending: what ends the attempts.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.ending = runtime, Ending(runtime)

    def handle(self, agent: Agent, step: str, run_id: str, seq: int, show: Show | None = None) -> bool:
        """Answer a doorbell: claim, run the step's body, settle, commit, ring; or go on with the next step at once.

        Args:
            agent: whose step it is.
            step: its name.
            run_id: of the run.
            seq: of the checkpoint that the step makes.
            show: shows the steps that follow it in the same message.

        Returns:
            False if there was nothing to do: the step is done, or somebody works on it.
        """
        token = self.runtime.new_token()
        deadline = self.runtime.clock.local() + self.runtime.settings.step_timeout_seconds
        slot = self.runtime.slots.take(run_id, token, deadline=deadline)
        try:
            with EndingChildren(f"run {run_id!r}"):  # of a health check, say; the slot is their parent's, too
                return self._work(agent, step, run_id, seq, token, slot, show)
        finally:
            slot.free()

    def _work(self, agent: Agent, step: str, run_id: str, seq: int, token: str, slot: Slot, show: Show | None) -> bool:
        began = self.runtime.clock.local()
        attempt = self._claim(agent, step, run_id, seq, token, slot)
        if attempt is None:
            self._settle_stale(agent, run_id)
            return False
        attempt.message_began = began
        with keeping_out(attempt.resources.kept_out):
            going = self.ending.settle(attempt, self._examine(attempt) or self._run_body(attempt))
        while going is not None:
            attempt = self._next(attempt, going)  # which opens and closes what it needs as if it had its own message
            if show is not None:
                show.begun(attempt.step, attempt.seq)
            with keeping_out(attempt.resources.kept_out):
                going = self.ending.settle(attempt, self._run_body(attempt))
            if show is not None:
                show.ended()
        return True

    def _next(self, attempt: Attempt, going: GoesOn) -> Attempt:
        """Return the attempt of the next step in the same message, with what a claim of it would find in the ledger."""
        made = next_attempt(attempt, going)
        if going.with_calls or (made.line and not going.held):
            look = partial(self.runtime.ledger.of_run, run_id=made.run_id, from_seq=made.seq)
            known = self._send(lambda: self.runtime.boundary.read(self.runtime.engine, look))
            made.known = {operation.operation_id: operation for operation in known}
        return made

    # -- claim -------------------------------------------------------------------------------------------------------

    def _claim(self, agent: Agent, step: str, run_id: str, seq: int, token: str, slot: Slot) -> Attempt | None:
        runtime = self.runtime

        def work(connection: Connection) -> tuple[Mapping[Any, Any], CheckpointState | CheckpointError] | None:
            row = runtime.runs.claim(
                connection, run_id, seq, agent=agent.name, step=step, owner=runtime.owner, token=token
            )
            return None if row is None else (row, self._standing(connection, row))

        def claim() -> tuple[Mapping[Any, Any], CheckpointState | CheckpointError] | None:
            taken = shortcuts.claim(runtime, run_id, seq, agent=agent.name, step=step, token=token)
            if taken is None:
                return runtime.boundary.commit("claim", runtime.engine, work)
            row, state = taken
            if state is None:
                return row, runtime.boundary.read(runtime.engine, partial(self._standing, row=row))
            return row, state

        claimed = self._send(claim)
        if claimed is None:
            return None
        row, state = claimed
        slot.claimed(int(row["fence"]))
        if is_cancelled(row):
            self._end_cancelled(agent, row, slot)
            return None
        more = agent.max_steps or runtime.settings.max_steps
        if seq > (allowed := steps_allowed(row, more)):
            self._park(agent, row, slot, steps_are_spent(run_id, step, allowed, more))
            return None
        planned = isinstance(state, CheckpointState) and begins_with_calls(state)
        asked = (
            isinstance(state, CheckpointState) and Check.of(state.metadata) is not None
        )  # before, with attempts set back
        first = row["attempts"] == 1 and row["line"] == 0 and not planned and not asked
        # A second statement, since the first may have waited for the run's row and would miss what was written meanwhile.
        look = partial(runtime.ledger.of_run, run_id=run_id, from_seq=seq)
        known = [] if first else self._send(lambda: runtime.boundary.read(runtime.engine, look))
        damage = state if isinstance(state, CheckpointError) else None
        if isinstance(state, CheckpointError):
            state = CheckpointState(run_id=run_id, seq=int(row["seq"]), line=standing_line(row))
        attempt = Attempt(runtime, agent, row, state, known, slot)
        attempt.damage = damage
        return attempt

    def _standing(self, connection: Connection, row: Mapping[Any, Any]) -> CheckpointState | CheckpointError:
        """Return the checkpoint that the run stands at and no other one, or what is wrong with it."""
        try:
            state = self.runtime.store.load_parent_of(next_place(row), connection=connection)
        except CheckpointError as error:
            return error
        if state.line == standing_line(row):
            return state
        reason = f"the one of that number in its history is of line {state.line}"
        return CheckpointNotFound(str(row["run_id"]), int(row["seq"]), standing_line(row), reason)

    def _send(self, ask: Callable[[], T]) -> T:
        for _ in range(_CLAIM_TRIES - 1):
            try:
                return ask()
            except LedgerUnavailable:
                self.runtime.clock.pause(_CLAIM_PAUSE_SECONDS)
        return ask()

    def _park(self, agent: Agent, row: Mapping[Any, Any], slot: Slot, ask: Ask) -> None:
        """Let a claimed run wait for a person, before its body."""
        attempt = self._without_body(agent, row, slot, [])
        attempt.doomed = ask
        self.ending.suspend(attempt)

    def _examine(self, attempt: Attempt) -> Outcome | Crashed | None:
        """Return why the body does not begin, or None if it may; a check that takes a worker along counts as a crash."""
        try:
            examine(attempt)
            if attempt.doomed is None:
                sleep_on(attempt)
        except StepSuspended as suspended:
            return Fail(str(suspended))
        except BaseException as error:  # noqa: BLE001 - Celery would lose the message over it
            return Crashed(error)
        return None if attempt.doomed is None else Fail(attempt.doomed.reason)

    def _end_cancelled(self, agent: Agent, row: Mapping[Any, Any], slot: Slot) -> None:
        """No body of a cancelled run begins any more: its doubts are settled, and it ends."""
        look = partial(self.runtime.ledger.doubts, run_id=row["run_id"])
        doubts = self._send(lambda: self.runtime.boundary.read(self.runtime.engine, look))
        attempt = self._without_body(agent, row, slot, doubts)
        with suppress(StepSuspended):
            settle_doubts(attempt, at_end=True)
        attempt.doomed = attempt.doomed or Cancelled()
        self.ending.suspend(attempt)

    def _without_body(self, agent: Agent, row: Mapping[Any, Any], slot: Slot, known: list[Operation]) -> Attempt:
        nothing = CheckpointState(run_id=row["run_id"], seq=row["seq"], line=row["line"])
        return Attempt(self.runtime, agent, row, nothing, known, slot)

    def _settle_stale(self, agent: Agent, run_id: str) -> None:
        """A doorbell that claims nothing ends a run that nobody began in time, or is not the run's next.

        Then it rings only after moving a passed due_at, so that copies do not multiply.
        """
        runtime = self.runtime
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None:
            log_no_such_run(agent.subject, run_id)
            return
        if row["status"] != RunStatus.QUEUED:
            return
        if row["expires_at"] is not None and row["expires_at"] <= row["now"] and not row["fence"]:
            runtime.boundary.commit("expire", runtime.engine, partial(expire, runtime, run_id=run_id))
            return
        if row["due_at"] > row["now"]:
            return
        moved = runtime.boundary.commit(
            "ring",
            runtime.engine,
            lambda connection: runtime.due.rung(connection, run_id, row["due_at"], runtime.settings.ring_again_seconds),
        )
        if moved:
            runtime.ring(run_id)

    # -- body --------------------------------------------------------------------------------------------------------

    def _run_body(self, attempt: Attempt) -> Outcome | Retry | NotYet | Crashed:
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
                with working_for(attempt), EndingChildren(f"step {attempt.step!r} of run {attempt.run_id!r}"):
                    returned = run_step(attempt, step, view)
                    if inspect.iscoroutine(returned):
                        kept = KeptLoop.of_this_process()
                        said = f"step {attempt.step!r} of run {attempt.run_id!r}"
                        returned = kept.run(returned, said, first=attempt.be_at_home)
            finally:
                error = sys.exc_info()[1]
                attempt.close()
                attempt.resources.close(error if error is not None or attempt.doomed is None else attempt.suspended())
            outcome = self._outcome_of(attempt, step, returned)
            settle_unasked(attempt, at_end=True, goes_on=isinstance(outcome, (Next, NotYet)))
        except StepSuspended as suspended:
            return Fail(str(suspended)) if attempt.doomed is not None else self._failed(attempt, _of_another(suspended))
        except RetryLater as later:
            with suppress(StepSuspended):  # a doubt or an orphan comes first; then the step is run again all the same
                settle_unasked(attempt, at_end=True, goes_on=True)
            return Retry(later.seconds, later.wait.reason, spends=True)
        except Exception as error:  # noqa: BLE001 - the step failed, or took its worker with it
            return Crashed(error) if is_a(error, CRASHES) else self._failed(attempt, error)
        except BaseException as error:  # noqa: BLE001 - Celery would lose the message over it
            return Crashed(error)
        return outcome

    def _outcome_of(self, attempt: Attempt, step: Step, returned: Any) -> Outcome | NotYet:
        attempt.raise_if_doomed()
        attempt.check_awaited()
        if (mistake := what_is_mistaken(returned, attempt.agent.steps)) is not None:
            raise BadOutcome(f"run {attempt.run_id!r}: step {step.name!r} returned {mistake}")
        if is_answer(attempt, returned):
            return after_answer(attempt, returned)
        if isinstance(returned, (Done, Fail)):
            return returned
        if isinstance(returned, (Sleep, WaitUntil)):
            return next_with_wait(attempt, returned)
        if isinstance(returned, Calls):
            return next_with_calls(attempt, returned)
        name = returned.name if isinstance(returned, Step) else getattr(returned, "__name__", None)
        if isinstance(returned, Step) or callable(returned):
            if name not in attempt.agent.steps or (
                isinstance(returned, Step) and returned.agent_name != attempt.agent.name
            ):
                raise UnknownStep(
                    f"run {attempt.run_id!r}: step {step.name!r} returned {name!r}, which is no step of agent "
                    f"{attempt.agent.name!r}.{did_you_mean(str(name), attempt.agent.steps)}{_remedy(returned, attempt.agent)}"
                )
            if attempt.agent.steps[str(name)].needs_results:
                raise BadOutcome(
                    f"run {attempt.run_id!r}: step {step.name!r} returned step {name!r}, which takes the results of calls as its "
                    f"second argument. Return calls([…], then={name})."
                )
            return Next(str(name))
        raise BadOutcome(f"run {attempt.run_id!r}: step {step.name!r} {what_is_wrong(returned, attempt.agent.steps)}")

    def _failed(self, attempt: Attempt, error: Exception) -> Outcome | Retry:
        said, text = text_of(error), traceback_of(error)
        policy = attempt.agent.steps[attempt.step].retry
        retry = as_told(attempt.step, error) or policy.next_try(attempt.step, attempt.retries, error)
        logger.warning(
            "run %s: step %s failed\n%s",
            attempt.run_id,
            attempt.step,
            text,
            extra={"action": "step_failed", "run_id": attempt.run_id, "seq": attempt.seq},
        )
        attempt.raised = error
        attempt.failure = {**describe_failure(error, attempt.agent.known_errors), "traceback": text}
        with suppress(StepSuspended):  # a doubt or an orphan comes first; the step fails again after it is settled
            settle_unasked(attempt, at_end=True, goes_on=retry is not None)
        return retry or Fail(said)


def log_no_such_run(subject: str, run_id: str) -> None:
    """Say that a doorbell is of no run here.

    Args:
        subject: whose doorbell it is.
        run_id: in it.
    """
    logger.warning(
        "a doorbell of %s was dropped: there is no such run %r in this worker's ledger. Has whoever enqueued it the same "
        "agent_database_url as this worker?",
        subject,
        run_id,
        extra={"action": "message_dropped", "run_id": run_id},
    )


def _of_another(suspended: StepSuspended) -> CarriedElsewhere:
    """Return what is wrong with a step that ended on the suspension of another attempt; its own lease is not lost."""
    error = CarriedElsewhere(
        f"the step ended on what another attempt was suspended by: {suspended} Wait for what carry_run has carried in the step "
        "that carried it."
    )
    error.__cause__ = suspended
    return error


def _remedy(returned: object, agent: Agent) -> str:
    """Return what to do about a step that goes on with what is no step of its agent."""
    known = f"the steps are {', '.join(agent.steps)}."
    if isinstance(returned, Step):
        return f" It is a step of agent {returned.agent_name!r}; {known}"
    return f" Put @{agent.name}.step above it; {known}"
