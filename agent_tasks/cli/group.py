"""The group of commands, and which Celery app it works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.app.utils import find_app
from celery.bin.base import CLIContext, handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

from agent_tasks import __version__
from agent_tasks.cli.invocation import ledger_options, remember_app

if TYPE_CHECKING:
    from collections.abc import Callable


def _choose_app(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """Put Celery's own kind of context there; ``celery -A app agent`` has done so already."""
    if value is None and context.obj is not None:
        return
    try:
        app = None if value is None else find_app(value)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"the app {value!r} cannot be imported: there is no module {error.name!r}.") from error
    except AttributeError as error:
        raise click.UsageError(f"the app {value!r} cannot be imported: {error}.") from error
    except Exception as error:
        module = str(value).partition(":")[0]
        said = " ".join(str(error).removeprefix(f"Couldn't import {value!r}: ").split())
        raise click.UsageError(
            f"the app {value!r} cannot be imported: {type(error).__name__}: {said}\n"
            f"To see where that is raised: python -c 'import {module}'"
        ) from error
    if value is not None:
        remember_app(context, value)
    # Without a name Celery's current app is meant, which reads a celeryconfig.py in the current folder.
    context.obj = CLIContext(app=app, no_color=False, workdir=None)


def _agent(_context: click.Context, /, **_preload_options: Any) -> None:
    """Agent jobs that survive their workers: look at runs, answer their questions, keep the ledger."""


_declare: Callable[[Any], click.Group] = click.group("agent", cls=DYMGroup)
_options: tuple[Callable[[Any], Any], ...] = (
    click.version_option(__version__, message="celery-agent-tasks %(version)s"),
    click.option(
        "-A",
        "--app",
        callback=_choose_app,
        expose_value=False,
        is_eager=True,
        metavar="APP",
        help="The Celery app, as for `celery -A`; its settings name the ledger.",
    ),
    ledger_options,
)


def _make_group() -> click.Group:
    callback = click.pass_context(handle_preload_options(_agent))
    for option in _options:
        callback = option(callback)
    return _declare(callback)


agent = _make_group()


def main() -> None:
    """Run ``agent-tasks``."""
    agent(prog_name="agent-tasks", auto_envvar_prefix="AGENT_TASKS")
