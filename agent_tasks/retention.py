"""The end of old runs: statements that find finished runs nobody needs any more, and delete one as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, exists, func, or_, select

from agent_tasks.states import FINISHED, IN_DOUBT

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from agent_tasks.clock import Clock
    from agent_tasks.schema import Tables
    from checkpoint.sql import SqlStore


class Retention:
    """Statements on runs that ended long ago; the connection's transaction is the caller's."""

    def __init__(self, tables: Tables, clock: Clock, store: SqlStore) -> None:
        self.tables, self.clock, self.store = tables, clock, store

    def count(self, connection: Connection, older_than_seconds: float) -> int:
        """Return how many runs may be deleted."""
        where = self._may_be_deleted(older_than_seconds)
        return int(connection.execute(select(func.count()).select_from(self.tables.runs).where(*where)).scalar_one())

    def find(self, connection: Connection, older_than_seconds: float, limit: int) -> list[str]:
        """Return the ids of runs that may be deleted, those that ended first before others."""
        c = self.tables.runs.c
        statement = select(c.run_id).where(*self._may_be_deleted(older_than_seconds))
        return [str(run_id) for (run_id,) in connection.execute(statement.order_by(c.finished_at).limit(limit))]

    def delete(self, connection: Connection, run_id: str, older_than_seconds: float) -> bool:
        """Delete a run and everything of it; False if it may not be deleted, or somebody holds its row."""
        c = self.tables.runs.c
        lock = select(c.run_id).where(c.run_id == run_id).with_for_update(skip_locked=True)
        if connection.execute(lock).one_or_none() is None:
            return False
        # A second statement, which sees what was written until the row was locked: a late outcome asks questions, too.
        may_be = select(c.run_id).where(c.run_id == run_id, *self._may_be_deleted(older_than_seconds))
        if connection.execute(may_be).one_or_none() is None:
            return False
        for table in (self.tables.operations, self.tables.inbox, self.tables.audit):
            connection.execute(delete(table).where(table.c.run_id == run_id))
        self.store.delete(run_id, connection=connection)
        connection.execute(delete(self.tables.runs).where(c.run_id == run_id))
        return True

    def _may_be_deleted(self, older_than_seconds: float) -> tuple[ColumnElement[bool], ...]:
        c, o, i = self.tables.runs.c, self.tables.operations.c, self.tables.inbox.c
        in_doubt = o.status.in_([str(status) for status in IN_DOUBT])
        return (
            c.finished_at <= self.clock.in_(-older_than_seconds),
            c.status.in_([str(status) for status in FINISHED]),
            c.due_at.is_(None),  # else Celery has still to be told its result
            ~exists().where(o.run_id == c.run_id, or_(in_doubt, o.key_until > self.clock.now())),
            ~exists().where(i.run_id == c.run_id, i.closed_at.is_(None)),
        )
