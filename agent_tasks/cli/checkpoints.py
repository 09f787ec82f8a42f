"""``agent checkpoints``: work on checkpoints in files, outside any ledger."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from agent_tasks.cli import exit_codes
from agent_tasks.cli.errors import reported
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import one_line
from checkpoint import FileStore, reseal
from checkpoint.opening import directory_of


@agent.group()
def checkpoints() -> None:
    """Work on the checkpoints of a file store (file:///directory), which belong to no ledger."""


@checkpoints.command("reseal", cls=CeleryCommand)
@click.argument("run_id", metavar="RUN")
@click.argument("seq", type=click.IntRange(min=0))
@click.option("--store", "url", metavar="URL", required=True, help="The store, as file:///directory.")
@click.option("--reason", metavar="TEXT", required=True, help="Why it was edited; kept in the file.")
@click.option("--line", type=click.IntRange(min=0), help="Its line; the one that the run stands on if not given.")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
def reseal_checkpoint(*, run_id: str, seq: int, url: str, reason: str, line: int | None, verbose: bool) -> None:
    """Sign checkpoint SEQ of RUN anew, whose file was edited by hand.

    Until then it counts as damaged, and the run falls back to the one before it.

    Example: agent-tasks checkpoints reseal order-7 3 --store file:///srv/checkpoints --reason "the cart was wrong"
    """
    context = click.get_current_context()
    with reported(context, "the checkpoint was not sealed anew", verbose=verbose):
        directory = directory_of(url)
        if not directory.is_dir():  # opening it would make it
            raise click.UsageError(f"there is no folder {directory}")
        position = reseal(FileStore(directory), run_id, seq, reason=reason, line=line)
        if position is None:
            click.echo(f"checkpoint {seq} of run {one_line(run_id)} was not edited: its checksum fits", err=True)
            context.exit(exit_codes.STATE)
        click.echo(f"checkpoint {seq} (line {position.line}) of run {one_line(run_id)} is sealed anew")
