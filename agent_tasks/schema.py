"""The ledger's tables. Times are BIGINT microseconds on every database."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
)

from agent_tasks.texts import is_storable
from checkpoint.columns import BYTES, IN_TRANSACTIONS, Exact, Words

#: The highest number in ``agent_runs.protocol`` that this release knows; a worker touches no run with a higher one.
PROTOCOL = 3

#: What a run begins with, and what one has from then on that has begun a step with calls that were planned, or a wait for a
#: check.
PLAIN_PROTOCOL, CALLS_PROTOCOL, WAITS_PROTOCOL = 1, 2, 3

#: Longest run id and dedupe key, in characters.
MAX_ID_LENGTH = 200

#: Beyond the highest seq that a column holds.
MAX_SEQ = 2**31


def is_id(value: object) -> bool:
    r"""Tell whether every database and every slot can hold this as an id.

    Example:
        >>> is_id("cart-42"), is_id(""), is_id("\ud800")
        (True, False, False)
    """
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and is_storable(value)


#: What is kept of the words for a call in observe mode, in characters.
MAX_CALL_LENGTH = 400

#: What is kept of a vendor's own name of an effect, in characters.
MAX_EXTERNAL_ID_LENGTH = 400


@dataclass(frozen=True)
class Tables:
    """The tables of one prefix."""

    metadata: MetaData
    runs: Table
    operations: Table
    inbox: Table
    audit: Table
    observed: Table


@cache
def tables(prefix: str = "agent_") -> Tables:
    """Return the tables whose names start with ``prefix``.

    Example:
        >>> tables().runs.name
        'agent_runs'
    """
    metadata = MetaData()
    return Tables(
        metadata,
        _runs(prefix, metadata),
        _operations(prefix, metadata),
        _inbox(prefix, metadata),
        _audit(prefix, metadata),
        _observed(prefix, metadata),
    )


def _runs(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}runs",
        metadata,
        Column("run_id", Exact(MAX_ID_LENGTH), primary_key=True),
        Column("agent", Exact(200), nullable=False),
        Column("version", Integer, nullable=False, default=1),
        Column("protocol", SmallInteger, nullable=False),
        Column("dedupe_key", Exact(MAX_ID_LENGTH)),
        Column("input_digest", Exact(64), nullable=False),
        Column("status", Exact(16), nullable=False),
        Column("line", Integer, nullable=False, default=0),
        Column("line_start_seq", Integer, nullable=False, default=0),  # where the present line began
        Column("seq", Integer, nullable=False, default=0),  # of the last checkpoint
        Column("next_step", Exact(200)),
        Column("output", BYTES),
        Column("error", BYTES),
        Column("due_at", BigInteger),  # running: the lease's end; queued: ring again; waiting: wake; else NULL (I9)
        Column("wakeups", Integer, nullable=False, default=0),
        Column("lease_owner", Exact(100)),
        Column("lease_token", Exact(32)),
        Column("fence", BigInteger, nullable=False, default=0),
        Column("attempts", Integer, nullable=False, default=0),  # of the next step, since the last commit
        Column("crashes", Integer, nullable=False, default=0),  # of these, the ones that lost their worker
        Column("priority", Integer, nullable=False, default=0),
        Column("queue", Exact(200), nullable=False),
        Column("waiting_for", Words()),  # said to people; the status and due_at decide
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("finished_at", BigInteger),
        Column("parent_line", Integer, nullable=False, server_default="0"),  # which the present line began from
        Column("retries", Integer, nullable=False, server_default="0"),  # of the next step, since the last commit
        Column("request", Exact(16)),  # cancel: honoured in the owner's next fenced statement
        Column("recovery", Exact(16), nullable=False, server_default="auto"),  # auto | manual
        Column("steps_allowed", Integer),  # beyond it a person is asked; NULL: what the agent says
        Column("task", Exact(400)),  # that its doorbells ring, for a plain task; NULL: the task of the step
        Column("message", BYTES),  # plain tasks: what Celery's own features need with each doorbell
        Column("keeps_result", SmallInteger, nullable=False, server_default="0"),  # Celery has to hear of its end
        Column("expires_at", BigInteger),  # no first attempt begins after it
        UniqueConstraint("agent", "dedupe_key", name=f"{prefix}runs_dedupe"),
        # Finished runs have due_at NULL and leave the index where it can be partial.
        Index(f"{prefix}runs_due", "due_at", postgresql_where=Column("due_at").isnot(None)),
        Index(f"{prefix}runs_finished", "finished_at", postgresql_where=Column("finished_at").isnot(None)),
        **IN_TRANSACTIONS,
    )


def _operations(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}operations",
        metadata,
        Column("operation_id", Exact(40), primary_key=True),
        Column("run_id", Exact(MAX_ID_LENGTH), nullable=False),
        Column("line", Integer, nullable=False),
        Column("seq", Integer, nullable=False),
        Column("tool", Exact(200), nullable=False),
        Column("ordinal", Integer, nullable=False),  # n-th call of the tool in its step, from 0; -1 with a call key
        Column("call_key", Exact(MAX_ID_LENGTH)),
        Column("effect", Exact(16), nullable=False),
        Column("args", BYTES, nullable=False),
        Column("args_digest", Exact(64), nullable=False),
        Column("idempotency_key", Exact(40), nullable=False),
        Column("status", Exact(16), nullable=False),
        Column("attempts", Integer, nullable=False),  # requests begun; every transition compares it (I14)
        Column("unsettled", Integer, nullable=False, default=0),  # earlier requests that nobody settled
        Column("fence", BigInteger, nullable=False),
        Column("token", Exact(32), nullable=False),  # of the attempt that began the newest request
        Column("result", BYTES),
        Column("result_missing", SmallInteger, nullable=False, default=0),  # succeeded, but not storable
        Column("why", Words()),  # repeatable: why doing it twice is the same as once
        Column("external_id", Exact(MAX_EXTERNAL_ID_LENGTH)),
        Column("error", BYTES),
        Column("evidence", BYTES),
        Column("orphan_reply", Exact(16)),  # keep | ignore, said by a person
        Column("born", BigInteger, nullable=False),  # the fence under which the row was made
        Column("ended", BigInteger),  # the fence under which it was settled
        Column("parent_operation", Exact(40)),
        Column("first_started_at", BigInteger),  # a key's life counts from here
        Column("started_at", BigInteger),
        Column("horizon_at", BigInteger),  # nobody asks about the newest request before (I6)
        Column("ask_at", BigInteger),  # a probe said: not before
        Column("finished_at", BigInteger),
        Column("resolved_by", Exact(200)),
        Column("resolved_why", Words()),
        Column("key_until", BigInteger),  # the vendor honours the key until then
        Column("progress", BYTES),  # how far the bodies came, for the next one
        Index(f"{prefix}operations_run", "run_id", "seq"),
        **IN_TRANSACTIONS,
    )


def _inbox(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}inbox",
        metadata,
        Column("item_id", Exact(40), primary_key=True),  # a function of the question, so that it is asked once
        Column("run_id", Exact(MAX_ID_LENGTH), nullable=False),
        Column("question", Exact(16), nullable=False),
        Column("operation_id", Exact(40)),
        Column("attempts", Integer, nullable=False, default=0),  # of the operation, when the question was asked
        Column("args_digest", Exact(64)),  # conflict: of the arguments asked for now
        Column("detail", BYTES),
        Column("opened_at", BigInteger, nullable=False),
        Column("closed_at", BigInteger),
        Column("reply", Exact(16)),
        Column("replied_by", Exact(200)),
        Column("replied_why", Words()),
        Index(f"{prefix}inbox_run", "run_id"),
        **IN_TRANSACTIONS,
    )


def _audit(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}audit",
        metadata,
        Column("audit_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("run_id", Exact(MAX_ID_LENGTH), nullable=False),
        Column("operation_id", Exact(40)),
        Column("at", BigInteger, nullable=False),
        Column("who", Exact(200), nullable=False),
        Column("what", Exact(100), nullable=False),
        Column("why", Words(), nullable=False),
        Index(f"{prefix}audit_run", "run_id"),
        **IN_TRANSACTIONS,
    )


def _observed(prefix: str, metadata: MetaData) -> Table:
    """Calls of plain tasks in observe mode; no run is made of them, and nothing decides by them."""
    return Table(
        f"{prefix}observed",
        metadata,
        Column("call_key", Exact(40), primary_key=True),
        Column("task", Exact(400), nullable=False),
        Column("call", Exact(MAX_CALL_LENGTH), nullable=False),  # the same in words
        Column("state", Exact(16), nullable=False),  # of the body that began last: running | succeeded | failed
        Column("starts", Integer, nullable=False),
        Column("successes", Integer, nullable=False),
        Column("after_success", Integer, nullable=False),  # bodies that began when the call had succeeded
        Column("after_loss", Integer, nullable=False),  # when one had begun and not ended: it died, or still runs
        Column("after_failure", Integer, nullable=False),  # when it had failed, as a retry
        Column("first_at", BigInteger, nullable=False),
        Column("last_at", BigInteger, nullable=False),
        **IN_TRANSACTIONS,
    )
