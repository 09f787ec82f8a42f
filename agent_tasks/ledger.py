"""The dedupe table: every statement on operations. The connection's transaction is the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update

from agent_tasks.clock import MICROSECONDS, microseconds
from agent_tasks.operations import Operation
from agent_tasks.outcomes import error_line
from agent_tasks.schema import is_id
from agent_tasks.states import IN_DOUBT, Effect, OperationStatus, Question
from agent_tasks.together import never_begun
from checkpoint import codec
from checkpoint.inserts import new_row, was_new

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.attempt import Attempt
    from agent_tasks.clock import Clock
    from agent_tasks.schema import Tables
    from agent_tasks.suspensions import Asked
    from agent_tasks.tools import Tool


@dataclass(frozen=True)
class Request:
    """A call as it is asked for now."""

    operation_id: str
    tool: Tool[..., Any]
    ordinal: int
    call_key: str | None
    arguments: dict[str, Any]
    encoded: bytes
    digest: str
    parent: str | None
    timeout_seconds: float  # of one request

    def planned(self, attempt: Attempt, seq: int | None = None) -> dict[str, Any]:
        """Return the row of this call before anything was sent; ``seq`` of the step that makes it, if not the attempt's."""
        return {
            "operation_id": self.operation_id,
            "run_id": attempt.run_id,
            "line": attempt.line,
            "seq": attempt.seq if seq is None else seq,
            "tool": self.tool.name,
            "ordinal": self.ordinal,
            "call_key": self.call_key,
            "effect": self.tool.guard.effect,
            "args": self.encoded,
            "args_digest": self.digest,
            "idempotency_key": self.operation_id,
            "unsettled": 0,
            "result_missing": 0,
            "born": attempt.fence,
            "parent_operation": self.parent,
            "why": self.tool.guard.why,
        }

    def unsent(self, attempt: Attempt) -> Operation:
        """Return the operation that a body without an intent (``read``, ``transactional``) is handed."""
        nothing = dict.fromkeys(
            ("external_id", "first_started_at", "started_at", "horizon_at", "result", "evidence", "error", "progress")
        )
        row = {**self.planned(attempt), **nothing, "status": OperationStatus.PENDING, "attempts": 0}
        clock = attempt.runtime.clock
        return Operation(row, clock, clock.local(), deadline=clock.local() + self.timeout_seconds)


