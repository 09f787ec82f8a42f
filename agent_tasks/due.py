"""The sweeper's questions: which runs are due, and the moves that keep two sweepers from answering both (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select, update

from agent_tasks.schema import PROTOCOL
from agent_tasks.states import FINISHED, RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Select

    from agent_tasks.runs import Runs


#: Runs that are rung for when their due_at has passed.
_RUNG = [str(status) for status in (RunStatus.QUEUED, *sorted(FINISHED))]


class Due:
    """Statements on the runs whose time has come. The connection's transaction is the caller's."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.table, self.clock = runs, runs.table, runs.clock

    def runs_of(self, connection: Connection, status: RunStatus, limit: int) -> Sequence[Any]:
        """Return the ids of the runs of one status whose time has come, as rows."""
        c = self.table.c
        return self._first(connection, select(c.run_id).where(c.status == status), limit)

    def queues(self, connection: Connection) -> Sequence[str]:
        """Return the queues in which a queued run, or the end of one, has not been heard of for too long."""
        c = self.table.c
        rows = connection.execute(select(c.queue).distinct().where(c.due_at <= self.clock.now(), c.status.in_(_RUNG)))
        return [str(queue) for (queue,) in rows]

    def in_queue(self, connection: Connection, queue: str, limit: int) -> Sequence[Any]:
        """Return the runs of one queue to ring for, in order: queued ones, and ended ones that Celery has not heard of."""
        c = self.table.c
        columns = (
            c.run_id,
            c.agent,
            c.seq,
            c.next_step,
            c.queue,
            c.due_at,
            c.updated_at,
            c.priority,
            c.waiting_for,
            c.status,
            c.task,
            c.message,
            self.clock.now().label("now"),
        )
        return self._first(connection, select(*columns).where(c.status.in_(_RUNG), c.queue == queue), limit)

    def _first(self, connection: Connection, runs: Select[Any], limit: int) -> Sequence[Any]:
        """Return those of the runs whose time has come: most urgent first, then longest due."""
        c = self.table.c
        due = runs.where(c.due_at <= self.clock.now(), c.protocol <= PROTOCOL)
        return connection.execute(due.order_by(c.priority.desc(), c.due_at).limit(limit)).all()

    def rung_in_queue(self, connection: Connection, queue: str, limit: int) -> int:
        """Return how many runs of a queue were rung for lately and are not heard of yet; ``limit`` at the most."""
        c = self.table.c
        lately = select(c.run_id).where(c.due_at > self.clock.now(), c.status.in_(_RUNG), c.queue == queue)
        return int(connection.execute(select(func.count()).select_from(lately.limit(limit).subquery())).scalar_one())

    def wake(self, connection: Connection, run_id: str) -> bool:
        """Queue a waiting run whose time has come."""
        c = self.table.c
        due = and_(c.run_id == run_id, c.status == RunStatus.WAITING, c.due_at <= self.clock.now())
        return self.runs.requeue(connection, due, self.runs.unheld(connection, due))

    def rung(
        self,
        connection: Connection,
        run_id: str,
        seen_due_at: int,
        again_in_seconds: float,
        waiting_for: str | None = None,
        *,
        status: RunStatus = RunStatus.QUEUED,
    ) -> bool:
        """Move a passed ``due_at`` before ringing; False if somebody else did, who then rings."""
        c = self.table.c
        due = and_(c.run_id == run_id, c.status == status, c.due_at == seen_due_at, c.due_at <= self.clock.now())
        statement = update(self.table).where(due, self.runs.unheld(connection, due))
        return (
            connection.execute(
                statement.values(due_at=self.clock.in_(again_in_seconds), waiting_for=waiting_for)
            ).rowcount
            == 1
        )
