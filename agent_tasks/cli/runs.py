"""``agent runs``: where runs stand and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_tasks.awaited import waits_for
from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import (
    is_terminal,
    one_line,
    print_facts,
    print_json,
    print_lines,
    print_table,
    print_text,
)
from agent_tasks.cli.questions import last_evidence, print_questions, questions, readable, said_of
from agent_tasks.clock import moment
from agent_tasks.handle import RunHandle
from agent_tasks.promises import PROMISES
from agent_tasks.states import FINISHED, IN_DOUBT, Effect, OperationStatus, RunStatus
from checkpoint import codec

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

    from agent_tasks.cli.target import Target
    from agent_tasks.inbox import AuditEntry
    from agent_tasks.operations import Operation


@agent.group()
def runs() -> None:
    """Look at runs."""


def _run_facts(row: RowMapping, target: Target) -> dict[str, Any]:
    return {
        "run_id": row["run_id"],
        "agent": row["agent"],
        "status": row["status"],
        "step": row["next_step"],
        "waits_for": waits_for(row, target.settings.lease_seconds),
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
        "progress": readable(lambda: operation.progress),
        "args": readable(lambda: operation.args),
        "result": readable(lambda: operation.result),
        "error": readable(lambda: operation.error),
        "evidence": readable(lambda: operation.evidence),
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


def _decoded(stored: bytes | None) -> Any:
    return None if stored is None else readable(lambda: codec.loads(stored))


@ledger_command(runs, "list", failed="the runs were not listed")
@click.option("--status", type=click.Choice([str(status) for status in RunStatus]), help="Only runs that stand so.")
@click.option("--agent", "of_agent", metavar="NAME", help="Only runs of this agent.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show this many at the most.")
@json_option
def list_runs(target: Target, status: str | None, of_agent: str | None, limit: int, *, as_json: bool) -> None:
    """List the newest runs.

    In a pipe each run is one line with tabs between: run, agent, status, step, created at, what it waits for.

    Example: agent-tasks -A shop runs list --status needs_attention
    """
    wanted = None if status is None else RunStatus(status)
    found = target.read(lambda connection: target.listing.runs(connection, status=wanted, agent=of_agent, limit=limit))
    if as_json:
        print_json(runs=[_run_facts(row, target) for row in found])
        return
    lease = target.settings.lease_seconds
    rows = [
        (row["run_id"], row["agent"], row["status"], row["next_step"], moment(row["created_at"]), waits_for(row, lease))
        for row in found
    ]
    if rows and is_terminal():
        print_table(("RUN", "AGENT", "STATUS", "STEP", "CREATED", "WAITS FOR"), rows)
    elif rows:
        print_lines(rows)
    else:
        click.echo("No such runs.", err=True)


@ledger_command(runs, "show", failed="the run was not shown")
@click.argument("run")
@json_option
def show_run(target: Target, run: str, *, as_json: bool) -> None:
    """Show a run: where it stands, its operations and what each is promised, its questions, who decided what.

    RUN is a run id or its beginning, of 4 characters or more. Long values are cut; --json has all of them.

    Example: agent-tasks -A shop runs show 3f2a
    """
    run_id = target.run_id(run)
    handle = RunHandle(target.runtime, run_id)
    row = target.read(lambda connection: target.runtime.runs.find(connection, run_id))
    ending = {"output": _decoded(row["output"]), "error": _decoded(row["error"])}
    operations, audit = _as_asked_for(handle.operations()), handle.audit()
    shown = questions(target, handle.inbox())
    if as_json:
        print_json(
            run={**_run_facts(row, target), **ending},
            operations=[_operation_facts(operation) for operation in operations],
            inbox=[question.facts() for question in shown],
            audit=[_audit_facts(entry) for entry in audit],
        )
        return
    _print_run(_run_facts(row, target), **ending)
    if operations:
        click.echo("\noperations")
    for number, operation in enumerate(operations):
        if number:
            click.echo()
        _print_operation(operation, has_ended=row["status"] in FINISHED)
    if shown:
        click.echo("\nquestions")
        print_questions(shown, indent="  ")
    if audit:
        click.echo("\ndecisions")
        print_table(
            ("AT", "WHO", "WHAT", "WHY", "OPERATION"),
            [tuple(_audit_facts(entry).values()) for entry in audit],
            indent="  ",
        )
    earliest = _not_before(row, operations)
    if steps := _next_steps(row, is_fixed=earliest is not None):
        click.echo("\nnext, in Python")
        print_facts(indent="  ", **steps)
    if earliest is not None:
        date, tool = earliest
        click.echo(
            f"  resume does not shorten this wait: {one_line(tool)} is asked about or sent again at {moment(date)} at the earliest"
        )


def _as_asked_for(operations: list[Operation]) -> list[Operation]:
    """Return operations with the calls of one tool in one body in the body's own order: threads begin those of a batch in any."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, operation in enumerate(operations):
        if operation.row["ordinal"] >= 0:  # a call with a key has no place of its own
            of_body = (operation.seq, operation.row["parent_operation"], operation.tool)
            places.setdefault(of_body, []).append(place)
    ordered = list(operations)
    for taken in places.values():
        ones = sorted((operations[place] for place in taken), key=lambda operation: operation.row["ordinal"])
        for place, operation in zip(taken, ones, strict=True):
            ordered[place] = operation
    return ordered


