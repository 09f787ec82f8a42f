"""What every command on a ledger shares: its options, and errors as three lines."""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from agent_tasks.cli.errors import reported
from agent_tasks.cli.invocation import ledger_options, table_prefix_of, url_of
from agent_tasks.cli.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable


def ledger_command(group: click.Group, name: str, *, failed: str) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of a group.

    Args:
        group: where it belongs.
        name: of the command.
        failed: what did not happen, as an error of it begins.

    Returns:
        A decorator for a function that gets the :class:`Target` and the command's own options by name.
    """

    def declare(function: Callable[..., None]) -> click.Command:
        def run(verbose: bool, **options: Any) -> None:
            context = click.get_current_context()
            with (
                reported(context, failed, verbose=verbose),
                closing(Target(context.obj.app, url_of(context), table_prefix_of(context))) as target,
            ):
                function(target, **options)

        functools.update_wrapper(run, function)  # its help and its own options
        add_verbose = click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
        command: click.Command = group.command(name, cls=CeleryCommand)(ledger_options(add_verbose(run)))
        return command

    return declare


def json_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)
