"""The questions of the inbox as commands show them: what is asked, about which call, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from agent_tasks.cli.invocation import program_of
from agent_tasks.cli.output import one_line, print_facts, short
from agent_tasks.clock import moment
from agent_tasks.outcomes import error_line
from agent_tasks.replying import commands
from agent_tasks.states import OperationStatus, Question
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_tasks.cli.target import Target
    from agent_tasks.inbox import InboxItem
    from agent_tasks.operations import Operation

#: What a person is asked, in words.
QUESTIONS = {
    "unknown": "did it happen?",
    "orphan": "it happened, and the run does not ask for it: keep it?",
    "conflict": "asked for again with other arguments: what now?",
    "result": "it happened, and its result could not be stored: what was it?",
    "doubled": "two requests of it succeeded",
    "refused": "it is recorded as happened, and the vendor refused it",
    "crashes": "the step lost its worker: try again?",
    "checkpoint": "the latest checkpoint does not verify: try again?",
    "steps": "the run has taken as many steps as it may: let it go on?",
    "sends": "it was sent often and did not happen: send it again?",
}


@dataclass(frozen=True)
class Shown:
    """A question as it is shown.

    Args:
        item: of the inbox.
        operation: the call that it is about, if it is about one.
        program: what the commands that answer begin with.
    """

    item: InboxItem
    operation: Operation | None
    program: str

    @property
    def words(self) -> str:
        """What is asked."""
        return f"{self.item.question!s}: {QUESTIONS[self.item.question]}"

    @property
    def tool(self) -> str | None:
        """What was called."""
        return None if self.operation is None else self.operation.tool

    @property
    def args(self) -> Any:
        """What it was called with; in a conflict the recorded arguments and those asked for now."""
        if self.item.question is Question.CONFLICT:
            return {"recorded": self.item.detail.get("recorded"), "asked": self.item.detail.get("asked")}
        operation = self.operation
        return None if operation is None else readable(lambda: operation.args)

    @property
    def called_at(self) -> str | None:
        """When the newest request of the call was begun."""
        return None if self.operation is None else moment(self.operation.started_at)

    @property
    def external_id(self) -> str | None:
        """What the vendor calls it, as far as its body came to hear of that."""
        return None if self.operation is None else self.operation.external_id

    @property
    def progress(self) -> Any:
        """How far its body came, as it has said itself."""
        operation = self.operation
        return None if operation is None else readable(lambda: operation.progress)

    @property
    def said(self) -> str:
        """What is known about it: the last that the vendor, a probe or the worker said."""
        operation, detail = self.operation, self.item.detail
        if self.item.question is Question.CRASHES:
            crashes = detail.get("crashes")
            said = f"step {detail.get('step')} lost its worker" + ("" if crashes == 1 else f" {crashes} times")
            made = [f"{one.get('seq')} ({one.get('step') or 'the input'})" for one in detail.get("checkpoints", ())]
            return said + (f"; its checkpoints: {', '.join(made)}" if made else "")
        if operation is None:
            return ", ".join(f"{name}: {value}" for name, value in detail.items())
        return one_line(readable(lambda: last_said(operation)))

    @property
    def commands(self) -> list[str]:
        """The commands that answer."""
        return commands(self.program, self.item.item_id, self.item.question)

    def facts(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            "item_id": self.item.item_id,
            "run_id": self.item.run_id,
            "question": self.item.question,
            "operation_id": self.item.operation_id,
            "replies": self.item.replies,
            "opened_at": moment(self.item.opened_at),
            "detail": self.item.detail,
            "called_at": self.called_at,
            "external_id": self.external_id,
            "progress": self.progress,
            "said": self.said,
            "commands": self.commands,
        }

    def line(self) -> tuple[object, ...]:
        """Return it as a line for scripts; a new column comes last."""
        item = self.item
        return (
            item.item_id,
            item.run_id,
            self.words,
            "|".join(map(str, item.replies)),
            moment(item.opened_at),
            self.tool,
            self.args,
            self.called_at,
            self.said,
            " | ".join(self.commands),
        )

    def print(self, *, indent: str = "") -> None:
        """Print it for a person."""
        print_facts(
            indent=indent,
            question=self.words,
            item=self.item.item_id,
            run=self.item.run_id,
            tool=self.tool,
            args=self.args,
            called_at=self.called_at,
            external_id=self.external_id,
            progress=None if self.progress is None else one_line(self.progress),
            said=self.said,
            asked_at=moment(self.item.opened_at),
        )
        click.echo(f"{indent}answer with one of:")
        for command in self.commands:
            click.echo(f"{indent}  {command}")


def questions(target: Target, items: list[InboxItem]) -> list[Shown]:
    """Return inbox items together with the calls that they are about."""
    program = program_of(click.get_current_context())
    ledger = target.runtime.ledger
    found: dict[str, Operation | None] = target.read(
        lambda connection: {
            item.operation_id: ledger.find(connection, item.operation_id) for item in items if item.operation_id
        }
    )
    return [Shown(item, found.get(item.operation_id or ""), program) for item in items]


def print_questions(shown: list[Shown], *, indent: str = "") -> None:
    """Print questions for a person."""
    for number, question in enumerate(shown):
        if number:
            click.echo()
        question.print(indent=indent)


def last_said(operation: Operation) -> str:
    """Return the last that is known about an operation."""
    if (said := last_evidence(operation)) is not None:
        return said
    if operation.error is not None:
        return said_of(operation.error)
    if operation.status is OperationStatus.SUCCEEDED:
        return f"it succeeded, with the result {short(operation.result)}"
    return "no outcome was recorded since the call began"


def last_evidence(operation: Operation) -> str | None:
    """Return the last that a late outcome, a probe or the vendor's client said about an operation."""
    if not operation.evidence:
        return None
    last = operation.evidence[-1]
    said = str(last.get("said") or "")
    what = str(last.get("what", ""))
    text = said if said and what == "unknown" else ": ".join(filter(None, (what, said)))
    if (times := last.get("times", 1)) > 1:
        text += f" ({times} times)"
    request = last.get("attempt", operation.attempts)
    return text if request == operation.attempts else f"{text} (request {request} of {operation.attempts})"


def said_of(error: dict[str, Any]) -> str:
    """Return the recorded failure of a run or a call in one line."""
    return one_line(error) if "unreadable" in error else error_line(error).removeprefix("builtins.")


def readable(read: Callable[[], Any]) -> Any:
    """Return a recorded value; one that this process cannot read must not hide the rest."""
    try:
        return read()
    except CheckpointError as error:
        return {"unreadable": str(error)}
