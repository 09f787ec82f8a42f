"""What was measured, as a page and as files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chart import chart
from benchmarks.variants import VARIANTS
from benchmarks.verdicts import verdicts

_PLACES = {"servers": "On PostgreSQL and a network broker", "embedded": "On the embedded default, SQLite and files"}


def write(said: Mapping[str, Any], path: Path) -> None:
    """Write a report as ``path.json``, ``path.md`` and ``path.svg``."""
    path.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(chart(said["places"]), encoding="utf-8")
    picture = f"![Steps a second beside the raw chain]({path.name}.svg)"
    path.with_suffix(".md").write_text(f"{as_markdown(said, picture)}\n", encoding="utf-8")


def as_markdown(said: Mapping[str, Any], picture: str | None = None) -> str:
    """Return the report for people.

    Args:
        said: the report.
        picture: a line that shows the chart.
    """
    lines = ["# What a step of the engine costs", "", *_circumstances(said)]
    lines += ["", picture] if picture is not None and _has(said, "speed") else []
    for place, parts in said["places"].items():
        lines += ["", f"## {_PLACES[place]}", "", f"The database's files are on: {said['disks'][place]}."]
        for part, table in _TABLES.items():
            if part in parts:
                lines += ["", *table(parts[part], said["sizes"][place])]
    judged = verdicts(said["places"])
    if judged:
        lines += ["", "## Budgets", "", *(f"- {verdict}" for verdict in judged)]
    return "\n".join(lines)


def _has(said: Mapping[str, Any], part: str) -> bool:
    return any(part in parts for parts in said["places"].values())


def _circumstances(said: Mapping[str, Any]) -> Iterator[str]:
    machine, load = dict(said["machine"]), said["load"]
    hardware = "{cpu}, {cores} cores, {memory_gib} GiB, {system}".format(**machine)
    packages = [f"{name} {machine[name]}" for name in ("celery", "kombu", "sqlalchemy", "psycopg", "redis")]
    services = [f"{name} {number}" for name, number in said["services"].items()]
    yield f"`{said['command']}`"
    yield ""
    yield "Ratios are to a raw Celery chain on the same broker, measured in turns. Other figures are this machine's."
    yield ""
    yield f"- {hardware}"
    yield f"- Python {machine['python']}, {', '.join(packages)}"
    yield f"- {', '.join(services)}"
    yield f"- load average {load['before']:g} before and {load['after']:g} after, of which this is a part"


def _speed(part: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[str]:
    yield f"{sizes['runs']} runs × {sizes['steps']} steps, the best of {sizes['rounds']}; CPU: the worker's processes."
    yield ""
    yield "| what | ratio | steps a second | CPU ms a step | ratio |"
    yield "|---|---:|---:|---:|---:|"
    for key, row in part.items():
        cpu = row["cpu_ms_per_step"], row["cpu_ratio"]
        seen = [f"{figure:.2f}" if figure is not None else "–" for figure in cpu]
        cells = [VARIANTS[key].label, f"{row['ratio']:.2f}", f"{row['steps_per_second']:,.0f}", *seen]
        yield f"| {' | '.join(cells)} |"


def _trips(part: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[str]:
    names = {"step": "a step", "effect": "+ a first attempt with an effect", "read": "+ a first attempt of a read"}
    yield "Between the process that runs steps and PostgreSQL; heartbeat, sweeper and broker are not in it."
    yield ""
    yield "| what | round trips | budget | bytes sent | bytes received |"
    yield "|---|---:|---:|---:|---:|"
    for what, row in part.items():
        sent, received = row["bytes_sent"], row["bytes_received"]
        yield f"| {names[what]} | {row['trips']:g} | ≤ {row['budget']} | {sent:,.0f} | {received:,.0f} |"


def _latency(part: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[str]:
    yield f"From an enqueue to the body of the first step, on an idle worker, {sizes['latencies']} times."
    yield ""
    yield "| what | ratio | median ms | worst ms |"
    yield "|---|---:|---:|---:|"
    for key, row in part.items():
        yield f"| {VARIANTS[key].label} | {row['ratio']:.2f} | {row['median_ms']:.1f} | {row['worst_ms']:.1f} |"


def _history(part: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[str]:
    yield f"Medians of {sizes['claims']}, by how many runs of the ledger have ended; a step calls one tool."
    yield ""
    yield "| what | finished runs | ratio | ms |"
    yield "|---|---:|---:|---:|"
    for what, rows in part.items():
        for size, row in rows.items():
            yield f"| {what} | {int(size):,} | {row['ratio']:.2f} | {row['median_ms']:.2f} |"


_TABLES = {"speed": _speed, "trips": _trips, "latency": _latency, "history": _history}
