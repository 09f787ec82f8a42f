"""What people look for in a ledger: the newest runs, and ids by their beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from agent_tasks.schema import is_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column, Connection, RowMapping

    from agent_tasks.clock import Clock
    from agent_tasks.schema import Tables
    from agent_tasks.states import RunStatus

#: Ids that a beginning is completed to before it is called ambiguous.
MAX_COMPLETIONS = 4


#: A beginning stands for an id from so many characters on, as with Git's short hashes, and without what every id begins with:
#: a slip of the finger must not answer a question, and what is unique today is not tomorrow. A whole id may be shorter.
MIN_BEGINNING = 4


class Listing:
    """Reading statements across runs; the connection's transaction is the caller's."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.clock, self.runs_table, self.inbox_table = clock, tables.runs, tables.inbox

    def runs(
        self, connection: Connection, *, status: RunStatus | None = None, agent: str | None = None, limit: int
    ) -> Sequence[RowMapping]:
        """Return the newest runs, newest first; all of them, or those of a status or an agent."""
        c = self.runs_table.c
        statement = (
            select(self.runs_table, self.clock.now().label("now")).order_by(c.created_at.desc(), c.run_id).limit(limit)
        )
        if status is not None:
            statement = statement.where(c.status == status)
        if agent is not None and not is_id(agent):
            return []
        if agent is not None:
            statement = statement.where(c.agent == agent)
        return connection.execute(statement).mappings().all()

    def run_ids(self, connection: Connection, beginning: str) -> list[str]:
        """Return the run ids that begin so, or the one that is so."""
        return self._ids(connection, self.runs_table.c.run_id, beginning)

    def item_ids(self, connection: Connection, beginning: str) -> list[str]:
        """Return the ids of inbox items that begin so, or the one that is so; answered ones too, which say who did."""
        return self._ids(connection, self.inbox_table.c.item_id, beginning)

    def _ids(self, connection: Connection, column: Column[str], beginning: str) -> list[str]:
        if not is_id(beginning):
            return []
        if connection.execute(select(column).where(column == beginning)).first() is not None:
            return [beginning]
        # Not LIKE: it ignores case on SQLite, and ids are chosen by callers.
        begins = func.substr(column, 1, len(beginning)) == beginning
        statement = select(column).where(begins).order_by(column).limit(MAX_COMPLETIONS)
        return [str(identifier) for (identifier,) in connection.execute(statement)]
