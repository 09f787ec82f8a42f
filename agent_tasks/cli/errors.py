"""Errors as a person at a terminal reads them: what happened, why, and the next command."""

from __future__ import annotations

import re
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from agent_tasks.cli import exit_codes
from agent_tasks.cli.invocation import program_of, url_of
from agent_tasks.cli.output import one_line
from agent_tasks.errors import (
    AgentTasksError,
    AnswerNotAllowed,
    AnswerTooLate,
    ConfigurationError,
    InboxItemNotFound,
    LedgerUnavailable,
    RunNotFound,
    SchemaMissing,
)
from checkpoint.errors import CheckpointNotFound, UnknownStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class AmbiguousId(AgentTasksError):
    """More than one id begins so."""


class BeginningTooShort(AgentTasksError):
    """Too few characters of an id to stand for it."""


class NoSuchLedgerFile(AgentTasksError):
    """There is no such ledger file."""


#: The first that fits: kind of error, exit code, and the command that helps.
_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (AmbiguousId, exit_codes.USAGE, "the same command with more characters of the id"),
    (BeginningTooShort, exit_codes.USAGE, "the same command with more characters of the id"),
    (RunNotFound, exit_codes.NOT_FOUND, "{program} runs list"),
    (InboxItemNotFound, exit_codes.NOT_FOUND, "{program} inbox list"),
    (AnswerNotAllowed, exit_codes.STATE, "{program} inbox list"),
    (AnswerTooLate, exit_codes.STATE, "{program} inbox list"),
    (NoSuchLedgerFile, exit_codes.STATE, "{program} db upgrade, if a new ledger is meant to be there"),
    (SchemaMissing, exit_codes.STATE, "{program} db upgrade"),
    (ConfigurationError, exit_codes.USAGE, "{program} --help"),
    (LedgerUnavailable, exit_codes.UNREACHABLE, "{program} db status"),
    (CheckpointNotFound, exit_codes.NOT_FOUND, "the same command with the number of a checkpoint that is there"),
    (UnknownStore, exit_codes.USAGE, "{program} checkpoints reseal --help"),
    (Exception, exit_codes.FAILED, "the same command with --verbose"),
)


@contextmanager
def reported(context: click.Context, failed: str, *, verbose: bool) -> Iterator[None]:
    """Turn an exception into three lines on stderr and an exit code; its traceback is for ``--verbose``.

    Args:
        context: of the command.
        failed: what did not happen, in words.
        verbose: show the traceback too.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BrokenPipeError:  # whoever read along has seen enough, as `head` has; Click ends in silence, with 1
        raise
    except Exception as error:  # noqa: BLE001 - a terminal is the end of the line
        code, step = next((code, step) for kind, code, step in _KINDS if isinstance(error, kind))
        if verbose:
            click.echo("".join(traceback.format_exception(error)), err=True)
        why = str(error) if isinstance(error, AgentTasksError) else f"{type(error).__name__}: {error}"
        click.echo(f"Error: {failed}.", err=True)
        program = program_of(context)
        why = why.replace("celery -A yourapp agent", program)  # the engine cannot know how it was called
        click.echo(f"  why:  {one_line(why)}", err=True)
        if isinstance(error, LedgerUnavailable) and context.command_path.endswith((" db status", " db upgrade")):
            step = "the same command, once what is said above is mended"
        setting = re.match(r"agent_\w+", str(error)) if isinstance(error, ConfigurationError) else None
        if isinstance(error, ConfigurationError) and error.cure is not None:
            step = error.cure.replace("{", "{{").replace("}", "}}")
        elif setting is not None and url_of(context) is None:
            name = setting.group()
            step = (
                f"set {name} right where the app reads its settings; the celeryconfig.py of this project takes it from "
                f"{name.upper()} in the environment"
            )
        click.echo(f"  next: {step.format(program=program)}", err=True)
        context.exit(code)
