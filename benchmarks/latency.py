"""How long an idle worker takes from an enqueue to the body of the run's first step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.crew import crew
from benchmarks.places import Place
from benchmarks.variants import REFERENCE


def measure(place: Place, times: int, *, warm_up: int) -> dict[str, list[float]]:
    """Start one run at a time, of the reference and of the engine in turns, and wait for its body.

    Returns:
        The seconds of each run, by variant.
    """
    found: dict[str, list[float]] = {REFERENCE: [], "steps": []}
    with crew(place, REFERENCE, warm_up=warm_up) as raw, crew(place, "steps", warm_up=warm_up) as steps:
        for _ in range(times):
            for key, at_work in ((REFERENCE, raw), ("steps", steps)):
                began = time.monotonic()
                (run_id,) = at_work.start(key, 1, 1)
                found[key].append(at_work.wait_for([run_id])[run_id] - began)
    return found


def summary(found: Mapping[str, Sequence[float]], reference: str = REFERENCE) -> dict[str, dict[str, Any]]:
    """Return the median of each variant in milliseconds, and how many times that of the reference it is."""
    median = {key: statistics.median(seconds) for key, seconds in found.items()}
    return {
        key: {
            "median_ms": round(1000 * median[key], 2),
            "worst_ms": round(1000 * max(seconds), 2),
            "ratio": round(median[key] / median[reference], 2),
        }
        for key, seconds in found.items()
    }
