"""The sweeper: finds what is due, lost or stuck, and rings for it (I9)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agent_tasks.cleaning import clean_some
from agent_tasks.clock import MICROSECONDS
from agent_tasks.doorbell import Ring
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.forks import let_forks_by
from agent_tasks.runs import is_cancelled
from agent_tasks.states import Question, Recovery, RunStatus
from agent_tasks.suspensions import Ask, Asked, log_attention
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.retention import Place
    from agent_tasks.runtime import Runtime

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Expired leases and due waits that one sweep handles; the next one goes on.
BATCH = 200

#: A queued run that nobody has claimed for this long, in seconds, says what it waits for.
UNHEARD_SECONDS = 60

#: Pause, in seconds, between two looks for runs to delete, once all of them were looked at.
CLEANUP_PAUSE_SECONDS = 300.0

#: Longest pause, in seconds, before a doorbell is rung again where the transport cannot count its messages.
LONGEST_PAUSE_SECONDS = 600.0

#: Checkpoints that a person is shown to choose from, the newest first.
CHECKPOINTS_SHOWN = 20


@dataclass
class Swept:
    """What one sweep did."""

    taken_over: int = 0
    woken: int = 0
    parked: int = 0
    rung: int = 0
    deleted: int = 0


class Sweeper:
    """Turns expired leases and due waits into queued runs, and rings for queued runs that nobody hears.

    Only the sweeper takes a lease over, and only after its process had unbroken contact with the database for a full
    lease: after an outage the owners are given the time to renew.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._contact_since: float | None = None
        self._clean_at = runtime.clock.local()
        self._clean_behind: Place | None = None  # what cannot be deleted is not looked at again before all others were

    def sweep(self) -> Swept:
        """Look once.

        Raises:
            LedgerUnavailable: the database did not answer; the contact counts anew from the next answer on.
        """
        swept = Swept()
        try:
            expired = self._due(RunStatus.RUNNING)
            if self._may_take_over():
                self._each(expired, partial(self._take_over, swept=swept))
            self._each(self._due(RunStatus.WAITING), partial(self._wake, swept=swept))
            self._ring_queued(swept)
        except Exception:
            self._contact_since = None
            raise
        self._delete_old(swept)
        return swept

    def _may_take_over(self) -> bool:
        seconds = float("-inf") if self._contact_since is None else self.runtime.clock.local() - self._contact_since
        return seconds >= self.runtime.settings.lease_seconds

    def _read(self, work: Callable[[Connection], T]) -> T:
        runtime = self.runtime
        asked_at = runtime.clock.local()
        found = runtime.boundary.read(runtime.engine, work)
        answered_at = runtime.clock.local()
        # A database that kept this process waiting kept the owners waiting, who renew every third of a lease.
        if self._contact_since is None or answered_at - asked_at >= runtime.settings.lease_seconds / 3:
            self._contact_since = answered_at
        return found

    def _due(self, status: RunStatus) -> list[Any]:
        return list(self._read(lambda connection: self.runtime.due.runs_of(connection, status, BATCH)))

    def _each(self, rows: Iterable[Any], work: Callable[[Any], None]) -> None:
        """Work on each row; one that fails does not keep the others, which it would do at every sweep."""
        for row in rows:
            let_forks_by()
            try:
                work(row)
            except LedgerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this row
                logger.warning(
                    "run %s: the sweeper failed (%s: %s)",
                    row.run_id,
                    type(error).__name__,
                    error,
                    extra={"action": "sweep_failed", "run_id": row.run_id},
                )

    def _take_over(self, row: Any, swept: Swept) -> None:
        runtime = self.runtime

        def work(connection: Connection) -> tuple[RowMapping | None, Ask | None]:
            before = runtime.runs.expire(connection, row.run_id, partial(self._lives_until, connection))
            return before, None if before is None else _park_if_it_crashes(runtime, connection, before)

        before, parked = runtime.boundary.commit("take over", runtime.engine, work)
        if before is None:
            return
        swept.taken_over += 1
        logger.warning(
            "run %s: the lease of %s ran out at fence %s; taken over",
            row.run_id,
            before["lease_owner"],
            before["fence"],
            extra={"action": "lease_taken_over", "run_id": row.run_id},
        )
        if parked is not None:
            log_attention(row.run_id, parked, is_kept=runtime.is_kept)
        runtime.ring(row.run_id)

    def _lives_until(self, connection: Connection, run: RowMapping) -> int:
        """Say until when a run's owner is known to live although nothing renewed its lease, as microseconds since 1970.

        What it writes of its calls shows that it lives as well as a renewal does, and calls that are made at the same time can
        hold the run's row one after another, so that no renewal gets it. It counts for two thirds of a lease, which is what a
        renewal has left before the next one: no dead owner keeps its run for longer than before. Nor does one whose step is
        past its time limit, which no heartbeat renews either.
        """
        settings, wrote_at = self.runtime.settings, self.runtime.ledger.owner_wrote_at(connection, run)
        lives_until = wrote_at and wrote_at + int(settings.lease_seconds * 2 / 3 * MICROSECONDS)
        return min(lives_until, int(run["updated_at"] + settings.step_timeout_seconds * MICROSECONDS))

    def _wake(self, row: Any, swept: Swept) -> None:
        runtime = self.runtime
        if runtime.boundary.commit("wake", runtime.engine, partial(runtime.due.wake, run_id=row.run_id)):
            swept.woken += 1
            runtime.ring(row.run_id)

    def _ring_queued(self, swept: Swept) -> None:
        runtime = self.runtime
        for queue in self._read(runtime.due.queues):
            depth, limit = runtime.bell.depth(queue), runtime.settings.queue_depth
            # A transport that cannot count holds no more than was rung for lately and not heard of since.
            unheard = partial(runtime.due.rung_in_queue, queue=queue, limit=limit)
            room = limit - (depth if depth is not None else self._read(unheard))
            if room > 0:
                due = self._read(partial(runtime.due.in_queue, queue=queue, limit=room))
                self._each(due, partial(self._ring, swept=swept, counted=depth is not None))

    def _ring(self, row: Any, swept: Swept, *, counted: bool) -> None:
        runtime = self.runtime
        move = partial(
            runtime.due.rung,
            run_id=row.run_id,
            seen_due_at=row.due_at,
            again_in_seconds=self._ring_again_seconds(row, counted=counted),
            waiting_for=self._unheard(row),
            status=RunStatus(row.status),
        )
        if runtime.boundary.commit("ring", runtime.engine, move):
            swept.rung += 1
            runtime.bell.ring(Ring.of(row._mapping))

    def _delete_old(self, swept: Swept) -> None:
        now = self.runtime.clock.local()
        if now < self._clean_at:
            return
        self._clean_at = now + CLEANUP_PAUSE_SECONDS  # also after a failure: what is due comes first
        batch = clean_some(self.runtime, self._clean_behind)
        swept.deleted, self._clean_behind = batch.deleted, batch.last
        if batch.last is not None:
            self._clean_at = now

    def _unheard(self, row: Any) -> str | None:
        """Say so when a run's doorbells find nobody: no worker may listen to its queue, or know its step (I9)."""
        if row.status != RunStatus.QUEUED or (row.now - row.updated_at) / 1e6 < UNHEARD_SECONDS:
            return None
        waiting_for = (
            f"a worker that listens to queue {row.queue!r} and knows {row.task or f'step {row.agent}.{row.next_step}'}"
        )
        if row.waiting_for != waiting_for:
            logger.warning(
                "run %s: nobody has answered for %d s; it waits for %s",
                row.run_id,
                UNHEARD_SECONDS,
                waiting_for,
                extra={"action": "run_unheard", "run_id": row.run_id},
            )
        return waiting_for

    def _ring_again_seconds(self, row: Any, *, counted: bool) -> float:
        """A queue that can be counted is kept full; for one that cannot, each pause is as long as the whole wait so far."""
        shortest = self.runtime.settings.ring_again_seconds
        if counted and row.status == RunStatus.QUEUED:  # a result that cannot be stored is no reason to fill a queue
            return shortest
        return float(min(max(shortest, (row.now - row.updated_at) / 1e6), LONGEST_PAUSE_SECONDS))