def _not_before(row: RowMapping, operations: list[Operation]) -> tuple[int, str] | None:
    """Return the date, and its tool, that a waiting run meets again whoever resumes it; None where a resume ends the wait.

    Such a date stands in the row of an operation: its horizon, before which nobody may ask about it, or what a vendor or a
    probe has named.
    """
    if row["status"] != RunStatus.WAITING:
        return None
    dates = [(date, operation.tool) for operation in operations for date in _dates_of(operation, row["due_at"])]
    return max((found for found in dates if found[0] > row["now"]), default=None)


def _dates_of(operation: Operation, due_at: int) -> list[int]:
    if operation.status in (OperationStatus.SUCCEEDED, OperationStatus.DROPPED):
        return []
    # A key, or an effect that may be repeated, is sent again before its horizon, unless that is what its run waits for.
    asked_only = operation.status in IN_DOUBT and operation.effect in (Effect.PROBED, Effect.MANUAL)
    horizon = operation.horizon_at if asked_only or operation.horizon_at == due_at else None
    return [date for date in (horizon, operation.row["ask_at"]) if date is not None]


def _next_steps(row: RowMapping, *, is_fixed: bool) -> dict[str, str]:
    """Return what a person may do about a run that no command does: why, and the line to write."""
    status = RunStatus(row["status"])
    word, get = str(row["agent"]).rpartition(".")[2], "run" if row["task"] is None else "run_handle"
    handle, signed = f"{word}.{get}({row['run_id']!r})", "who=…, why=…"
    resumes = {
        RunStatus.FAILED: "once the cause is mended, to do its last step again",
        RunStatus.WAITING: "not to wait any longer",
        RunStatus.NEEDS_ATTENTION: "to ask what is in doubt again",
    }
    steps = {resumes[status]: f"{handle}.resume({signed})"} if status in resumes and not is_fixed else {}
    return steps if status in FINISHED else {**steps, "to end it": f"{handle}.cancel({signed})"}


def _print_run(facts: dict[str, Any], output: Any, error: Any) -> None:
    print_facts(
        **{**facts, "crashes": f"{facts['crashes']} since the last checkpoint or answer"},
        output=one_line(output) if facts["status"] == RunStatus.SUCCEEDED else None,  # null is an output too
        error=said_of(error) if error else None,
    )
    if error and error.get("traceback"):
        click.echo("\ntraceback")
        print_text(str(error["traceback"]), indent="  ")


def _print_operation(operation: Operation, *, has_ended: bool) -> None:
    facts = _operation_facts(operation)
    has_result = operation.status is OperationStatus.SUCCEEDED and not operation.row["result_missing"]
    rests = has_ended and operation.status is OperationStatus.PENDING
    is_open = operation.status in IN_DOUBT or (operation.status is OperationStatus.PENDING and not rests)
    print_facts(
        indent="  ",
        operation=operation.operation_id,
        tool=f"{operation.tool} ({operation.effect!s})",
        status=f"{operation.status!s}, and not to be done: its run has ended" if rests else operation.status,
        seq=operation.seq,
        requests=operation.attempts,
        called_at=facts["started_at"],
        args=facts["args"],
        result=one_line(facts["result"]) if has_result else None,
        error=said_of(facts["error"]) if facts["error"] else None,
        said=readable(lambda: last_evidence(operation)),
        external_id=operation.external_id,
        progress=None if facts["progress"] is None else one_line(facts["progress"]),
        promise=facts["promise"],
        after_a_crash=facts["after_crash"] if is_open else None,
    )
