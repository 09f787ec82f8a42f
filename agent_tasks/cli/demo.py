"""``agent demo``: workers killed at the worst moments, on this machine."""

from __future__ import annotations

import runpy
import sys

import click

from agent_tasks.cli.group import agent


@agent.command(
    "demo",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Kill workers at the worst moments and see what the outside world got."""
    # The demo reads its own command line. By name, since it stands above this package in the order of layers.
    sys.argv = ["agent-tasks demo", *arguments]
    runpy.run_module("agent_tasks.demo", run_name="__main__")
