"""What others than its attempt decide about a run: persons, the sweeper, an outcome that came in late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import update

from agent_tasks.runs import NO_LEASE
from agent_tasks.states import FINISHED, RunRequest, RunStatus
from checkpoint import codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from agent_tasks.lines import NewLine
    from agent_tasks.runs import Runs

#: Why a run was cancelled that nobody began in time; Celery's word for it.
EXPIRED = "expired"


class Decisions:
    """Statements on runs that no attempt makes, so that each says where the run must stand; the transaction is the caller's."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.table, self.clock = runs, runs.table, runs.clock

    def wake(self, connection: Connection, run_id: str, *, was: Sequence[RunStatus]) -> bool:
        """Make a waiting run claimable, and tell an attempt that is about to wait to look again.

        Returns:
            True if the run is queued now because of this.
        """
        c = self.table.c
        connection.execute(update(self.table).where(c.run_id == run_id).values(wakeups=c.wakeups + 1))
        return self.runs.requeue(connection, c.run_id == run_id, c.status.in_([str(status) for status in was]))

    def park(self, connection: Connection, run_id: str, reason: str) -> None:
        """Let a queued run wait for a person."""
        c = self.table.c
        connection.execute(
            update(self.table)
            .where(c.run_id == run_id, c.status == RunStatus.QUEUED)
            .values(status=RunStatus.NEEDS_ATTENTION, due_at=None, waiting_for=reason, updated_at=self.clock.now())
        )

    def resume(self, connection: Connection, run_id: str, *, was: Sequence[RunStatus]) -> bool:
        """Requeue a run that a person answered, with its crashes forgiven; True if it is queued now because of this."""
        c = self.table.c
        connection.execute(update(self.table).where(c.run_id == run_id).values(crashes=0))
        return self.wake(connection, run_id, was=was)

    def allow_steps(self, connection: Connection, run_id: str, steps: int) -> None:
        """Let a run take so many steps in all."""
        connection.execute(update(self.table).where(self.table.c.run_id == run_id).values(steps_allowed=steps))

    def resume_on(self, connection: Connection, run_id: str, line: NewLine) -> None:
        """Queue a run, which nobody works on and the caller has locked, on a new line; a person's word forgives crashes."""
        c = self.table.c
        connection.execute(
            update(self.table)
            .where(c.run_id == run_id, c.status != RunStatus.RUNNING)
            .values(
                **NO_LEASE,
                **line.columns(),
                status=RunStatus.QUEUED,
                crashes=0,
                wakeups=c.wakeups + 1,
                request=None,
                output=None,
                error=None,
                waiting_for=None,
                due_at=self.runs.ring_again(),
                updated_at=self.clock.now(),
                finished_at=None,
            )
        )

    def abort(self, connection: Connection, run_id: str, reason: str) -> bool:
        """End a run that waits for a person as failed."""
        error = {"type": "aborted", "text": reason, "traceback": ""}
        return self.end(connection, run_id, RunStatus.FAILED, error, was=(RunStatus.NEEDS_ATTENTION,))

    def ask(self, connection: Connection, run_id: str, request: RunRequest) -> None:
        """Write a person's request, and tell an attempt that is about to wait to look again."""
        c = self.table.c
        connection.execute(update(self.table).where(c.run_id == run_id).values(request=request, wakeups=c.wakeups + 1))

    def end(
        self,
        connection: Connection,
        run_id: str,
        status: RunStatus,
        error: dict[str, Any],
        *,
        was: Sequence[RunStatus] = (RunStatus.QUEUED, RunStatus.WAITING, RunStatus.NEEDS_ATTENTION),
    ) -> bool:
        """End a run that nobody works on; False if it does not stand where it ``was`` said to."""
        c = self.table.c
        statement = update(self.table).where(c.run_id == run_id, c.status.in_([str(status) for status in was]))
        values = {
            **NO_LEASE,
            "status": status,
            "error": codec.dumps(error),
            "due_at": self.runs.result_due(),
            "waiting_for": None,
            "next_step": None,
            "updated_at": self.clock.now(),
            "finished_at": self.clock.now(),
        }
        return connection.execute(statement.values(**values)).rowcount == 1

    def expire_unbegun(self, connection: Connection, run_id: str) -> bool:
        """End a run as cancelled that nobody ever began, and that has expired; one that was resumed was begun."""
        row = self.runs.find(connection, run_id, lock=True)
        if row is None or row["fence"] or row["expires_at"] is None or row["expires_at"] > row["now"]:
            return False
        error = {"type": "cancelled", "text": EXPIRED, "traceback": ""}
        return self.end(connection, run_id, RunStatus.CANCELLED, error, was=(RunStatus.QUEUED,))

    def result_stored(self, connection: Connection, run_id: str, *, finished_at: int) -> None:
        """Let a run that finished then rest: Celery knows how it ended.

        A run that was resumed may have another end by now, perhaps under the same fence; that one is told yet (I9).
        """
        c = self.table.c
        ended = c.status.in_([str(status) for status in FINISHED])
        this_end = update(self.table).where(c.run_id == run_id, c.finished_at == finished_at, ended)
        connection.execute(this_end.values(due_at=None))
