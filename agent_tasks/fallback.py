"""Fallback: a checkpoint that must not be used is left for the newest that may be, on a new line (I11, I12).

It always ends. A line begins by itself behind a checkpoint number only if none has begun there since a person last
decided something about the run. Each such beginning lies before the place that was left, so their number is at most
the highest number that the run ever reached: a run that falls back again and again reaches ever new numbers, which is
progress, or it meets a number for the second time, and a person is asked.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from agent_tasks.errors import StepSuspended
from agent_tasks.health import what_is_unhealthy
from agent_tasks.lines import ENGINE, NewLine, step_after
from agent_tasks.states import Question
from agent_tasks.suspensions import Ask, Asked, FallBack, Suspension
from checkpoint.errors import CheckpointError, UnreadableValue

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from checkpoint import CheckpointState

logger = logging.getLogger(__name__)


def examine(attempt: Attempt) -> None:
    """Doom an attempt whose checkpoint must not be used: nothing works on it, and nothing silently on an older one.

    Raises:
        StepSuspended: the ledger gave no answer until the step's time limit.
    """
    why = None if attempt.damage is None else str(attempt.damage)
    if why is None:
        resumed = attempt.number > 1 or attempt.line > 0
        why = what_is_unhealthy(attempt.agent, attempt.state, attempt.runtime.boundary, resumed=resumed)
    if why is not None:
        attempt.doomed = _way_back(attempt, why)


def fall_back(attempt: Attempt, suspension: FallBack) -> None:
    """Begin the new line, release the lease and ring."""
    runtime, line = attempt.runtime, suspension.line
    what = _what(line.seq)

    def work(connection: Connection) -> bool:
        if not runtime.runs.begin_line(connection, attempt, line):
            return runtime.inbox.engine_said(connection, attempt.run_id, what)  # an answer to this very write was lost
        runtime.inbox.audit(connection, attempt.run_id, None, ENGINE, what, suspension.reason)
        return True

    try:
        begun = runtime.recorder.write(attempt, "fall back", work)
    except StepSuspended:
        return  # the lease expires, and the next attempt comes here again
    logger.log(
        logging.WARNING if begun else logging.INFO,
        "run %s: %s",
        attempt.run_id,
        suspension.reason if begun else "lease lost before it fell back",
        extra={"action": "fell_back" if begun else "lease_lost", "run_id": attempt.run_id, "seq": line.seq},
    )
    runtime.ring(attempt.run_id)


def _way_back(attempt: Attempt, why: str) -> Suspension:
    if isinstance(attempt.damage, UnreadableValue):  # whole, and this release lacks what reads it: nothing is damaged
        return _ask(attempt, why)
    try:
        found = _newest_usable(attempt)
    except CheckpointError as error:
        return _ask(attempt, f"{why}; and looking for an older one: {error}")
    if found is None:
        return _ask(attempt, f"{why}; and no older one can be used")
    state, step = found
    runtime = attempt.runtime
    said = partial(runtime.inbox.engine_said, run_id=attempt.run_id, what=_what(state.seq))
    if runtime.recorder.write(attempt, "look", said):
        return _ask(
            attempt, f"{why}; and the run has fallen back to checkpoint {state.seq} before, and came here again"
        )
    plain = attempt.run["task"] is not None  # its queue is that of the call
    queue = attempt.run["queue"] if plain else runtime.bell.queue_for(f"{attempt.agent.name}.{step}")
    line = NewLine(attempt.line + 1, state.line, state.seq, step, queue)
    reason = (
        f"fell back from checkpoint {attempt.seq - 1} of line {attempt.standing_line} to checkpoint {state.seq} of line "
        f"{state.line}, as line {line.number}: {why}"
    )
    return FallBack(reason, line)


def _newest_usable(attempt: Attempt) -> tuple[CheckpointState, str] | None:
    """Return the newest older checkpoint that passes, with the step that follows it.

    Raises:
        CheckpointError: one that is whole cannot be read here, or nobody can tell what is older.
    """
    runtime, agent, before = attempt.runtime, attempt.agent, attempt.seq - 1
    newer = attempt.state if attempt.damage is None else None
    while True:
        load = partial(runtime.store.load_before, attempt.run_id, before)
        state = runtime.recorder.write(attempt, "look", load)
        if state is None:
            return None
        step = step_after(state)
        if step is None and newer is not None and newer.seq == state.seq + 1:
            step = newer.step  # of a release that did not note it: what made the next checkpoint, which is verified
        why = "nobody knows which step follows it"
        if step is not None:
            unhealthy = what_is_unhealthy(agent, state, runtime.boundary, resumed=True)
            if unhealthy is None:
                return state, step
            why = unhealthy
        logger.info(
            "run %s: checkpoint %s of line %s is passed over: %s",
            attempt.run_id,
            state.seq,
            state.line,
            why,
            extra={"action": "checkpoint_passed_over", "run_id": attempt.run_id, "seq": state.seq},
        )
        before, newer = state.seq, state


def _ask(attempt: Attempt, why: str) -> Ask:
    line, seq = attempt.standing_line, attempt.seq - 1
    asked = Asked(
        Question.CHECKPOINT, attempt.run_id, attempts=attempt.fence, detail={"line": line, "seq": seq, "why": why}
    )
    return Ask(f"checkpoint {seq} of line {line} cannot be used: {why}", (asked,))


def _what(seq: int) -> str:
    return f"fall back to checkpoint {seq}"