def end_lease(runtime: Runtime, run_id: str, token: str, *, wait: bool = True) -> bool:
    """End the lease of an attempt that is known to be dead, and ring for its run.

    Args:
        runtime: of this process.
        run_id: of the run.
        token: of the lease.
        wait: for the run's row, where somebody else holds it.

    Returns:
        False if the lease had ended already; without ``wait`` also if somebody else holds the run's row.
    """

    def work(connection: Connection) -> tuple[bool, Ask | None]:
        before = runtime.runs.release_dead(connection, run_id, token, wait=wait)
        return before is not None, None if before is None else _park_if_it_crashes(runtime, connection, before)

    ended, parked = runtime.boundary.commit("end lease", runtime.engine, work)
    if parked is not None:
        log_attention(run_id, parked, is_kept=runtime.is_kept)
    if ended:
        runtime.ring(run_id)
    return ended


def _park_if_it_crashes(runtime: Runtime, connection: Connection, before: RowMapping) -> Ask | None:
    """A step that loses its worker again and again is parked, not looped: return what a person is asked then.

    Of a run that is recovered by hand, the first one parks it.
    """
    crashes = before["crashes"] + 1
    by_hand = before["recovery"] == Recovery.MANUAL
    if crashes < runtime.settings.max_crashes and not by_hand:
        return None
    run_id = str(before["run_id"])
    if is_cancelled(before) and not runtime.ledger.doubts(connection, run_id):
        return None  # the next claim ends it, and runs no body
    reason = f"step {before['next_step']} lost its worker" + (f" {crashes} times" if crashes > 1 or not by_hand else "")
    detail = {"step": before["next_step"], "seq": before["seq"] + 1, "crashes": crashes}
    if by_hand:
        detail["checkpoints"] = _to_choose_from(runtime, connection, before)
    asked = Asked(Question.CRASHES, run_id, attempts=int(before["fence"]), detail=detail)
    runtime.decisions.park(connection, run_id, reason)
    runtime.inbox.open(connection, run_id, asked)
    return Ask(reason, (asked,))


def _to_choose_from(runtime: Runtime, connection: Connection, run: RowMapping) -> list[dict[str, Any]]:
    """Return the newest checkpoints that ``run.resume(from_seq=…)`` can go on from; step n follows checkpoint n - 1."""
    try:
        found = runtime.store.ancestors(str(run["run_id"]), int(run["seq"]), CHECKPOINTS_SHOWN, connection=connection)
    except CheckpointError:  # its history cannot be read; the question is asked all the same
        return []
    return [
        {"seq": made.seq, "line": made.line, "step": made.step, "created_at": made.created_at.isoformat()}
        for made in found
    ]
