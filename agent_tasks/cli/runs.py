"""``agent runs``: where runs stand and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.inbox import item_facts, print_items
from agent_tasks.cli.output import moment, print_facts, print_json, print_table
from agent_tasks.handle import RunHandle
from agent_tasks.promises import PROMISES
from agent_tasks.states import RunStatus
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import RowMapping

    from agent_tasks.cli.target import Target
    from agent_tasks.inbox import AuditEntry
    from agent_tasks.operations import Operation


@agent.group()
def runs() -> None:
    """Look at runs."""


def waits_for(row: RowMapping) -> str | None:
    """Return what an unfinished run waits for, in words (I9)."""
    due = moment(row["due_at"])
    return {
        RunStatus.QUEUED: f"for a worker on queue {row['queue']!r}",
        RunStatus.RUNNING: f"for step {row['next_step']!r}; the lease of worker {row['lease_owner']} ends at {due}",
        RunStatus.WAITING: f"{row['waiting_for']}; wakes at {due}",
        RunStatus.NEEDS_ATTENTION: f"for a person: {row['waiting_for']}",
    }.get(RunStatus(row["status"]))


def _run_facts(row: RowMapping) -> dict[str, Any]:
    return {
        "run_id": row["run_id"],
        "agent": row["agent"],
        "status": row["status"],
        "step": row["next_step"],
        "waits_for": waits_for(row),
        "seq": row["seq"],
        "attempts": row["attempts"],
        "crashes": row["crashes"],
        "dedupe_key": row["dedupe_key"],
        "created_at": moment(row["created_at"]),
        "updated_at": moment(row["updated_at"]),
        "finished_at": moment(row["finished_at"]),
    }


def _operation_facts(operation: Operation) -> dict[str, Any]:
    words = PROMISES[operation.effect]
    return {
        "operation_id": operation.operation_id,
        "seq": operation.seq,
        "tool": operation.tool,
        "effect": operation.effect,
        "status": operation.status,
        "attempts": operation.attempts,
        "external_id": operation.external_id,
        "args": _readable(lambda: operation.args),
        "result": _readable(lambda: operation.result),
        "error": _readable(lambda: operation.error),
        "evidence": _readable(lambda: operation.evidence),
        "started_at": moment(operation.started_at),
        "horizon_at": moment(operation.horizon_at),
        "promise": words.promise,
        "after_crash": words.after_crash,
    }


def _audit_facts(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": moment(entry.at),
        "who": entry.who,
        "what": entry.what,
        "why": entry.why,
        "operation_id": entry.operation_id,
    }


def _readable(read: Callable[[], Any]) -> Any:
    """A value that this process cannot read must not hide the run."""
    try:
        return read()
    except CheckpointError as error:
        return {"unreadable": str(error)}


def _decoded(stored: bytes | None) -> Any:
    return None if stored is None else _readable(lambda: codec.loads(stored))


@ledger_command(runs, "list", failed="the runs were not listed")
@click.option("--status", type=click.Choice([str(status) for status in RunStatus]), help="Only runs that stand so.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show this many at the most.")
@json_option
def list_runs(target: Target, status: str | None, limit: int, *, as_json: bool) -> None:
    """List the newest runs.

    Example: agent-tasks -A shop runs list --status needs_attention
    """
    wanted = None if status is None else RunStatus(status)
    rows = target.read(lambda connection: target.listing.runs(connection, status=wanted, limit=limit))
    if as_json:
        print_json(runs=[_run_facts(row) for row in rows])
    elif rows:
        print_table(
            ("RUN", "AGENT", "STATUS", "STEP", "CREATED", "WAITS"),
            [
                (
                    row["run_id"],
                    row["agent"],
                    row["status"],
                    row["next_step"],
                    moment(row["created_at"]),
                    waits_for(row),
                )
                for row in rows
            ],
        )
    else:
        click.echo("No such runs.", err=True)


@ledger_command(runs, "show", failed="the run was not shown")
@click.argument("run")
@json_option
def show_run(target: Target, run: str, *, as_json: bool) -> None:
    """Show a run: where it stands, its operations and what each is promised, its questions, who decided what.

    RUN is a run id or its beginning.

    Example: agent-tasks -A shop runs show 3f2a
    """
    run_id = target.run_id(run)
    handle = RunHandle(target.runtime, run_id)
    row = target.read(lambda connection: target.runtime.runs.find(connection, run_id))
    ending = {"output": _decoded(row["output"]), "error": _decoded(row["error"])}
    operations, items, audit = handle.operations(), handle.inbox(), handle.audit()
    if as_json:
        print_json(
            run={**_run_facts(row), **ending},
            operations=[_operation_facts(operation) for operation in operations],
            inbox=[item_facts(item) for item in items],
            audit=[_audit_facts(entry) for entry in audit],
        )
        return
    print_facts(**_run_facts(row), **ending)
    if operations:
        click.echo("\noperations")
        shown = ("operation_id", "seq", "tool", "effect", "status", "attempts", "promise", "after_crash")
        print_table(
            tuple(name.replace("_", " ").upper() for name in shown),
            [[_operation_facts(operation)[name] for name in shown] for operation in operations],
            indent="  ",
        )
    if items:
        click.echo("\nquestions")
        print_items(items, indent="  ")
    if audit:
        click.echo("\ndecisions")
        print_table(
            ("AT", "WHO", "WHAT", "WHY", "OPERATION"),
            [tuple(_audit_facts(entry).values()) for entry in audit],
            indent="  ",
        )
