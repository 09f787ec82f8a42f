"""``agent observed``: what plain tasks in observe mode have done more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from sqlalchemy import case, func, or_, select

from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import is_terminal, print_json, print_lines, print_table
from agent_tasks.clock import moment

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, RowMapping
    from sqlalchemy.sql.expression import ColumnCollection

    from agent_tasks.cli.target import Target

_HEADS = ("TASK", "CALL", "STARTED", "AFTER SUCCESS", "AFTER A LOSS", "AFTER A FAILURE", "LAST", "NOT ENDED")


@ledger_command(agent, "observed", failed="what was observed was not shown")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Show this many calls at the most."
)
@click.option("--forget", is_flag=True, help="Show nothing and forget everything that was observed.")
@json_option
def observed(target: Target, limit: int, *, forget: bool, as_json: bool) -> None:
    """Show which calls of plain tasks in observe mode were begun again, and would not have been done twice.

    After success: the call had succeeded. After a loss: one had begun and not ended, since its worker died, or was still at
    work; nobody knows whether its effect had happened. After a failure: as a retry does. Not ended: the body that began last has
    not come to its end, since its worker died and nobody began it again, or is still at work.

    In a pipe each call is one line with tabs between.

    Example: celery -A shop agent observed
    """
    table, runtime = target.runtime.tables.observed, target.runtime
    if forget:
        forgotten = runtime.boundary.commit("forget", runtime.engine, lambda own: own.execute(table.delete()).rowcount)
        if as_json:
            print_json(forgotten=forgotten)
        else:
            click.echo(f"calls that were forgotten: {forgotten}")
        return
    c = table.c
    doubled, unended = c.after_success + c.after_loss, case((_unended(c), 1), else_=0)
    calls = target.read(
        lambda own: (
            own.execute(
                select(table)
                .where(or_(c.starts > 1, _unended(c)))
                .order_by(doubled.desc(), unended.desc(), c.last_at.desc(), c.call_key)
                .limit(limit)
            )
            .mappings()
            .all()
        )
    )
    summed = {
        "starts": c.starts,
        "doubled": doubled,
        "retried": c.after_failure,
        "after_success": c.after_success,
        "after_loss": c.after_loss,
        "unended": unended,
    }
    tasks = target.read(
        lambda own: (
            own.execute(
                select(
                    c.task,
                    func.count().label("calls"),
                    *(func.coalesce(func.sum(column), 0).label(name) for name, column in summed.items()),
                )
                .group_by(c.task)
                .order_by(c.task)
            )
            .mappings()
            .all()
        )
    )
    if as_json:
        print_json(tasks=[_plain(row) for row in tasks], calls=[_facts(row) for row in calls])
        return
    for row in tasks:
        click.echo(
            f"{row['task']}: calls: {row['calls']}; begun again after success: {row['after_success']}, after a loss: "
            f"{row['after_loss']}, after a failure: {row['retried']}; begun and not ended: {row['unended']}",
            err=not is_terminal(),
        )
    if not tasks:
        click.echo("Nothing was observed: no task with agent_mode='observe' has run.", err=True)
    rows = [tuple(_facts(row).values()) for row in calls]
    if rows and is_terminal():
        print_table(_HEADS, rows)
    else:
        print_lines(rows)


def _unended(columns: ColumnCollection[str, Column[Any]]) -> ColumnElement[bool]:
    return columns.state == "running"


def _plain(row: RowMapping) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else int(value) for name, value in row.items()}


def _facts(row: RowMapping) -> dict[str, Any]:
    names = ("task", "call", "starts", "after_success", "after_loss", "after_failure")
    unended = int(row["state"] == "running")
    return {**{name: row[name] for name in names}, "last_at": moment(row["last_at"]), "unended": unended}
