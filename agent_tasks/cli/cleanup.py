"""``agent cleanup``: delete runs that ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from agent_tasks.cleaning import clean_up
from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import is_terminal, print_json

if TYPE_CHECKING:
    from agent_tasks.cli.target import Target


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

    Kept are runs with an operation in doubt or an open question, and those whose keys a vendor still honours.

    Example: agent-tasks -A shop cleanup --older-than 90 --dry-run
    """
    older_than = None if days is None else timedelta(days=days)
    count = clean_up(target.runtime, older_than=older_than, dry_run=True)
    if count and not dry_run:
        if not yes and not is_terminal():
            raise click.UsageError(f"{count} runs would be deleted for good; say --yes, or look with --dry-run.")
        if not yes:
            click.confirm(f"Delete {count} runs for good?", abort=True)
        count = clean_up(target.runtime, older_than=older_than, dry_run=False)
    if as_json:
        print_json(**{"would_delete" if dry_run else "deleted": count})
    else:
        click.echo(f"{count} runs {'would be' if dry_run else 'were'} deleted")
