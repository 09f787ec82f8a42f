"""The invariants, as questions to a ledger; each is named by its number in ARCHITECTURE.md.

They hold between any two commits of the engine, so a test asks them after every one: the statements are made once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import CTE, MetaData, Row, Select, Table, and_, case, exists, func, or_, select

from agent_tasks.identity import keyed_operation_id, nested_operation_id, operation_id, renewed_operation_id
from agent_tasks.schema import Tables, tables
from agent_tasks.states import FINISHED, IN_DOUBT, NOT_BLOCKING, OperationStatus, RunRequest, RunStatus
from checkpoint.tables import build_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_DOUBT = [str(status) for status in IN_DOUBT]
_ENDED = [str(status) for status in FINISHED]
_SETTLED = [str(OperationStatus.SUCCEEDED), str(OperationStatus.FAILED)]


@cache
def _checkpoints(prefix: str) -> Table:
    return build_tables(MetaData(), f"{prefix}checkpoint_").checkpoints


class Violation(NamedTuple):
    """A row that breaks an invariant."""

    invariant: str
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.subject} {self.what}"


class _Question(NamedTuple):
    """What is wrong with each row of a statement, whose first column names the subject; None if nothing is."""

    rows: Select[Any]
    what: Callable[[Row[Any]], str | None]


def check_invariants(connection: Connection, prefix: str = "agent_") -> list[Violation]:
    """Return every violation in the ledger on this connection.

    Args:
        connection: reads the ledger; nothing is written.
        prefix: of the table names.

    Example:
        >>> import tempfile
        >>> from agent_tasks.database import open_engine
        >>> from agent_tasks.migrate import upgrade
        >>> engine = open_engine(f"sqlite:///{tempfile.mkdtemp()}/agent.db")
        >>> _ = upgrade(engine)
        >>> with engine.connect() as connection:
        ...     check_invariants(connection)
        []
    """
    found = []
    for invariant, question in _questions(prefix):
        for row in connection.execute(question.rows):
            what = question.what(row)
            if what is not None:
                found.append(Violation(invariant, row[0], what))
    return found


@cache
def _questions(prefix: str) -> list[tuple[str, _Question]]:
    found = tables(prefix)
    return [(invariant, question) for invariant, ask in INVARIANTS.items() for question in ask(found, prefix)]


def _one_owner(t: Tables, _prefix: str) -> Iterator[_Question]:
    """I2: a running run has an owner with a fence, a token and an end; no other run has; no write is from the future."""
    c = t.runs.c
    running = c.status == RunStatus.RUNNING
    incomplete = or_(c.lease_token.is_(None), c.lease_owner.is_(None), c.fence < 1, c.attempts < 1)
    yield _Question(select(c.run_id).where(running, incomplete), lambda _: "is running without a complete lease")
    leased = select(c.run_id).where(~running, c.lease_token.isnot(None))
    yield _Question(leased, lambda _: "has a lease and does not run")
    o = t.operations.c
    ahead = select(o.operation_id, o.fence).join(t.runs, c.run_id == o.run_id).where(o.fence > c.fence)
    yield _Question(ahead, lambda row: f"carries fence {row.fence}, which its run never had")


def _stable_identity(t: Tables, _prefix: str) -> Iterator[_Question]:
    """I4: an operation's id follows from where its call stands; its idempotency key is the same string."""
    o = t.operations.c
    columns = (
        o.operation_id,
        o.run_id,
        o.seq,
        o.tool,
        o.ordinal,
        o.call_key,
        o.parent_operation,
        o.args_digest,
    )
    yield _Question(select(*columns), _unstable)
    another = select(o.operation_id, o.idempotency_key).where(o.idempotency_key != o.operation_id)
    yield _Question(another, lambda row: f"has the idempotency key {row.idempotency_key!r}")


def _unstable(row: Row[Any]) -> str | None:
    if row.call_key is not None:
        expected = keyed_operation_id(row.run_id, row.tool, row.call_key)
    elif row.parent_operation is not None:
        expected = nested_operation_id(row.parent_operation, row.tool, row.ordinal)
    else:
        expected = operation_id(row.run_id, row.seq, row.tool, row.ordinal)
    if row.operation_id in (expected, renewed_operation_id(expected, row.args_digest)):
        return None
    return "has an id that does not follow from its call"


def _once(t: Tables, _prefix: str) -> Iterator[_Question]:
    """I5: what succeeded has a result or says that it is missing, what failed has an error, and both say when."""
    o = t.operations.c
    speechless = or_(
        and_(o.status == OperationStatus.SUCCEEDED, o.result.is_(None), o.result_missing == 0),
        and_(o.status == OperationStatus.FAILED, o.error.is_(None)),
        and_(o.status.in_(_SETTLED), or_(o.finished_at.is_(None), o.ended.is_(None), o.attempts < 1)),
    )
    rows = select(o.operation_id, o.status).where(speechless)
    yield _Question(rows, lambda row: f"is {row.status} without what a later attempt needs to return")


