"""What the speed benchmark makes of its figures: ratios, verdicts and pages; and that its meter counts what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psycopg
import pytest

from agent_tasks.testing import check_invariants
from benchmarks import history, latency, report, speed
from benchmarks.engine import FULL, PARTS
from benchmarks.history import FilledLedger
from benchmarks.speed import Round
from benchmarks.variants import REFERENCE, VARIANTS
from benchmarks.verdicts import verdicts
from benchmarks.wire import STEPS, Traffic, metered

SPEEDS = {
    "raw": [Round(100, 1.0, 0.1, 0.2), Round(100, 0.5, 0.1, 0.4), Round(100, 2.0, 0.1, 0.3)],
    "steps": [Round(100, 1.0, 0.5, 0.6), Round(100, 4.0, 1.0, 0.6), Round(100, 2.0, 1.0, 0.9)],
    "effect": [Round(100, 2.5, 0.5, None), Round(100, 5.0, 0.5, None), Round(100, 4.0, 0.5, None)],
}


def test_a_ratio_is_that_of_the_best_rounds() -> None:
    said = speed.summary(SPEEDS)
    assert {key: row["steps_per_second"] for key, row in said.items()} == {"raw": 200, "steps": 100, "effect": 40}
    assert {key: row["ratio"] for key, row in said.items()} == {"raw": 1, "steps": 0.5, "effect": 0.2}
    assert said["steps"]["rounds"] == [100, 25, 50]


def test_cpu_is_the_median_of_the_rounds_and_none_where_nobody_can_see_it() -> None:
    said = speed.summary(SPEEDS)
    assert {key: row["cpu_ms_per_step"] for key, row in said.items()} == {"raw": 3, "steps": 6, "effect": None}
    assert {key: row["cpu_ratio"] for key, row in said.items()} == {"raw": 1, "steps": 2, "effect": None}


def test_latency_and_history_are_ratios_of_medians() -> None:
    waited = latency.summary({"raw": [0.01, 0.02, 0.9], "steps": [0.05, 0.03, 0.04]})
    assert waited["steps"] == {"median_ms": 40, "worst_ms": 50, "ratio": 2}
    took = history.summary({"claim": {10_000: [0.003, 0.004, 0.9], 0: [0.002, 0.001, 0.002]}})
    assert took == {"claim": {"10000": {"median_ms": 4, "ratio": 2}, "0": {"median_ms": 2, "ratio": 1}}}


def made_up() -> dict[str, Any]:
    """A report of figures that nobody measured."""
    trip = {"bytes_sent": 900.0, "bytes_received": 400.0}
    parts = {
        "speed": speed.summary({**SPEEDS, "effect": [Round(100, 1.0, 0.5, 0.5)]}),
        "trips": {
            "step": {"trips": 3.0, **trip, "budget": 3},
            "effect": {"trips": 2.5, **trip, "budget": 2},
            "read": {"trips": 1.0, **trip, "budget": 1},
        },
        "latency": latency.summary({"raw": [0.01], "steps": [0.02]}),
        "history": history.summary({"claim": {0: [0.002], 500: [0.003]}, "sweep": {0: [0.002], 500: [0.004]}}),
    }
    machine = {"cpu": "Z80", "cores": 2, "memory_gib": 0.1, "system": "CP/M", "python": "3.10"}
    return {
        "command": "python benchmarks/engine.py",
        "machine": {**machine, **dict.fromkeys(("celery", "kombu", "sqlalchemy", "psycopg", "redis"), "1")},
        "services": {"PostgreSQL": "18", "Valkey": "9"},
        "disks": {"servers": "tmpfs", "embedded": "ext4"},
        "load": {"before": 0.5, "after": 2.5},
        "sizes": {name: vars(size) for name, size in FULL.items()},
        "places": {"servers": parts, "embedded": {"speed": parts["speed"]}},
        "budgets": [],
    }


def test_each_budget_is_judged_and_the_embedded_default_has_none_for_speed() -> None:
    judged = {verdict.what: verdict.holds for verdict in verdicts(made_up()["places"])}
    assert judged == {
        "steps without a tool": False,
        "steps with one recorded effect": True,
        "round trips of a step": True,
        "round trips of a first attempt with an effect": False,
        "round trips of a first attempt of a read": True,
        "claim with 500 finished runs": True,
        "sweep with 500 finished runs": False,
    }


def test_a_report_is_a_page_that_shows_its_chart_and_the_figures_as_they_are(tmp_path: Path) -> None:
    said = made_up()
    report.write(said, tmp_path / "found")
    assert json.loads((tmp_path / "found.json").read_text())["places"] == said["places"]
    page = (tmp_path / "found.md").read_text()
    assert "![Steps a second beside the raw chain](found.svg)" in page
    assert "| steps without a tool | 0.50 | 100 | 6.00 | 2.00 |" in page
    assert "Z80, 2 cores" in page
    assert "The database's files are on: ext4." in page
    assert "- servers: round trips of a first attempt with an effect: 2.5 (≤ 2) MISSED" in page
    bars = ET.parse(tmp_path / "found.svg").findall(".//{*}rect")
    assert [bar.get("width") for bar in bars[1:]] == ["360.0", "180.0", "180.0"] * 2


def test_the_reference_comes_first_and_every_variant_says_what_it_is() -> None:
    assert next(iter(VARIANTS)) == REFERENCE
    assert len({variant.label for variant in VARIANTS.values()}) == len(VARIANTS)
    assert list(PARTS) == ["speed", "trips", "latency", "history"]


def test_a_round_trip_is_what_waits_for_an_answer_however_many_statements_it_has(
    postgres_database: Callable[[], str],
) -> None:
    with metered(postgres_database()) as (meter, url):
        through = url.replace("+psycopg", "")
        with psycopg.connect(through, autocommit=True, application_name=STEPS) as connection:
            before = meter.traffic()
            connection.execute("SELECT 1")
            one = meter.traffic() - before
            with connection.pipeline():
                for number in range(5):
                    connection.execute("SELECT %s", [number])
            five = meter.traffic() - before
        assert (one.trips, five.trips) == (1, 2)
        assert one.sent > len("SELECT 1")
        assert one.received > 0


def test_connections_of_others_are_not_counted(postgres_database: Callable[[], str]) -> None:
    with metered(postgres_database()) as (meter, url):
        with psycopg.connect(url.replace("+psycopg", ""), application_name="parent") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert meter.traffic() == Traffic()


@pytest.fixture
def filled(database_url: str) -> Any:
    ledger = FilledLedger(database_url, 30)
    yield ledger
    ledger.close()


def test_a_ledger_is_filled_with_whole_runs_that_have_ended(filled: FilledLedger) -> None:
    runtime = filled.runtime
    runs, operations = runtime.tables.runs, runtime.tables.operations
    with runtime.engine.connect() as connection:
        ended = connection.execute(runs.select().where(runs.c.status == "succeeded")).mappings().all()
        calls = connection.execute(operations.select()).mappings().all()
        broken = {violation.invariant for violation in check_invariants(connection)}
    newest = [runtime.store.head(run["run_id"]) for run in ended]
    assert len(ended) == len({run["run_id"] for run in ended}) == len(calls) == 31
    assert {call["run_id"] for call in calls} == {run["run_id"] for run in ended}
    assert {None if head is None else head.seq for head in newest} == {1}
    assert broken == {"I4"}  # the ids of copied operations follow from nothing


def test_a_claim_is_a_part_of_its_step_and_a_sweep_finds_what_is_due(filled: FilledLedger) -> None:
    took = filled.step()
    assert 0 < took["claim"] < took["step"]
    assert filled.sweep()["sweep"] > 0
