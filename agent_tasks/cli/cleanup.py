"""``agent cleanup``: delete runs that ended long ago."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from agent_tasks.cleaning import clean_up
from agent_tasks.cli import exit_codes
from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import is_terminal, one_line, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_tasks.cleaning import NotDeleted
    from agent_tasks.cli.target import Target

#: Runs that could not be deleted which are named one by one; ``--json`` names all of them.
MAX_NAMED = 20


@ledger_command(agent, "cleanup", failed="the ledger was not cleaned up")
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(0, 36500),
    metavar="DAYS",
    help="Days since the runs' end; the setting agent_retention_days if not given.",
)
@click.option("--dry-run", is_flag=True, help="Say how many runs would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; a script has to say so.")
@json_option
def cleanup(target: Target, days: float | None, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete the runs that ended long ago, with everything the ledger knows about them.

    Kept are runs with an operation in doubt or an open question, and those whose keys a vendor still honours. A run that
    cannot be deleted is passed over and named, and the command then exits with 1.

    Example: agent-tasks -A shop cleanup --older-than 90 --dry-run
    """
    older_than = None if days is None else timedelta(days=days)
    left: tuple[NotDeleted, ...] = ()
    looked = clean_up(target.runtime, older_than=older_than, dry_run=True)
    count, kept = looked.deleted, looked.kept
    if count and not dry_run:
        if not yes and not is_terminal():
            raise click.UsageError(f"{count} runs would be deleted for good; say --yes, or look with --dry-run.")
        if not yes:
            click.confirm(f"Delete {count} runs for good?", abort=True)
        cleaned = clean_up(target.runtime, older_than=older_than, dry_run=False)
        count, left, kept = cleaned.deleted, cleaned.left, cleaned.kept
    if as_json and dry_run:
        print_json(would_delete=count, kept=[asdict(runs) for runs in kept])
    elif as_json:
        print_json(deleted=count, left=[asdict(run) for run in left], kept=[asdict(runs) for runs in kept])
    else:
        click.echo(f"{count} runs {'would be' if dry_run else 'were'} deleted")
        for runs in kept:
            click.echo(f"{runs.runs} that ended are kept: {runs.why}")
    if left:
        _say_what_is_left(left)
        click.get_current_context().exit(exit_codes.FAILED)


def _say_what_is_left(left: Sequence[NotDeleted]) -> None:
    click.echo(f"{len(left)} runs could not be deleted; the next cleanup tries them again:", err=True)
    for run in left[:MAX_NAMED]:
        click.echo(f"  {one_line(run.run_id)}: {one_line(run.why)}", err=True)
    if len(left) > MAX_NAMED:
        click.echo(f"  … and {len(left) - MAX_NAMED} more; --json names all of them", err=True)