def _not_stuck(t: Tables, _prefix: str) -> Iterator[_Question]:
    """I9: an unfinished run has a due time or an open question; a finished one has neither, but to keep its result,
    and one that was cancelled asks nobody anything.
    """
    c, i = t.runs.c, t.inbox.c
    asked = exists().where(i.run_id == c.run_id, i.closed_at.is_(None), i.question.notin_(NOT_BLOCKING))
    waits_for_person = c.status == RunStatus.NEEDS_ATTENTION
    stuck = or_(
        and_(c.status.notin_([*_ENDED, str(RunStatus.NEEDS_ATTENTION)]), c.due_at.is_(None)),
        and_(waits_for_person, or_(~asked, c.due_at.isnot(None))),
        and_(c.status == RunStatus.CANCELLED, asked),
        and_(c.status.in_(_ENDED), or_(c.next_step.isnot(None), c.finished_at.is_(None))),
        and_(c.status.in_(_ENDED), c.due_at.isnot(None), c.keeps_result == 0),
    )
    rows = select(c.run_id, c.status).where(stuck)
    yield _Question(
        rows, lambda row: f"is {row.status}, and nothing will wake it, or something would wake it for nothing"
    )


def _history(t: Tables, prefix: str) -> CTE:
    """The checkpoints that each run stands on: the one of its position, and from each the parent that it names."""
    c, k = t.runs.c, _checkpoints(prefix)
    line = case((c.seq > c.line_start_seq, c.line), else_=c.parent_line)
    here = and_(k.c.run_id == c.run_id, k.c.line == line, k.c.seq == c.seq)
    columns = (k.c.run_id, k.c.line, k.c.seq, k.c.parent_line)
    history = select(*columns).join_from(t.runs, k, here).cte("history", recursive=True)
    before = and_(k.c.run_id == history.c.run_id, k.c.line == history.c.parent_line, k.c.seq == history.c.seq - 1)
    return history.union_all(select(*columns).join_from(history, k, before))


def _history_stands(t: Tables, prefix: str) -> Iterator[_Question]:
    """I12: a run's position has its checkpoint and all that led to it; an answer or a cancel says who and why."""
    c, i, h = t.runs.c, t.inbox.c, _history(t, prefix)
    counted = (
        select(c.run_id, c.line, c.seq, func.count(h.c.seq).label("found"), func.min(h.c.seq).label("oldest"))
        .outerjoin_from(t.runs, h, h.c.run_id == c.run_id)
        .group_by(c.run_id, c.line, c.seq)
        .having(func.count(h.c.seq) != c.seq + 1)
    )
    yield _Question(
        counted,
        lambda row: f"stands at {row.seq} on line {row.line} with {row.found} checkpoints down to {row.oldest}",
    )
    backwards = or_(c.line_start_seq > c.seq, and_(c.line > 0, c.parent_line >= c.line))
    late = "is on a line that began after where it stands, or from a later line"
    yield _Question(select(c.run_id).where(backwards), lambda _: late)
    unsigned = select(i.item_id).where(i.reply.isnot(None), or_(i.replied_by.is_(None), i.replied_why.is_(None)))
    yield _Question(unsigned, lambda _: "was answered without who or why")
    signed = exists().where(t.audit.c.run_id == c.run_id, t.audit.c.what == RunRequest.CANCEL)
    requested = or_(c.status == RunStatus.CANCELLED, c.request == RunRequest.CANCEL)
    yield _Question(select(c.run_id).where(requested, ~signed), lambda _: "was cancelled without who or why")


def _no_orphan(t: Tables, prefix: str) -> Iterator[_Question]:
    """I13: a succeeded run has no effect beyond its last checkpoint, and each is asked for where its history has its step.

    One that failed or was cancelled keeps what happened; nobody goes on after it.
    """
    c, o, h = t.runs.c, t.operations.c, _history(t, prefix)
    elsewhere = (
        select(o.operation_id)
        .join_from(t.operations, t.runs, c.run_id == o.run_id)
        .outerjoin(h, and_(h.c.run_id == o.run_id, h.c.seq == o.seq))
        .where(
            c.status == RunStatus.SUCCEEDED,
            o.status == OperationStatus.SUCCEEDED,
            o.effect != "read",
            o.call_key.is_(None),
            o.orphan_reply.is_(None),
            or_(o.seq > c.seq, h.c.line != o.line),
        )
    )
    yield _Question(elsewhere, lambda _: "succeeded, and the line that its run ended on does not ask for it")


def _no_doubt(t: Tables, _prefix: str) -> Iterator[_Question]:
    """I14: nothing is in doubt behind a run's position, or in a run that ended."""
    c, o = t.runs.c, t.operations.c
    behind = (
        select(o.operation_id, o.status, c.status.label("run_status"))
        .join(t.runs, c.run_id == o.run_id)
        .where(o.status.in_(_DOUBT), or_(c.status.in_(_ENDED), and_(o.seq <= c.seq, o.call_key.is_(None))))
    )
    yield _Question(behind, lambda row: f"is {row.status} in a {row.run_status} run that went on")


#: The checks by the number of their invariant.
INVARIANTS: dict[str, Callable[[Tables, str], Iterator[_Question]]] = {
    "I2": _one_owner,
    "I4": _stable_identity,
    "I5": _once,
    "I9": _not_stuck,
    "I12": _history_stands,
    "I13": _no_orphan,
    "I14": _no_doubt,
}


def assert_invariants(connection: Connection, prefix: str = "agent_") -> None:
    """Raise if the ledger on this connection breaks an invariant.

    Raises:
        AssertionError: names every violation.
    """
    violations: list[Any] = check_invariants(connection, prefix)
    if violations:
        raise AssertionError("\n".join(str(violation) for violation in violations))
