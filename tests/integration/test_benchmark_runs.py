"""The speed benchmark runs on real workers, and what it counts does not depend on how busy the machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.places import ROOT
from tests.services import URL_VARIABLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def measured(*options: str, **environ: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / "engine.py"), "--quick", "--json", *options]
    done = subprocess.run(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def test_trips_and_latency_on_servers(postgres_server: str, redis_server: str) -> None:
    said = measured(
        *("--place", "servers", "--only", "trips", "--only", "latency"),
        **{URL_VARIABLES["postgresql"]: postgres_server, URL_VARIABLES["redis"]: redis_server},
    )
    parts = said["places"]["servers"]
    assert list(said["places"]) == ["servers"]
    assert list(parts) == ["trips", "latency"]
    assert {what: said["budget"] for what, said in parts["trips"].items()} == {"step": 3, "effect": 2, "read": 1}
    for counted in parts["trips"].values():
        assert counted["trips"] > 0, parts
        assert counted["trips"] == int(counted["trips"]), "each step in the middle of a run makes as many"
        assert counted["bytes_sent"] > 0
        assert counted["bytes_received"] > 0
    assert parts["latency"]["raw"]["ratio"] == 1
    assert parts["latency"]["steps"]["median_ms"] > 0
    assert [budget["measured"] for budget in said["budgets"]] == [row["trips"] for row in parts["trips"].values()]
    assert {"PostgreSQL", "cores"} <= said["services"].keys() | said["machine"].keys()


def test_speed_and_history_on_the_embedded_default(tmp_path: Path) -> None:
    report = tmp_path / "found"
    said = measured("--place", "embedded", "--only", "speed", "--only", "history", "--report", str(report))
    parts = said["places"]["embedded"]
    best = {key: row["steps_per_second"] for key, row in parts["speed"].items()}
    assert parts["speed"]["raw"]["ratio"] == 1
    assert parts["speed"]["steps"]["ratio"] == pytest.approx(best["steps"] / best["raw"], abs=0.01)
    assert {what: list(sizes) for what, sizes in parts["history"].items()} == {
        "claim": ["0", "500"],
        "step": ["0", "500"],
        "sweep": ["0", "500"],
    }
    assert json.loads(report.with_suffix(".json").read_text()) == said
    assert all(report.with_suffix(suffix).stat().st_size for suffix in (".md", ".svg"))
