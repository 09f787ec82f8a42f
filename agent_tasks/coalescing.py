"""Steps that share a message: who owns a run goes on with its next step, and keeps the lease (I2, I4, I7).

Each step has its own checkpoint and its own seq, whether it had a message of its own or not: so an operation has the same
identity however often, and wherever, a message ended. What may differ is when checkpoints are committed. Those of steps that
made no recorded call may be held, in the order of their steps, until the run's next write of any kind: a held checkpoint has
nothing behind it in the ledger or in the world, so a crash that loses it loses a computation and no more.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_tasks import shortcuts
from agent_tasks.coalesce import BOUNDARIES
from agent_tasks.errors import StepSuspended
from agent_tasks.health import what_is_unhealthy
from agent_tasks.operations import CRASHES, text_of
from agent_tasks.outcomes import Next
from agent_tasks.runs import Owner, is_cancelled, steps_allowed
from agent_tasks.schema import CALLS_PROTOCOL, PLAIN_PROTOCOL
from agent_tasks.suspensions import Lost
from agent_tasks.together import never_begun

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from checkpoint import CheckpointState, Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GoesOn:
    """What an attempt goes on with when its step has ended.

    Attributes:
        step, queue: that follow.
        snapshot: of the checkpoint that the step has made.
        with_calls: the step begins with calls that were planned.
        held: the checkpoint is committed later.
    """

    step: str
    queue: str
    snapshot: Snapshot
    with_calls: bool
    held: bool


class Show(Protocol):
    """Whoever shows the steps that have no message of their own."""

    def begun(self, step: str, seq: int) -> None:
        """A step begins."""
        ...

    def ended(self) -> None:
        """The step that began last has ended, in whatever way."""
        ...


def goes_on(attempt: Attempt, outcome: object, state: CheckpointState) -> GoesOn | None:
    """Return what an attempt goes on with in the same message, or None if the next step has one of its own.

    Args:
        attempt: whose step has ended.
        outcome: of the step.
        state: the checkpoint that it has made.
    """
    agent, runtime, began = attempt.agent, attempt.runtime, attempt.message_began
    how = agent.coalesce
    if how is None or began is None or not isinstance(outcome, Next):
        return None
    if outcome.until is not None or outcome.check is not None:  # a run waits without a worker and without a lease (I8)
        return None
    if runtime.clock.local() - began >= how.seconds or runtime.slots.stopping:
        return None
    queue = runtime.bell.queue_for(f"{agent.name}.{outcome.step}")
    same_place = queue == attempt.run["queue"] and agent.shares_messages(attempt.step)
    allowed = steps_allowed(attempt.run, agent.max_steps or runtime.settings.max_steps)
    if not same_place or not agent.shares_messages(outcome.step) or attempt.seq >= allowed:
        return None
    with suppress(Exception, SystemExit):  # what cannot be stored, whatever it does instead, is said at its commit
        snapshot = runtime.store.snapshot(state)
        if _is_healthy(attempt, snapshot):
            held = (
                how.checkpoints == BOUNDARIES and outcome.batch is None and not (attempt.has_recorded or attempt.known)
            )
            return GoesOn(outcome.step, queue, snapshot, outcome.batch is not None, held and not never_begun(attempt))
    return None


def _is_healthy(attempt: Attempt, snapshot: Snapshot) -> bool:
    """Ask the agent's check as a claim would. Where it says no, or takes the worker along, the claim is what meets it."""
    if attempt.agent.own_check is None:
        return True
    state, resumed = snapshot.state(), attempt.line > 0
    try:
        return what_is_unhealthy(attempt.agent, state, attempt.runtime.boundary, resumed=resumed) is None
    except (Exception, *CRASHES) as error:  # noqa: BLE001 - what ends a claim does not end the step before it
        logger.warning("run %s: its health check raised %s", attempt.run_id, type(error).__name__)
        return False


def next_attempt(attempt: Attempt, going: GoesOn) -> Attempt:
    """Return the attempt of the next step, under the same lease and within time limits of its own."""
    runtime = attempt.runtime
    if attempt.slot is not None:
        attempt.slot.begin_anew(runtime.clock.local() + runtime.settings.step_timeout_seconds)
    run = {
        **attempt.run,
        "seq": attempt.seq,
        "next_step": going.step,
        "queue": going.queue,
        "attempts": 1,
        "retries": 0,
        "wakeups": attempt.wakeups,
        "protocol": max(int(attempt.run["protocol"]), CALLS_PROTOCOL if going.with_calls else PLAIN_PROTOCOL),
        "updated_at": attempt.now(),
    }
    # As it would come back from the ledger, so that a step does not depend on what it shares with the one before.
    made = type(attempt)(runtime, attempt.agent, run, going.snapshot.state(), [], attempt.slot)
    made.message_began = attempt.message_began
    made.held = [*attempt.held, going.snapshot] if going.held else []
    return made


def commit_held(attempt: Attempt) -> None:
    """Commit the checkpoints that are held: from then on the run stands at the attempt's own step.

    Raises:
        StepSuspended: the lease is lost, or the database refused.
    """
    with attempt.holding:  # calls of several threads may come to be the first one
        held = attempt.held
        if not held:
            return
        runtime = attempt.runtime
        owner = Owner(attempt.run_id, attempt.fence, attempt.token, attempt.seq - len(held))
        step, queue = attempt.step, str(attempt.run["queue"])

        def work(connection: Connection) -> bool:
            row = runtime.runs.owned(connection, owner)
            if row is None:  # or an earlier sending of this very commit, whose answer was lost
                return runtime.runs.owned(connection, attempt) is not None
            attempt.cancelled = is_cancelled(row)  # the steps count; the next call does not begin
            runtime.recorder.looked_again(connection, attempt, row)
            for snapshot in held:
                runtime.store.save(snapshot, connection=connection)
            return runtime.runs.go_on(connection, owner, seq=attempt.seq - 1, step=step, queue=queue)

        def at_once() -> bool | None:
            done = shortcuts.go_on(runtime, owner, attempt.wakeups, held, step=step, queue=queue)
            return None if done is None else True

        try:
            committed = runtime.recorder.write(attempt, "step", work, at_once)
        except StepSuspended:
            raise
        except BaseException as error:  # noqa: BLE001 - a time limit, say, or damage: what was written is not known here
            attempt.note_raised(error)
            said = f"{type(error).__name__}: {text_of(error)}"
            attempt.suspend(Lost(f"the commit of the steps before {step} was interrupted: {said}"))
        if not committed:
            attempt.suspend(
                Lost(f"the lease of fence {attempt.fence} was lost before the steps before {step} were committed")
            )
        attempt.held = []
    attempt.raise_if_doomed()  # meanwhile
