"""``agent db``: the ledger's tables."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agent_tasks.cli import exit_codes
from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import print_facts, print_json
from agent_tasks.database import open_engine
from agent_tasks.migrate import newest, revision, upgrade
from agent_tasks.schema import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from agent_tasks.cli.target import Target


@agent.group()
def db() -> None:
    """Create the ledger's tables and bring them up to date."""


@contextmanager
def _engine_of(target: Target) -> Iterator[Engine]:
    """Not the runtime's: that brings an SQLite ledger up to date by itself, and a look must change nothing."""
    engine = open_engine(target.settings.database_url)
    try:
        yield engine
    finally:
        engine.dispose()


@ledger_command(db, "upgrade", failed="the ledger was not upgraded")
@json_option
def upgrade_ledger(target: Target, *, as_json: bool) -> None:
    """Create the ledger's tables, or bring them up to this release; data is never deleted.

    Example: agent-tasks db upgrade --url postgresql+psycopg://host/agents
    """
    prefix = target.settings.table_prefix
    with _engine_of(target) as engine:
        before = revision(engine, prefix, "db upgrade")
        after = upgrade(engine, prefix)
    if as_json:
        print_json(before=before, after=after)
    elif before == after:
        click.echo(f"the ledger is at revision {after} already")
    else:
        click.echo(f"the ledger is at revision {after} now (before: {before or 'no tables'})")


@ledger_command(db, "status", failed="the ledger was not looked at")
@click.pass_context
@json_option
def status(context: click.Context, target: Target, *, as_json: bool) -> None:
    """Show where the ledger is and whether its tables fit this release; exits with 4 if they do not.

    Example: agent-tasks -A shop db status
    """
    prefix = target.settings.table_prefix
    with _engine_of(target) as engine:
        # SQLite makes a file where it finds none, and a look must not.
        found = revision(engine, prefix) if target.missing_file is None else None
        wanted = newest()
        facts: dict[str, Any] = {
            "url": engine.url.render_as_string(hide_password=True),
            "table_prefix": prefix,
            "revision": found,
            "newest_revision": wanted,
            "protocol": PROTOCOL,
            "up_to_date": found == wanted,
        }
    if as_json:
        print_json(**facts)
    else:
        missing = "no such ledger file" if target.missing_file is not None else "no tables"
        print_facts(**{**facts, "revision": found or missing})
    if found != wanted:
        context.exit(exit_codes.STATE)
