"""What an attempt does with the ledger where all goes as usual: each in one statement, through the boundary.

Each returns None where it changed nothing, or where the ledger's database has no such statement; the caller then goes the
longer way, which decides. See :mod:`agent_tasks.folded`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_tasks.lines import standing_line
from agent_tasks.operations import Operation
from agent_tasks.outcomes import Done, Next
from agent_tasks.runs import claim_of, owner_of
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.together import never_begun
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_tasks.attempt import Attempt
    from agent_tasks.coalescing import GoesOn
    from agent_tasks.ledger import Request
    from agent_tasks.runs import Owner
    from agent_tasks.runtime import Runtime
    from checkpoint import CheckpointState, Snapshot


def claim(
    runtime: Runtime, run_id: str, seq: int, *, agent: str, step: str, token: str
) -> tuple[dict[str, Any], CheckpointState | None] | None:
    """Take the lease of a queued run.

    Returns:
        The claimed row, and the checkpoint that it stands at; None for the latter if it has to be looked for.
    """
    if runtime.folded is None:
        return None
    values = claim_of(
        runtime.clock, runtime.settings, run_id, seq, agent=agent, step=step, owner=runtime.owner, token=token
    )
    found = runtime.boundary.at_once("claim", runtime.engine, runtime.folded.claim, values)
    if found is None:
        return None
    row = {column.name: getattr(found, column.name) for column in runtime.tables.runs.c}
    if (found.head_line, found.head_seq) != (standing_line(row), row["seq"]) or row["line"] != found.head_line:
        return row, None  # older than the row, which was waited for; or on another line than the next checkpoint
    try:
        state = runtime.store.seen_state(found)
        if state is None:  # messages of one line and seq stay as they are, so it does not matter when they are read
            state = runtime.boundary.read(runtime.engine, lambda connection: runtime.store.state_of(found, connection))
    except CheckpointError:
        return row, None
    return row, state


def intend(runtime: Runtime, attempt: Attempt, request: Request) -> Operation | None:
    """Record the intent of a call that has no row yet."""
    guard, clock = request.tool.guard, runtime.clock
    life = guard.key_lifetime
    moments = {
        "at_now": clock.offset(0),
        "at_horizon": clock.offset(request.timeout_seconds + guard.settle.total_seconds()),
        "at_key_until": None if life is None else clock.offset(life.total_seconds()),
    }
    return _insert(runtime, attempt, request, "intent", moments, status=OperationStatus.EXECUTING)


def record(runtime: Runtime, attempt: Attempt, request: Request, **outcome: Any) -> bool:
    """Record a call without an intent, and without a row yet, with its outcome; False if nothing was changed."""
    moments = {"at_now": runtime.clock.offset(0), "at_key_until": None}
    return _insert(runtime, attempt, request, "record", moments, **outcome, ended=attempt.fence) is not None


def _owner(attempt: Attempt) -> dict[str, Any]:
    return {**owner_of(attempt), "own_wakeups": attempt.wakeups}


def _insert(
    runtime: Runtime, attempt: Attempt, request: Request, name: str, moments: dict[str, int | None], **values: Any
) -> Operation | None:
    if runtime.folded is None:
        return None
    row = dict.fromkeys(runtime.folded.of_operations)
    row.update(request.planned(attempt), fence=attempt.fence, token=attempt.token, attempts=1, **values)
    parameters = {f"new_{name}": value for name, value in row.items()}
    parameters.update(_owner(attempt), **moments)
    statement = runtime.folded.intent if name == "intent" else runtime.folded.record
    said = runtime.boundary.at_once(name, runtime.engine, statement, parameters)
    if said is None:
        return None
    row.update(said._asdict(), now=said.started_at)
    return Operation(row, runtime.clock, runtime.clock.local())


def succeed(runtime: Runtime, attempt: Attempt, operation: Operation, result: bytes) -> Any:
    """Settle a request as succeeded; the row that says what is requested of its run."""
    if runtime.folded is None:
        return None
    values = {
        **_owner(attempt),
        "old_operation_id": operation.operation_id,
        "old_attempts": operation.attempts,
        "new_result": result,
        "at_now": runtime.clock.offset(0),
    }
    return runtime.boundary.at_once("outcome", runtime.engine, runtime.folded.outcome, values)


def go_on(
    runtime: Runtime, owner: Attempt | Owner, wakeups: int, snapshots: Sequence[Snapshot], *, step: str, queue: str
) -> Any:
    """Save checkpoints, move the run to its next step and keep the lease; a row if so it is.

    Not on another line than the first: more than this is written then.

    Args:
        runtime: of this process.
        owner: of the run.
        wakeups: that its attempt saw.
        snapshots: of the checkpoints, the oldest first.
        step: that follows.
        queue: that the step is routed to.
    """
    folded, store, last = runtime.folded, runtime.store, snapshots[-1]
    if folded is None or last.record.line:
        return None
    one = len(snapshots) == 1
    append = store.plan_append(last) if one else store.plan_appends(snapshots)
    if append is None:
        return None
    clock, values = runtime.clock, {**append.parameters, **owner_of(owner), "own_wakeups": wakeups}
    values.update(at_now=clock.offset(0), at_lease_end=clock.offset(runtime.settings.lease_seconds))
    values.update(go_step=step, go_queue=queue, go_seq=last.seq)
    row = runtime.boundary.at_once("step", runtime.engine, folded.go_on if one else folded.catch_up, values)
    if row is not None:
        store.appended(append)
    return row


def keep_on(runtime: Runtime, attempt: Attempt, going: GoesOn) -> RunStatus | None:
    """Do so for a step that has just ended; not where calls are planned or dropped in the same transaction."""
    if going.with_calls or never_begun(attempt):
        return None
    snapshots, place = (going.snapshot,), {"step": going.step, "queue": going.queue}
    return None if go_on(runtime, attempt, attempt.wakeups, snapshots, **place) is None else RunStatus.RUNNING


def commit(runtime: Runtime, attempt: Attempt, outcome: Next | Done, snapshot: Snapshot, output: bytes | None) -> Any:
    """Save the checkpoint, move the run on and release the lease; the row that a doorbell is made of.

    Not for a run that is on another line than its first, nor where planned calls would be dropped: more than this is
    written then. The output is as it is stored.
    """
    if runtime.folded is None or attempt.line or never_begun(attempt):
        return None
    if isinstance(outcome, Next) and (outcome.batch or outcome.check or outcome.until is not None):
        return None  # its calls are planned in the same transaction, or its wait is written
    append = runtime.store.plan_append(snapshot)
    if append is None:
        return None
    clock, values = runtime.clock, {**append.parameters, **_owner(attempt)}
    values.update(at_now=clock.offset(0), at_ring_again=clock.offset(runtime.settings.ring_again_seconds))
    if isinstance(outcome, Done):
        statement = runtime.folded.finish
        values.update(go_output=output)
    else:
        statement = runtime.folded.advance
        queue = runtime.bell.queue_for(f"{attempt.agent.name}.{outcome.step}")
        values.update(go_step=outcome.step, go_queue=queue)
    row = runtime.boundary.at_once("step", runtime.engine, statement, values)
    if row is not None:
        runtime.store.appended(append)
    return row
