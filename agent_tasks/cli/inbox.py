"""``agent inbox``: the questions that wait for a person, and their answers."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

import click

from agent_tasks.cli.command import json_option, ledger_command
from agent_tasks.cli.group import agent
from agent_tasks.cli.output import is_terminal, one_line, print_json, print_lines
from agent_tasks.cli.questions import print_questions, questions
from agent_tasks.handle import RunHandle
from agent_tasks.inbox_client import InboxClient
from agent_tasks.listing import MIN_BEGINNING
from agent_tasks.states import Reply

if TYPE_CHECKING:
    from agent_tasks.cli.target import Target
    from agent_tasks.inbox import InboxItem


@agent.group()
def inbox() -> None:
    """List and answer the questions that wait for a person."""


@ledger_command(inbox, "list", failed="the inbox was not read")
@click.option(
    "--run",
    "run",
    metavar="RUN",
    help=f"Only the questions about this run (its id, or {MIN_BEGINNING} characters or more of its beginning).",
)
@json_option
def list_items(target: Target, run: str | None, *, as_json: bool) -> None:
    """List the open questions, oldest first, with what is known and the commands that answer.

    In a pipe each question is one line with tabs between: item, run, question, replies, asked at, tool, arguments,
    called at, what was said last, commands.

    Example: agent-tasks -A shop inbox list --run 3f2a
    """
    run_id = None if run is None else target.run_id(run)
    shown = questions(target, InboxClient(target.runtime).items(run_id))
    if as_json:
        print_json(items=[question.facts() for question in shown])
    elif shown and is_terminal():
        print_questions(shown)
    elif shown:
        print_lines([question.line() for question in shown])
    else:
        click.echo("No open questions.", err=True)


@ledger_command(inbox, "resolve", failed="the answer was not recorded")
@click.argument("item")
@click.argument("reply")
@click.option("--who", help="Who decides; you, by your name on this machine, if not given.")
@click.option("--why", required=True, help="The reason; kept in the audit trail.")
@click.option("--result", metavar="JSON", help="With `happened`: what the call would have returned.")
@click.option("--no-result", is_flag=True, help="With `happened`: the call would have returned nothing (null).")
@json_option
def resolve(
    target: Target,
    item: str,
    reply: str,
    who: str | None,
    why: str,
    result: str | None,
    *,
    no_result: bool,
    as_json: bool,
) -> None:
    """Answer a question; the run goes on if no other one is open.

    ITEM is the id of a question in `inbox list`, or its beginning, of 4 characters or more after `q_`. REPLY is one of the
    replies that stand beside it there: happened, did-not-happen, keep, ignore, recorded, new, retry, go-on, abort. After `happened` the step goes on with the result that you give.

    Example: agent-tasks -A shop inbox resolve q_17c2 happened --result '"sent"' --why "the mail server's log has it"
    """
    if result is not None and no_result:
        raise click.UsageError("--result and --no-result contradict each other; give one of them.")
    recorded = _parse(result)
    item_id = target.item_id(item)
    client = InboxClient(target.runtime)
    _check_result_is_said(client.item(item_id), reply, said=result is not None or no_result)
    queued = client.resolve(item_id, reply, who=who or _user(), why=why, result=recorded)
    run_id = client.item(item_id).run_id
    status = RunHandle(target.runtime, run_id).status
    if as_json:
        print_json(item_id=item_id, run_id=run_id, reply=reply, queued=queued, status=status)
        return
    click.echo(f"{item_id}: {reply}; run {run_id} is {status}")
    if no_result and reply == Reply.HAPPENED:
        click.echo("The step gets null as the call's result.", err=True)
    if queued and target.url is not None:
        click.echo("No doorbell was rung, since --url names no broker; a worker's sweeper finds the run.", err=True)


def _check_result_is_said(item: InboxItem, reply: str, *, said: bool) -> None:
    """A step that goes on with null where its tool returns a charge fails later, and far from here."""
    is_open = item.replied_by is None
    if said or not is_open or reply != Reply.HAPPENED or Reply.HAPPENED not in item.replies:
        return
    tool = item.detail.get("tool", "the tool")
    raise click.UsageError(
        f"the step will get what you give here as the result of {one_line(tool)}, and null if you give nothing: say "
        "--result JSON (what the call would have returned), or --no-result if null is right. Nothing was changed."
    )


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
