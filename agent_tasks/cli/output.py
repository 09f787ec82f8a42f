"""What commands print: tables for people, lines for scripts, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of the objects that ``--json`` prints; counts up when a field changes its meaning or goes.
JSON_VERSION = 1

#: Longest value in a cell of a table, in characters; JSON has all of it.
MAX_CELL_LENGTH = 120

#: Longest value that stands on a line of its own, in characters.
MAX_VALUE_LENGTH = 1_000


def one_line(value: object) -> str:
    r"""Return a value as one line that does nothing to a terminal; what people and models wrote may hold anything.

    Example:
        >>> one_line("red\x1b[31m\nalert")
        'red\\x1b[31m\\nalert'
    """
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short(value: object, longest: int = MAX_VALUE_LENGTH) -> str:
    """Return a value as one line of at most ``longest`` characters.

    Example:
        >>> short({"cents": 600}, 10)
        '{"cents":…'
    """
    text = one_line(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def plain(value: Any) -> Any:
    """Return a recorded value in JSON's own types; what JSON has no word for becomes its text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def print_json(**fields: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(plain({"version": JSON_VERSION, **fields}), indent=2))


def is_terminal() -> bool:
    """Tell whether a person reads along; a pipe gets lines for scripts."""
    return sys.stdout.isatty()


def print_lines(rows: Sequence[Sequence[object]]) -> None:
    """Print a line for each row, with tabs between its values: what scripts cut."""
    for row in rows:
        click.echo("\t".join("" if value is None else short(value) for value in row))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, indent: str = "") -> None:
    """Print rows under their heads."""
    cells = [["" if value is None else short(value, MAX_CELL_LENGTH) for value in row] for row in rows]
    lines = [list(heads), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        click.echo(indent + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_facts(*, indent: str = "", **facts: object) -> None:
    """Print names and values under each other, without those that have none."""
    shown = {f"{name.replace('_', ' ')}:": value for name, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{indent}{name.ljust(width)}  {short(value)}")


def print_text(text: str, *, indent: str = "") -> None:
    """Print a text line by line."""
    for line in text.splitlines():
        click.echo(indent + one_line(line))