class Ledger:
    """Statements on the operations of one table prefix."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.table = tables.operations
        self.clock = clock

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, connection: Connection, operation_id: str) -> Operation | None:
        """Return one operation, with the database's time beside it."""
        found = self._select(connection, self.table.c.operation_id == operation_id)
        return found[0] if found else None

    def of_run(self, connection: Connection, run_id: str, from_seq: int = 0) -> list[Operation]:
        """Return the operations of a run at ``from_seq`` or later, in the order of their first intents.

        A call with a key of its own keeps the seq that asked for it first, so one in doubt may stand at an earlier one.
        """
        c = self.table.c
        if not is_id(run_id):
            return []
        in_doubt = and_(c.call_key.isnot(None), c.status.in_([str(status) for status in IN_DOUBT]))
        return self._select(connection, and_(c.run_id == run_id, or_(c.seq >= from_seq, in_doubt)))

    def with_ids(self, connection: Connection, operation_ids: list[str]) -> list[Operation]:
        """Return the operations that are there of some ids."""
        return self._select(connection, self.table.c.operation_id.in_(operation_ids))

    def owner_wrote_at(self, connection: Connection, run: RowMapping) -> int:
        """Return when the owner of a run last wrote of a call in its step, as microseconds since 1970; 0 if it never did.

        Args:
            connection: with the run's row locked.
            run: that row.
        """
        c = self.table.c
        mine = and_(c.run_id == run["run_id"], c.seq == run["seq"] + 1, c.token == run["lease_token"])
        began, ended = connection.execute(select(func.max(c.started_at), func.max(c.finished_at)).where(mine)).one()
        return max(began or 0, ended or 0)

    def _select(self, connection: Connection, where: ColumnElement[bool]) -> list[Operation]:
        c = self.table.c
        order = (
            c.seq,
            c.first_started_at.is_(None),
            c.born,
            c.first_started_at,
            c.ordinal,
        )  # those not begun come last
        statement = select(self.table, self.clock.now().label("now")).where(where).order_by(*order)
        rows = connection.execute(statement).mappings().all()
        read_at = self.clock.local()
        return [Operation(row, self.clock, read_at) for row in rows]

    # -- the life of one request -----------------------------------------------------------------------------------

    def begin(
        self, connection: Connection, attempt: Attempt, request: Request, seen: Operation | None
    ) -> Operation | None:
        """Record the intent of a request: a new row, or a compare-and-set from the row that was seen.

        Returns:
            The operation as executing, or None if another row stands there than was seen.
        """
        horizon = request.timeout_seconds + request.tool.guard.settle.total_seconds()
        times = {"started_at": self.clock.now(), "horizon_at": self.clock.in_(horizon)}
        mine = {"status": OperationStatus.EXECUTING, "fence": attempt.fence, "token": attempt.token}
        if seen is None:
            row = {**request.planned(attempt), **mine, **times, "attempts": 1, **self._first_intent(request)}
            changed = self._insert(connection, row)
        else:
            earlier = seen.unsettled + 1 if seen.status in IN_DOUBT else seen.unsettled
            # What the vendor called a request that did not happen must not be taken for the name of this one.
            forgotten = (
                seen.external_id
                if seen.status not in IN_DOUBT and request.tool.guard.effect is not Effect.REPEATABLE
                else None
            )
            changed = self._compare_and_set(
                connection,
                seen,
                **mine,
                **times,
                attempts=seen.attempts + 1,
                unsettled=earlier,
                ask_at=None,
                resolved_by=None,
                resolved_why=None,
                effect=request.tool.guard.effect,
                args=request.encoded,
                args_digest=request.digest,
                **({"born": attempt.fence, **self._first_intent(request)} if seen.first_started_at is None else {}),
                **({"external_id": None} if forgotten is not None else {}),
            )
            if changed and forgotten is not None:
                fact = {"what": "earlier external id", "attempt": seen.attempts, "said": forgotten}
                self.add_evidence(connection, seen.operation_id, **fact)
        if changed:
            return self.find(connection, request.operation_id)
        return self.begun_before(connection, attempt, request, seen)

    def begun_before(
        self, connection: Connection, attempt: Attempt, request: Request, seen: Operation | None
    ) -> Operation | None:
        """Return the operation if an earlier sending of this very intent, whose answer was lost, was written."""
        found = self.find(connection, request.operation_id)
        wanted = 1 if seen is None else seen.attempts + 1
        is_mine = (
            found is not None
            and found.row["token"] == attempt.token
            and found.attempts == wanted
            and found.row["args_digest"] == request.digest
            and found.status is OperationStatus.EXECUTING
        )
        return found if is_mine else None

    def _first_intent(self, request: Request) -> dict[str, Any]:
        life = request.tool.guard.key_lifetime
        key = {} if life is None else {"key_until": self.clock.in_(life.total_seconds())}
        return {"first_started_at": self.clock.now(), **key}

    def record(
        self, connection: Connection, attempt: Attempt, request: Request, seen: Operation | None, **outcome: Any
    ) -> bool:
        """Record a call that has no intent (``read``, ``transactional``) with its outcome.

        Returns:
            False if another row stands there than was seen.
        """
        settled = {
            "fence": attempt.fence,
            "token": attempt.token,
            "ended": attempt.fence,
            "started_at": self.clock.now(),
            "finished_at": self.clock.now(),
            **outcome,
        }
        if seen is None:
            row = {**request.planned(attempt), **settled, "attempts": 1, "first_started_at": self.clock.now()}
            return self._insert(connection, row)
        first = {"born": attempt.fence, "first_started_at": self.clock.now()} if seen.first_started_at is None else {}
        return self._compare_and_set(
            connection,
            seen,
            **settled,
            **first,
            attempts=seen.attempts + 1,
            effect=request.tool.guard.effect,
            args=request.encoded,
            args_digest=request.digest,
        )

    def recorded_before(
        self, connection: Connection, attempt: Attempt, request: Request, status: OperationStatus
    ) -> bool:
        """Tell whether an earlier sending of this attempt's record, whose answer was lost, was written."""
        found = self.find(connection, request.operation_id)
        return (
            found is not None
            and found.row["token"] == attempt.token
            and found.row["args_digest"] == request.digest
            and found.status is status
        )

    def settle(
        self,
        connection: Connection,
        operation: Operation,
        *,
        from_: Iterable[OperationStatus],
        fence: int | None = None,
        token: str | None = None,
        **values: Any,
    ) -> bool:
        """Settle the request that ``operation`` was read at, if it still stands at that request (I14).

        A ``token`` names the attempt that began it: a run that was deleted and started anew has the same operations, and
        other attempts.
        """
        c = self.table.c
        begun = () if token is None else (c.token == token,)
        statement = (
            update(self.table)
            .where(
                c.operation_id == operation.operation_id,
                c.attempts == operation.attempts,
                c.status.in_([str(status) for status in from_]),
                *begun,
            )
            .values(**values, **({"ended": fence, "finished_at": self.clock.now()} if fence is not None else {}))
        )
        return connection.execute(statement).rowcount == 1

    def set_back(self, connection: Connection, failed: Operation) -> None:
        """Let a failed operation be done again, if it still stands at that request; its failure is kept as evidence."""
        pending = {"status": OperationStatus.PENDING, "error": None, "ended": None, "finished_at": None}
        if self._compare_and_set(connection, failed, **pending):
            said = error_line(failed.error or {})
            self.add_evidence(connection, failed.operation_id, what="failed", attempt=failed.attempts, said=said)

    def doubt(self, connection: Connection, asked: Asked) -> None:
        """Let an operation that a person is asked about say so."""
        if asked.question is not Question.UNKNOWN:
            return
        c = self.table.c
        connection.execute(
            update(self.table)
            .where(
                c.operation_id == asked.operation_id,
                c.attempts == asked.attempts,
                c.status == OperationStatus.EXECUTING,
            )
            .values(status=OperationStatus.UNKNOWN)
        )

    def add_evidence(self, connection: Connection, operation_id: str, **fact: Any) -> None:
        """Keep a fact about an operation; the caller holds the run's row, so that no other fact is overwritten.

        The same fact again is counted, since a probe may be asked for months.
        """
        found = self.find(connection, operation_id)
        if found is None:
            return
        facts, now = found.evidence, found.row["now"]
        if facts and fact.items() <= facts[-1].items():
            facts[-1].update(times=facts[-1].get("times", 1) + 1, last_at=now)
        else:
            facts.append({"at": now, **fact})
        statement = update(self.table).where(self.table.c.operation_id == operation_id)
        connection.execute(statement.values(evidence=codec.dumps(facts)))

    def forget_reads(self, connection: Connection, run_id: str, *, from_seq: int, to_seq: int | None = None) -> None:
        """Let the reads of these steps be bought again; the caller holds the run's row, and nobody else works on the run."""
        c = self.table.c
        settled = [str(OperationStatus.SUCCEEDED), str(OperationStatus.FAILED)]
        last = [] if to_seq is None else [c.seq <= to_seq]
        connection.execute(
            update(self.table)
            .where(c.run_id == run_id, c.seq >= from_seq, *last, c.effect == Effect.READ, c.status.in_(settled))
            .values(status=OperationStatus.PENDING)
        )

    # -- at the step's commit --------------------------------------------------------------------------------------

    def adopt(self, connection: Connection, attempt: Attempt) -> None:
        """Put the operations that the attempt asked for on its line, and drop the planned ones that it did not."""
        c = self.table.c
        if attempt.line:
            connection.execute(
                update(self.table)
                .where(c.operation_id.in_(attempt.asked_for()), c.line != attempt.line)
                .values(line=attempt.line)
            )
        left = [operation.operation_id for operation in never_begun(attempt)]
        if left:
            connection.execute(
                update(self.table)
                .where(c.operation_id.in_(left), c.status == OperationStatus.PENDING)
                .values(status=OperationStatus.DROPPED, ended=attempt.fence, finished_at=self.clock.now())
            )

    def doubts(self, connection: Connection, run_id: str) -> list[Operation]:
        """Return the operations of a run whose outcome nobody can tell."""
        c = self.table.c
        return self._select(connection, and_(c.run_id == run_id, c.status.in_([str(s) for s in IN_DOUBT])))

    def left_behind(self, connection: Connection, attempt: Attempt) -> list[Operation]:
        """Return the succeeded effects of older lines that this line, begun at an earlier seq, never asked for (I13)."""
        c = self.table.c
        left = self._select(
            connection,
            and_(
                c.run_id == attempt.run_id,
                c.seq > attempt.line_start_seq,
                c.line < attempt.line,
                c.status == OperationStatus.SUCCEEDED,
                c.effect != "read",
                c.call_key.is_(None),
                c.orphan_reply.is_(None),
                c.operation_id.notin_(attempt.asked_for()),
            ),
        )
        return [operation for operation in left if not self._is_inside_a_keyed_call(connection, operation)]

    def _is_inside_a_keyed_call(self, connection: Connection, operation: Operation) -> bool:
        parent = operation.row["parent_operation"]
        outer = None if parent is None else self.find(connection, parent)
        return outer is not None and (
            outer.row["call_key"] is not None or self._is_inside_a_keyed_call(connection, outer)
        )

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _insert(self, connection: Connection, row: dict[str, Any]) -> bool:
        return was_new(connection, new_row(self.table, connection.dialect.name).values(**row))

    def _compare_and_set(self, connection: Connection, seen: Operation, **values: Any) -> bool:
        c = self.table.c
        statement = update(self.table).where(
            c.operation_id == seen.operation_id, c.status == seen.status, c.attempts == seen.attempts
        )
        return connection.execute(statement.values(**values)).rowcount == 1


def seconds_of(duration: timedelta | None, default: float) -> float:
    """Return a duration in seconds, or the default."""
    return default if duration is None else microseconds(duration) / MICROSECONDS
