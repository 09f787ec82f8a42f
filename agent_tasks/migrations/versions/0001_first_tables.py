"""The ledger's first tables: runs, operations, inbox, audit."""

import sqlalchemy as sa
from alembic import context

from agent_tasks.migrations.changes import create_index, create_table
from checkpoint.columns import BYTES, Exact, Words

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    prefix = context.config.attributes["prefix"]
    create_table(
        f"{prefix}audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_id", Exact(200), nullable=False),
        sa.Column("operation_id", Exact(40), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", Exact(200), nullable=False),
        sa.Column("what", Exact(100), nullable=False),
        sa.Column("why", Words(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    create_index(f"{prefix}audit_run", f"{prefix}audit", ["run_id"])
    create_table(
        f"{prefix}inbox",
        sa.Column("item_id", Exact(40), nullable=False),
        sa.Column("run_id", Exact(200), nullable=False),
        sa.Column("question", Exact(16), nullable=False),
        sa.Column("operation_id", Exact(40), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("args_digest", Exact(64), nullable=True),
        sa.Column("detail", BYTES, nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("reply", Exact(16), nullable=True),
        sa.Column("replied_by", Exact(200), nullable=True),
        sa.Column("replied_why", Words(), nullable=True),
        sa.PrimaryKeyConstraint("item_id"),
    )
    create_index(f"{prefix}inbox_run", f"{prefix}inbox", ["run_id"])
    create_table(
        f"{prefix}operations",
        sa.Column("operation_id", Exact(40), nullable=False),
        sa.Column("run_id", Exact(200), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("tool", Exact(200), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("call_key", Exact(200), nullable=True),
        sa.Column("effect", Exact(16), nullable=False),
        sa.Column("args", BYTES, nullable=False),
        sa.Column("args_digest", Exact(64), nullable=False),
        sa.Column("idempotency_key", Exact(40), nullable=False),
        sa.Column("status", Exact(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("unsettled", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("token", Exact(32), nullable=False),
        sa.Column("result", BYTES, nullable=True),
        sa.Column("result_missing", sa.SmallInteger(), nullable=False),
        sa.Column("why", Words(), nullable=True),
        sa.Column("external_id", Exact(400), nullable=True),
        sa.Column("error", BYTES, nullable=True),
        sa.Column("evidence", BYTES, nullable=True),
        sa.Column("orphan_reply", Exact(16), nullable=True),
        sa.Column("born", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("parent_operation", Exact(40), nullable=True),
        sa.Column("first_started_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("horizon_at", sa.BigInteger(), nullable=True),
        sa.Column("ask_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("resolved_by", Exact(200), nullable=True),
        sa.Column("resolved_why", Words(), nullable=True),
        sa.PrimaryKeyConstraint("operation_id"),
    )
    create_index(f"{prefix}operations_run", f"{prefix}operations", ["run_id", "seq"])
    create_table(
        f"{prefix}runs",
        sa.Column("run_id", Exact(200), nullable=False),
        sa.Column("agent", Exact(200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.SmallInteger(), nullable=False),
        sa.Column("dedupe_key", Exact(200), nullable=True),
        sa.Column("input_digest", Exact(64), nullable=False),
        sa.Column("status", Exact(16), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("line_start_seq", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("next_step", Exact(200), nullable=True),
        sa.Column("output", BYTES, nullable=True),
        sa.Column("error", BYTES, nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("wakeups", sa.Integer(), nullable=False),
        sa.Column("lease_owner", Exact(100), nullable=True),
        sa.Column("lease_token", Exact(32), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queue", Exact(200), nullable=False),
        sa.Column("waiting_for", Words(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
        sa.UniqueConstraint("agent", "dedupe_key", name=f"{prefix}runs_dedupe"),
    )
    create_index(f"{prefix}runs_due", f"{prefix}runs", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))
