"""``agent inbox``: the questions that wait for a person, and their answers."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

import click

from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import moment, print_json, print_table
from agent_tasks.handle import RunHandle
from agent_tasks.inbox_client import InboxClient

if TYPE_CHECKING:
    from agent_tasks.cli.target import Target
    from agent_tasks.inbox import InboxItem

#: What a person is asked, in words.
QUESTIONS = {
    "unknown": "did it happen?",
    "orphan": "it happened, and the run does not ask for it: keep it?",
    "conflict": "asked for again with other arguments: what now?",
    "result": "it happened, and its result could not be stored: what was it?",
    "doubled": "two requests of it succeeded",
    "crashes": "the step lost its worker too often: try again?",
    "checkpoint": "the latest checkpoint does not verify: try again?",
}


@agent.group()
def inbox() -> None:
    """List and answer the questions that wait for a person."""


def item_facts(item: InboxItem) -> dict[str, Any]:
    """Return an item as ``--json`` prints it."""
    return {
        "item_id": item.item_id,
        "run_id": item.run_id,
        "question": item.question,
        "operation_id": item.operation_id,
        "replies": item.replies,
        "opened_at": moment(item.opened_at),
        "detail": item.detail,
    }


def print_items(items: list[InboxItem], *, indent: str = "") -> None:
    """Print items as a table."""
    print_table(
        ("ITEM", "RUN", "QUESTION", "REPLIES", "OPENED", "ABOUT"),
        [
            (
                item.item_id,
                item.run_id,
                f"{item.question!s}: {QUESTIONS[item.question]}",
                "|".join(map(str, item.replies)),
                moment(item.opened_at),
                item.detail,
            )
            for item in items
        ],
        indent=indent,
    )


@ledger_command(inbox, "list", failed="the inbox was not read")
@click.option("--run", "run", metavar="RUN", help="Only the questions about this run (id or its beginning).")
@json_option
def list_items(target: Target, run: str | None, *, as_json: bool) -> None:
    """List the open questions, oldest first.

    Example: agent-tasks -A shop inbox list --run 3f2a
    """
    run_id = None if run is None else target.run_id(run)
    items = InboxClient(target.runtime).items(run_id)
    if as_json:
        print_json(items=[item_facts(item) for item in items])
    elif items:
        print_items(items)
    else:
        click.echo("No open questions.", err=True)


@ledger_command(inbox, "resolve", failed="the answer was not recorded")
@click.argument("item")
@click.argument("reply")
@click.option("--who", help="Who decides; you, by your name on this machine, if not given.")
@click.option("--why", required=True, help="The reason; kept in the audit trail.")
@click.option("--result", metavar="JSON", help="With `happened`: what the tool would have returned.")
@json_option
def resolve(
    target: Target, item: str, reply: str, who: str | None, why: str, result: str | None, *, as_json: bool
) -> None:
    """Answer a question; the run goes on if no other one is open.

    ITEM is an id of `inbox list` or its beginning, REPLY one of the replies that stand beside it.

    Example: agent-tasks -A shop inbox resolve q_17 happened --why "the mail server's log has it"
    """
    recorded = _parse(result)
    item_id = target.item_id(item)
    client = InboxClient(target.runtime)
    queued = client.resolve(item_id, reply, who=who or _user(), why=why, result=recorded)
    run_id = client.item(item_id).run_id
    status = RunHandle(target.runtime, run_id).status
    if as_json:
        print_json(item_id=item_id, run_id=run_id, reply=reply, queued=queued, status=status)
        return
    click.echo(f"{item_id}: {reply}; run {run_id} is {status}")
    if queued and target.url is not None:
        click.echo("No doorbell was rung, since --url names no broker; a worker's sweeper finds the run.", err=True)


def _parse(result: str | None) -> Any:
    try:
        return None if result is None else json.loads(result)
    except ValueError as error:
        raise click.BadParameter(f"{result!r} is no JSON ({error}); a text needs its quotes: '\"ch_1\"'.") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user without a name
        raise click.UsageError("this user has no name here; say who decides with --who.") from None
