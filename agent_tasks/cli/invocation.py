"""How these commands were called: the options that name a ledger, and what the next command begins with."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Under these names the contexts of a group and its commands share what was given, the innermost last.
_APP, _URL, _TABLE_PREFIX = "agent_tasks.app", "agent_tasks.url", "agent_tasks.table_prefix"


def remember_app(context: click.Context, name: str) -> None:
    """Keep the name of the app, as it was given."""
    context.meta[_APP] = name


def url_of(context: click.Context) -> str | None:
    """Return the URL of the ledger, if one was given."""
    url: str | None = context.meta.get(_URL)
    return url


def table_prefix_of(context: click.Context) -> str | None:
    """Return the prefix of the ledger's tables, if one was given."""
    prefix: str | None = context.meta.get(_TABLE_PREFIX)
    return prefix


def ledger_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a ledger without an app; the group has them as well as each of its commands."""
    prefix = click.option(
        "--table-prefix",
        metavar="PREFIX",
        expose_value=False,
        callback=_remember,
        help="With --url: what its tables' names start with.",
    )
    url = click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The ledger's SQLAlchemy URL, instead of an app's setting.",
    )
    return url(prefix(function))


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[f"agent_tasks.{option.name}"] = value


def program_of(context: click.Context) -> str:
    """Return what the next command on the same ledger begins with, up to the name of the group.

    Args:
        context: of the command that was called.
    """
    root = context.find_root()
    app = root.params.get("app") or context.meta.get(_APP)  # Celery keeps its own -A there
    words = ["-A", app] if isinstance(app, str) else []
    words = ["agent-tasks", *words] if root.info_name == "agent-tasks" else ["celery", *words, "agent"]
    url, prefix = url_of(context), table_prefix_of(context)
    words += [] if url is None else ["--url", _without_password(url)]
    words += [] if prefix is None else ["--table-prefix", prefix]
    return shlex.join(words)


def _without_password(url: str) -> str:
    """Terminals are logged and shared; who gave the password can give it again."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return url
    return url if parsed.password is None else parsed.render_as_string(hide_password=True)
