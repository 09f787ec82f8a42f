"""Cancel: a request on the run's row, honoured where the owner of the run writes next (I2, I9, I14)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS
from agent_tasks.decisions import EXPIRED
from agent_tasks.errors import AgentTasksError, RunNotFound
from agent_tasks.lines import RESUMED
from agent_tasks.runs import is_cancelled
from agent_tasks.signing import check_signed
from agent_tasks.states import FINISHED, Question, Reply, RunRequest, RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.attempt import Attempt
    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

#: What the audit trail calls it.
CANCEL = str(RunRequest.CANCEL)

#: How the audit trail ends an entry by which a person let a run go on that had stopped.
_GO_ON = tuple(f": {reply}" for reply in (Reply.RETRY, Reply.GO_ON))


def cancel(runtime: Runtime, run_id: str, *, who: str, why: str) -> bool:
    """See ``RunHandle.cancel``."""
    return _cancel(runtime, run_id, who=who, why=why, is_overruled=lambda _connection, _row: False)


def revoke(runtime: Runtime, run_id: str, *, why: str, seconds_ago: float | None) -> bool:
    """Cancel a run whose id was revoked, unless a person let it go on since: the later word counts.

    Workers remember revoked ids for hours, tell each other, and keep them over a restart; a run is what the ledger says (I1).

    Args:
        runtime: of this process.
        run_id: of the run.
        why: the word of Celery.
        seconds_ago: when the command was heard; None if this worker only has it from its memory of an earlier start, from
            another worker, or by a stamp. Then any word of a person is taken for a later one.

    Returns:
        As ``RunHandle.cancel``.

    Raises:
        RunNotFound: there is none.
    """

    def is_overruled(connection: Connection, row: RowMapping) -> bool:
        trail = runtime.inbox.audit_trail(connection, run_id)
        goes_on = [entry for entry in trail if entry.what.startswith(RESUMED) or entry.what.endswith(_GO_ON)]
        if not goes_on or (seconds_ago is not None and goes_on[-1].at <= row["now"] - seconds_ago * MICROSECONDS):
            return False
        logger.warning(
            "run %s goes on although its id was revoked (%s), since %s let it go on after that: %s. To end it, call "
            "cancel(who=…, why=…) of its handle.",
            run_id,
            why,
            goes_on[-1].who,
            goes_on[-1].what,
            extra={"action": "revoke_overruled", "run_id": run_id},
        )
        return True

    return _cancel(runtime, run_id, who="revoke", why=why, is_overruled=is_overruled)


def _cancel(
    runtime: Runtime, run_id: str, *, who: str, why: str, is_overruled: Callable[[Connection, RowMapping], bool]
) -> bool:
    check_signed(who, why, AgentTasksError)

    def work(connection: Connection) -> tuple[bool, bool]:
        row = runtime.runs.find(connection, run_id, lock=True)
        if row is None:
            raise RunNotFound(f"no run {run_id!r} in this ledger; nothing was cancelled.")
        if row["status"] in FINISHED:
            return False, False
        if is_cancelled(row):  # asked for already; whoever was first is named
            return True, False
        if is_overruled(connection, row):
            return False, False
        runtime.decisions.ask(connection, run_id, RunRequest.CANCEL)
        runtime.inbox.audit(connection, run_id, None, who, CANCEL, why)
        return True, row["status"] != RunStatus.RUNNING and not _end_now(runtime, connection, run_id)

    ends, has_doubts = runtime.boundary.commit("cancel", runtime.engine, work)
    if has_doubts:
        runtime.ring(run_id)
    return ends


def _end_now(runtime: Runtime, connection: Connection, run_id: str) -> bool:
    """End a run that nobody works on, if nothing is in doubt; else let a worker settle its doubts first."""
    who, why = _asked_by(runtime, connection, run_id)
    if runtime.ledger.doubts(connection, run_id):
        # Whatever else a person was asked does not matter any more; whether an effect happened does.
        runtime.inbox.close_all(connection, run_id, who, CANCEL, why, but=Question.UNKNOWN)
        runtime.runs.requeue(connection, runtime.runs.table.c.run_id == run_id)
        return False
    runtime.inbox.close_all(connection, run_id, who, CANCEL, why)
    runtime.decisions.end(connection, run_id, RunStatus.CANCELLED, _error(who, why))
    return True


def expire(runtime: Runtime, connection: Connection, run_id: str) -> None:
    """End a run that nobody began before it expired."""
    if runtime.decisions.expire_unbegun(connection, run_id):
        runtime.inbox.audit(connection, run_id, None, "expires=", CANCEL, EXPIRED)


def end_cancelled(runtime: Runtime, connection: Connection, attempt: Attempt, *, advance: bool) -> None:
    """End the run of the attempt that owns it; ``advance`` says whether its step's checkpoint counts."""
    who, why = _asked_by(runtime, connection, attempt.run_id)
    runtime.inbox.close_all(connection, attempt.run_id, who, CANCEL, why)
    runtime.runs.finish(connection, attempt, RunStatus.CANCELLED, error=_error(who, why), advance=advance)


def end_or_settle(runtime: Runtime, connection: Connection, attempt: Attempt) -> RunStatus:
    """End the run of an attempt that stops in its middle; with a doubt in it, the next claim settles that first."""
    if runtime.ledger.doubts(connection, attempt.run_id):
        runtime.runs.give_back(connection, attempt)
        return RunStatus.QUEUED
    end_cancelled(runtime, connection, attempt, advance=False)
    return RunStatus.CANCELLED


def _asked_by(runtime: Runtime, connection: Connection, run_id: str) -> tuple[str, str]:
    trail = runtime.inbox.audit_trail(connection, run_id)
    entry = next(entry for entry in reversed(trail) if entry.what == CANCEL)
    return entry.who, entry.why


def _error(who: str, why: str) -> dict[str, Any]:
    return {"type": "cancelled", "text": f"cancelled by {who}: {why}", "traceback": ""}
