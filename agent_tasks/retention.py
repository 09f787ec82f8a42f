"""The end of old runs: statements that find finished runs nobody needs any more, and delete one as a whole."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import and_, case, delete, exists, func, or_, select

from agent_tasks.states import FINISHED, IN_DOUBT

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from agent_tasks.clock import Clock
    from agent_tasks.schema import Tables
    from checkpoint.sql import SqlStore


class Place(NamedTuple):
    """Where a run stands in the order in which they are deleted."""

    finished_at: int
    run_id: str


class Deletion(Enum):
    """What became of a run that was to be deleted."""

    DONE = auto()
    HELD = auto()  # somebody holds its row, and may be deleting it
    NOT_DUE = auto()  # it is gone, or somebody needs it again


class Retention:
    """Statements on runs that ended long ago; the connection's transaction is the caller's."""

    def __init__(self, tables: Tables, clock: Clock, store: SqlStore) -> None:
        self.tables, self.clock, self.store = tables, clock, store

    def count(self, connection: Connection, older_than_seconds: float) -> int:
        """Return how many runs may be deleted."""
        where = self._may_be_deleted(older_than_seconds)
        return int(connection.execute(select(func.count()).select_from(self.tables.runs).where(*where)).scalar_one())

    def kept(self, connection: Connection, older_than_seconds: float) -> list[tuple[int, str]]:
        """Return how many runs that ended so long ago must stay, and why: each counts for the first reason that it has."""
        why = case(*((condition, reason) for reason, condition in self._needed().items()), else_="")
        ended = select(why.label("why")).where(*self._ended(older_than_seconds)).subquery()
        counted = select(func.count(), ended.c.why).where(ended.c.why != "").group_by(ended.c.why)
        found = {reason: int(count) for count, reason in connection.execute(counted)}
        return [(found[reason], reason) for reason in self._needed() if reason in found]

    def find(
        self, connection: Connection, older_than_seconds: float, limit: int, after: Place | None = None
    ) -> list[Place]:
        """Return runs that may be deleted, those that ended first before others; only those behind ``after`` if given."""
        c = self.tables.runs.c
        statement = select(c.finished_at, c.run_id).where(*self._may_be_deleted(older_than_seconds))
        if after is not None:
            behind = or_(c.finished_at > after.finished_at, c.run_id > after.run_id)
            statement = statement.where(c.finished_at >= after.finished_at, behind)  # in words that the index knows
        found = connection.execute(statement.order_by(c.finished_at, c.run_id).limit(limit))
        return [Place(int(finished_at), str(run_id)) for finished_at, run_id in found]

    def delete(self, connection: Connection, run_id: str, older_than_seconds: float) -> Deletion:
        """Delete a run and everything of it, unless somebody holds its row or needs it."""
        c = self.tables.runs.c
        this = select(c.agent).where(c.run_id == run_id)
        agent = connection.execute(this.with_for_update(skip_locked=True)).scalar_one_or_none()
        if agent is None:
            return Deletion.NOT_DUE if connection.execute(this).one_or_none() is None else Deletion.HELD
        # A second statement, which sees what was written until the row was locked: a late outcome asks questions, too.
        may_be = select(c.run_id).where(c.run_id == run_id, *self._may_be_deleted(older_than_seconds, agent))
        if connection.execute(may_be).one_or_none() is None:
            return Deletion.NOT_DUE
        for table in (self.tables.operations, self.tables.inbox, self.tables.audit):
            connection.execute(delete(table).where(table.c.run_id == run_id))
        self.store.delete(run_id, connection=connection)
        connection.execute(delete(self.tables.runs).where(c.run_id == run_id))
        return Deletion.DONE

    def _may_be_deleted(self, older_than_seconds: float, agent: str | None = None) -> tuple[ColumnElement[bool], ...]:
        return (*self._ended(older_than_seconds), *(~needed for needed in self._needed(agent).values()))

    def _ended(self, older_than_seconds: float) -> tuple[ColumnElement[bool], ...]:
        c = self.tables.runs.c
        return (
            c.finished_at <= self.clock.in_(-older_than_seconds),
            c.status.in_([str(status) for status in FINISHED]),
        )

    def _needed(self, agent: str | None = None) -> dict[str, ColumnElement[bool]]:
        """Return why somebody may need a run that has ended, in words, and which runs that are."""
        c, o, i = self.tables.runs.c, self.tables.operations.c, self.tables.inbox.c
        in_doubt = o.status.in_([str(status) for status in IN_DOUBT])
        f = self.tables.runs.alias("followers").c
        unfinished = f.status.not_in([str(status) for status in FINISHED])
        followed = select(f.input_digest).where(f.dedupe_key.is_(None), f.task.is_not(None), unfinished)
        if agent is not None:
            followed = followed.where(f.agent == agent)  # by the index of the dedupe keys
        return {
            "an operation is in doubt": exists().where(o.run_id == c.run_id, in_doubt),
            "a question is open": exists().where(i.run_id == c.run_id, i.closed_at.is_(None)),
            "Celery has still to be told the result": c.due_at.is_not(None),
            "a vendor honours a key of theirs": exists().where(o.run_id == c.run_id, o.key_until > self.clock.now()),
            # It ends as this run did, which it asks for when its own time comes. It has the same input, and no dedupe key; so
            # may others have, which only keep this run a while longer. The followers do not depend on this row, so that they
            # are looked up once.
            "a later call of the same job waits for its end": and_(
                c.dedupe_key.is_not(None), c.task.is_not(None), c.input_digest.in_(followed)
            ),
        }
