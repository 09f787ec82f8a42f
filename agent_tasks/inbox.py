"""The inbox: questions for a person, and what his answers do. Each answer is audited with who and why (I12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, func, select, update

from agent_tasks.errors import AnswerNotAllowed, AnswerTooLate, InboxItemNotFound, did_you_mean
from agent_tasks.lines import ENGINE
from agent_tasks.schema import is_id
from agent_tasks.states import FINISHED, IN_DOUBT, NOT_BLOCKING, REPLIES, OperationStatus, Question, Reply, RunStatus
from checkpoint import codec
from checkpoint.errors import CheckpointError
from checkpoint.inserts import upsert

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from agent_tasks.clock import Clock
    from agent_tasks.decisions import Decisions
    from agent_tasks.ledger import Ledger
    from agent_tasks.schema import Tables
    from agent_tasks.suspensions import Asked


@dataclass(frozen=True)
class InboxItem:
    """One question.

    Attributes:
        item_id: what :meth:`Inbox.resolve` takes.
        run_id, operation_id: what it is about.
        question: what is asked.
        replies: what may be answered.
        detail: what a person should see: the tool, its arguments, evidence.
        opened_at: microseconds since 1970.
        reply, replied_by, replied_why: of a closed item; an item that evidence closed has no reply.
    """

    item_id: str
    run_id: str
    question: Question
    operation_id: str | None
    detail: dict[str, Any]
    opened_at: int
    reply: Reply | None
    replied_by: str | None
    replied_why: str | None

    @property
    def replies(self) -> tuple[Reply, ...]:
        """What may be answered to this question."""
        return REPLIES[self.question]


@dataclass(frozen=True)
class AuditEntry:
    """Who decided what about a run.

    Attributes:
        run_id, operation_id: what it was about.
        at: microseconds since 1970 on the database's clock.
        who, what, why: the person, the question with the answer, and the reason.
    """

    run_id: str
    operation_id: str | None
    at: int
    who: str
    what: str
    why: str


class Inbox:
    """Statements on the inbox and the audit trail; the connection's transaction is the caller's."""

    def __init__(self, tables: Tables, clock: Clock, decisions: Decisions, ledger: Ledger) -> None:
        self.table, self.audit_table, self.clock = tables.inbox, tables.audit, clock
        self.decisions, self.ledger = decisions, ledger

    def open(self, connection: Connection, run_id: str, asked: Asked) -> None:
        """Ask a question once; asking it again about the same try opens the same item again, or leaves it open."""
        now, c = self.clock.now(), self.table.c
        row = {
            "item_id": asked.item_id,
            "run_id": run_id,
            "question": asked.question,
            "operation_id": asked.operation_id,
            "attempts": asked.attempts,
            "args_digest": asked.digest,
            "detail": codec.dumps(asked.detail),
            "opened_at": now,
        }
        again = [
            ("opened_at", case((c.closed_at.is_(None), c.opened_at), else_=now)),
            *((name, None) for name in ("reply", "replied_by", "replied_why", "closed_at")),
        ]
        upsert(connection, self.table, [row], lambda _new: again)

    def items(self, connection: Connection, run_id: str | None = None, *, closed: bool = False) -> list[InboxItem]:
        """Return the open items (or the closed ones), oldest first."""
        if run_id is not None and not is_id(run_id):
            return []
        c = self.table.c
        statement = select(self.table).where(c.closed_at.isnot(None) if closed else c.closed_at.is_(None))
        if run_id is not None:
            statement = statement.where(c.run_id == run_id)
        rows = connection.execute(statement.order_by(c.opened_at, c.item_id)).mappings()
        return [_item(row) for row in rows]

    def find(self, connection: Connection, item_id: str) -> InboxItem | None:
        """Return one item, open or closed."""
        row = self._row(connection, item_id)
        return None if row is None else _item(row)

    def _row(self, connection: Connection, item_id: str) -> RowMapping | None:
        if not is_id(item_id):
            return None
        return connection.execute(select(self.table).where(self.table.c.item_id == item_id)).mappings().one_or_none()

    def is_blocked(self, connection: Connection, run_id: str) -> bool:
        """Tell whether a question is open that holds the run."""
        return any(item.question not in NOT_BLOCKING for item in self.items(connection, run_id))

    def withdraw(self, connection: Connection, operation_id: str, why: str) -> None:
        """Close the questions whether an operation happened or is sent again, since evidence has answered them."""
        c = self.table.c
        answered = c.question.in_([Question.UNKNOWN, Question.SENDS])
        connection.execute(
            update(self.table)
            .where(c.operation_id == operation_id, answered, c.closed_at.is_(None))
            .values(closed_at=self.clock.now(), replied_by="evidence", replied_why=why)
        )

    def close_all(
        self, connection: Connection, run_id: str, who: str, what: str, why: str, *, but: Question | None = None
    ) -> None:
        """Close what holds a run, since a person decided otherwise; whatever is still in doubt is asked again.

        Args:
            connection: whose transaction is the caller's.
            run_id: of the run.
            who: decided.
            what: was decided, in words for the audit trail.
            why: the reason.
            but: questions of this kind stay open.
        """
        c = self.table.c
        for item in self.items(connection, run_id):
            if item.question in (*NOT_BLOCKING, but):
                continue
            connection.execute(
                update(self.table)
                .where(c.item_id == item.item_id, c.closed_at.is_(None))
                .values(closed_at=self.clock.now(), replied_by=who, replied_why=why)
            )
            self.audit(connection, run_id, item.operation_id, who, f"{item.question!s}: closed by {what}"[:100], why)

    def conflict_reply(self, connection: Connection, operation_id: str, digest: str) -> Reply | None:
        """Return what a person said about these other arguments for an operation."""
        c = self.table.c
        statement = (
            select(c.reply)
            .where(
                c.operation_id == operation_id,
                c.question == Question.CONFLICT,
                c.args_digest == digest,
                c.closed_at.isnot(None),
            )
            .order_by(c.closed_at.desc())
            .limit(1)
        )
        reply = connection.execute(statement).scalar_one_or_none()
        return None if reply is None else Reply(reply)

    def resolve(
        self,
        connection: Connection,
        item_id: str,
        reply: str,
        *,
        who: str,
        why: str,
        result: bytes | None,
        run_id: str | None = None,
    ) -> tuple[str, bool]:
        """Carry out a person's answer; ``run_id`` says whose item it must be.

        Returns:
            The run's id, and whether it is queued now because of this.

        Raises:
            InboxItemNotFound, AnswerNotAllowed, AnswerTooLate: nothing was written.
        """
        found = self._row(connection, item_id)
        if found is None or run_id not in (None, found["run_id"]):
            whose = "" if run_id is None else f" of run {run_id!r}"
            raise InboxItemNotFound(f"no inbox item {item_id!r}{whose}. `agent-tasks inbox list` shows the open ones.")
        run_id = str(found["run_id"])
        run = self.decisions.runs.find(connection, run_id, lock=True)
        row = connection.execute(select(self.table).where(self.table.c.item_id == item_id)).mappings().one()
        item = _item(row)
        if row["closed_at"] is not None:
            raise AnswerTooLate(
                f"inbox item {item_id!r} was answered already: {row['reply'] or 'withdrawn'} "
                f"by {row['replied_by']} ({row['replied_why']})."
            )
        if reply not in item.replies:
            allowed = [str(r) for r in item.replies]
            raise AnswerNotAllowed(
                f"an answer to the question {str(item.question)!r} must be one of {', '.join(allowed)}, got {str(reply)!r}."
                + did_you_mean(str(reply), allowed)
            )
        reply = Reply(reply)
        if reply is Reply.GO_ON:
            self.decisions.allow_steps(connection, run_id, item.detail["allowed"] + item.detail["more"])
        self._carry_out(connection, row, item, reply, who, why, result)
        c = self.table.c
        connection.execute(
            update(self.table)
            .where(c.item_id == item_id)
            .values(closed_at=self.clock.now(), reply=reply, replied_by=who, replied_why=why)
        )
        self.audit(connection, run_id, item.operation_id, who, f"{item.question!s}: {reply!s}", why)
        if run is None or run["status"] in FINISHED:
            return run_id, False
        if reply is Reply.ABORT:
            self._abort(connection, run_id, item, who, why)
            return run_id, False
        was = [RunStatus.NEEDS_ATTENTION]
        if item.question is Question.UNKNOWN:  # which may be asked beside a wait for the probe
            was.append(RunStatus.WAITING)
        return run_id, not self.is_blocked(connection, run_id) and self.decisions.resume(connection, run_id, was=was)

    def audit(
        self, connection: Connection, run_id: str, operation_id: str | None, who: str, what: str, why: str
    ) -> None:
        """Write a line of the audit trail."""
        connection.execute(
            self.audit_table.insert().values(
                run_id=run_id, operation_id=operation_id, at=self.clock.now(), who=who, what=what, why=why
            )
        )

    def said(self, connection: Connection, run_id: str, who: str, what: str, why: str) -> bool:
        """Tell whether the audit trail of a run has these very words."""
        c = self.audit_table.c
        words = (c.run_id == run_id, c.who == who, c.what == what, c.why == why)
        return connection.execute(select(c.audit_id).where(*words).limit(1)).one_or_none() is not None

    def engine_said(self, connection: Connection, run_id: str, what: str) -> bool:
        """Tell whether the engine did this to a run since a person last decided anything about it."""
        c = self.audit_table.c
        last = select(func.coalesce(func.max(c.audit_id), 0)).where(c.run_id == run_id, c.who != ENGINE)
        statement = select(c.audit_id).where(
            c.run_id == run_id, c.who == ENGINE, c.what == what, c.audit_id > last.scalar_subquery()
        )
        return connection.execute(statement.limit(1)).one_or_none() is not None

    def audit_trail(self, connection: Connection, run_id: str) -> list[AuditEntry]:
        """Return who decided what about a run, oldest first."""
        if not is_id(run_id):
            return []
        c = self.audit_table.c
        statement = select(c.run_id, c.operation_id, c.at, c.who, c.what, c.why).where(c.run_id == run_id)
        return [AuditEntry(*row) for row in connection.execute(statement.order_by(c.audit_id))]

    def _carry_out(
        self,
        connection: Connection,
        row: RowMapping,
        item: InboxItem,
        reply: Reply,
        who: str,
        why: str,
        result: bytes | None,
    ) -> None:
        if item.operation_id is None or item.question in (Question.CONFLICT, *NOT_BLOCKING):
            return  # the reply itself is what the run, or the reader, looks for
        operation = self.ledger.find(connection, item.operation_id)
        if operation is None or operation.attempts != row["attempts"]:
            raise AnswerTooLate(f"operation {item.operation_id!r} was begun again after {item.item_id!r} was asked.")
        signed: dict[str, Any] = {"resolved_by": who, "resolved_why": why}
        if item.question is Question.ORPHAN:
            settled = self.ledger.settle(
                connection, operation, from_=(OperationStatus.SUCCEEDED,), orphan_reply=reply, **signed
            )
        elif item.question is Question.RESULT:
            settled = self.ledger.settle(
                connection,
                operation,
                from_=(OperationStatus.SUCCEEDED,),
                result=result or codec.dumps(None),
                result_missing=0,
                error=None,
                **signed,
            )
        elif item.question is Question.SENDS:
            settled = self.ledger.settle(connection, operation, from_=(OperationStatus.PENDING,), **signed)
        elif reply is Reply.HAPPENED:
            settled = self.ledger.settle(
                connection,
                operation,
                from_=IN_DOUBT,
                fence=operation.row["fence"],
                unsettled=0,
                status=OperationStatus.SUCCEEDED,
                result=result or codec.dumps(None),
                **signed,
            )
        else:
            settled = self.ledger.settle(
                connection,
                operation,
                from_=IN_DOUBT,
                fence=operation.row["fence"],
                unsettled=0,
                status=OperationStatus.PENDING,
                ask_at=None,
                **signed,
            )
        if not settled:
            raise AnswerTooLate(
                f"operation {item.operation_id!r} is {operation.status!s} meanwhile; nothing was changed."
            )

    def _abort(self, connection: Connection, run_id: str, item: InboxItem, who: str, why: str) -> None:
        if self.ledger.doubts(connection, run_id):  # I14: no run ends on a doubt
            raise AnswerNotAllowed(
                f"run {run_id!r} has an operation in doubt and cannot be ended before somebody says whether it happened: "
                "answer its `unknown` items first (after `retry` the run asks what it cannot find out by itself)."
            )
        if not self.decisions.abort(connection, run_id, f"{item.question!s} answered with abort by {who}: {why}"):
            raise AnswerTooLate(f"run {run_id!r} does not wait for a person any more; nothing was changed.")


def _item(row: RowMapping) -> InboxItem:
    return InboxItem(
        item_id=str(row["item_id"]),
        run_id=str(row["run_id"]),
        question=Question(row["question"]),
        operation_id=row["operation_id"],
        detail={} if row["detail"] is None else _detail(row["detail"]),
        opened_at=int(row["opened_at"]),
        reply=None if row["reply"] is None else Reply(row["reply"]),
        replied_by=row["replied_by"],
        replied_why=row["replied_why"],
    )


def _detail(stored: bytes) -> dict[str, Any]:
    # One value that this process cannot read must not hide the question, nor all the others in the list.
    try:
        return dict(codec.loads(stored))
    except CheckpointError as error:
        return {"unreadable": str(error)}
