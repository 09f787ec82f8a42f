"""What an attempt writes in the common case, each in one statement that is a transaction of its own, on PostgreSQL.

Each does the whole of it or changes nothing. Where one found nothing to do, nobody knows why from that: the transaction
of several statements, in `runs`, `ledger` and `ending`, is carried out then, and decides. So an attempt that lost its
lease, a cancel, news, an answer that was lost and anything out of the ordinary are that one's, and so is every other
database.

PostgreSQL gives a statement one snapshot, and lets it wait for a row's lock; of that row it then sees the newest version,
and of all others still those of the snapshot. So none of these decides by a row that it read beside the one it may have
waited for: each says below what it decides by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, LargeBinary, String, bindparam, select, update
from sqlalchemy.dialects import postgresql

from agent_tasks.runs import NO_LEASE, OWNER, advanced, claiming, due_for_result, ended, fence_of, gone_on, moment
from agent_tasks.single import Single
from agent_tasks.states import OperationStatus, RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import CTE, BindParameter, ColumnElement, Engine

    from agent_tasks.clock import Clock
    from agent_tasks.schema import Tables
    from checkpoint.sql import SqlStore

#: Statements are built once in a process for each kind of tables and clock.
_built: dict[tuple[str, type[Clock]], Folded] = {}


class Folded:
    """The statements of one table prefix.

    Args:
        tables: of the ledger.
        store: of its checkpoints.
        clock: of whose kind the clocks are that give the moments.
        engine: of PostgreSQL.

    Attributes:
        claim: see :meth:`_claim`, and so on.
        of_operations: the names of the columns of an operation.
    """

    def __init__(self, tables: Tables, store: SqlStore, clock: Clock, engine: Engine) -> None:
        self._runs, self._operations, self._store = tables.runs, tables.operations, store
        self._clock: Any = type(clock)
        self.of_operations = tuple(column.name for column in tables.operations.c)
        go_seq = bindparam("go_seq", type_=Integer())
        self.claim, self.intent, self.record, self.outcome, self.advance, self.go_on, self.catch_up, self.finish = (
            Single(statement, engine)
            for statement in (
                self._claim(),
                self._intent(),
                self._record(),
                self._outcome(),
                self._step(
                    {
                        **NO_LEASE,
                        **advanced(OWNER.seq, _text("go_step"), _text("go_queue"), self._moment("ring_again")),
                    }
                ),
                self._step(gone_on(OWNER.seq, _text("go_step"), _text("go_queue"), self._moment("lease_end"))),
                self._step(
                    gone_on(go_seq, _text("go_step"), _text("go_queue"), self._moment("lease_end")), several=True
                ),
                self._step(
                    {
                        **NO_LEASE,
                        "status": RunStatus.SUCCEEDED,
                        "seq": OWNER.seq,
                        "output": bindparam("go_output", type_=LargeBinary()),
                        "error": None,
                        **ended(due_for_result(self._runs, self._moment("ring_again")), self._moment("now")),
                    }
                ),
            )
        )

    @classmethod
    def of(cls, tables: Tables, store: SqlStore, clock: Clock, engine: Engine) -> Folded | None:
        """Return the statements for these, or None for a database that has none."""
        if engine.dialect.name != "postgresql":
            return None
        key = tables.runs.name, type(clock)
        if key not in _built:
            _built[key] = cls(tables, store, clock, engine)
        return _built[key]

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claim(self) -> Any:
        """Take the lease, and bring the head of the run along.

        Whether it is taken is decided by the run's row alone. The head was read beside it and may be an older one, if the
        row was waited for: so whoever uses it compares its line and seq with those of the claimed row. Of one line and seq
        there is one checkpoint (I12).
        """
        claimed = claiming(self._runs, self._clock).cte("claimed")
        head = self._store.heads_query().subquery("head")
        beside = claimed.outerjoin(head, head.c.head_run_id == claimed.c.run_id)
        return select(*claimed.c, *head.c).select_from(beside)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _intent(self) -> Any:
        """Insert an operation as executing.

        Decided by the run's row, which is locked, so that its newest version is compared: the fence (I2), no request, and
        the wakeups that the attempt saw (I13). In the end the operation's unique key decides, which waits for whoever
        inserts the same one.
        """
        run = self._owned(self._saw(), self._runs.c.request.is_(None))
        return self._insert(
            run,
            started_at=self._moment("now"),
            first_started_at=self._moment("now"),
            horizon_at=self._moment("horizon"),
        )

    def _record(self) -> Any:
        """Insert an operation that had no intent with its outcome; decided as by :meth:`_intent`, whatever came in."""
        run = self._owned(self._runs.c.request.is_(None))
        now = {name: self._moment("now") for name in ("started_at", "first_started_at", "finished_at")}
        return self._insert(run, **now)

    def _insert(self, run: CTE, **moments: ColumnElement[int]) -> Any:
        table = self._operations
        values: dict[str, Any] = {column.name: bindparam(f"new_{column.name}", type_=column.type) for column in table.c}
        values.update(moments, key_until=self._moment("key_until"))
        rows = select(*values.values()).select_from(run)
        statement = postgresql.insert(table).from_select(list(values), rows).on_conflict_do_nothing()
        returned = [table.c[name] for name in (*moments, "key_until")]
        return statement.returning(*returned)

    def _outcome(self) -> Any:
        """Settle an operation as succeeded.

        Decided by the run's locked row (I2), and by the operation's own: an UPDATE looks at the newest version of the row
        that it changes, so that one which was settled while the run's row was waited for is left alone (I14). One that
        came to stand at this request only since the snapshot is missed, and left to the slower way.
        """
        run = self._owned()
        table = self._operations
        return (
            update(table)
            .where(
                table.c.operation_id == bindparam("old_operation_id"),
                table.c.attempts == bindparam("old_attempts"),
                table.c.status == OperationStatus.EXECUTING,
                table.c.token == OWNER.token,
                table.c.run_id == run.c.run_id,
            )
            .values(
                status=OperationStatus.SUCCEEDED,
                result=bindparam("new_result", type_=LargeBinary()),
                unsettled=0,
                ended=OWNER.fence,
                finished_at=self._moment("now"),
            )
            .returning(run.c.request)
        )

    # -- the commit ----------------------------------------------------------------------------------------------------

    def _step(self, values: Mapping[str, Any], *, several: bool = False) -> Any:
        """Save the checkpoint, or several, move the run on and release the lease, or renew it (I7).

        The run's row is locked first, and its newest version compared: the fence (I2), no request, the wakeups that the
        attempt saw (I13). Only from that row is the head moved, by compare-and-set on all of it; only from a head that
        moved are the checkpoint and its messages inserted and the run's row changed. That row was locked under the whole
        fence, and nobody else can change it before this ends: so it is changed if, and only if, the head moved.
        """
        table = self._runs
        owned = self._owned(self._saw(), table.c.request.is_(None), share=False)
        moved, *rows = self._store.append_parts(owned, several=several)
        left = (
            update(table)
            .where(*fence_of(table, OWNER), table.c.run_id == moved.c.run_id)
            .values({"updated_at": self._moment("now"), **values})
            .returning(*(table.c[name] for name in _RING))
            .cte("gone_on")
        )
        return select(*left.c).select_from(left).add_cte(*rows)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _owned(self, *more: ColumnElement[bool], share: bool = True) -> CTE:
        """Return the run's row, locked, if it is the attempt's (I2); see ``Runs.owned``."""
        c = self._runs.c
        query = select(c.run_id, c.request).where(*fence_of(self._runs, OWNER), *more)
        return query.with_for_update(read=share, key_share=not share).cte("owned")

    def _saw(self) -> ColumnElement[bool]:
        return self._runs.c.wakeups == bindparam("own_wakeups", type_=Integer())

    def _moment(self, name: str) -> ColumnElement[int]:
        return moment(self._clock, name)


#: What a doorbell is made of.
_RING = ("run_id", "seq", "agent", "next_step", "queue", "priority", "task", "message")


def _text(name: str) -> BindParameter[str]:
    return bindparam(name, type_=String())
