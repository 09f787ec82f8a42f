"""Steps a second, and the CPU that they cost: the variants in turn, round after round, on one place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.crew import crew
from benchmarks.places import Place
from benchmarks.variants import REFERENCE, VARIANTS


@dataclass(frozen=True)
class Round:
    """One variant's turn.

    Attributes:
        steps: how many steps all runs had together.
        seconds: from the first enqueue until the last run's end was committed.
        enqueue_seconds: of these, until the last enqueue returned.
        cpu_seconds: what the worker's processes used meanwhile, if that can be seen.
    """

    steps: int
    seconds: float
    enqueue_seconds: float
    cpu_seconds: float | None


def measure(place: Place, runs: int, steps: int, rounds: int, *, warm_up: int) -> dict[str, list[Round]]:
    """Let every variant have its turn in each round, with a worker that has nothing else to do."""
    found: dict[str, list[Round]] = {key: [] for key in VARIANTS}
    for _ in range(rounds):
        for key in VARIANTS:
            found[key].append(_turn(place, key, runs, steps, warm_up))
    return found


def _turn(place: Place, key: str, runs: int, steps: int, warm_up: int) -> Round:
    with crew(place, key, warm_up=warm_up) as at_work:
        before, began = at_work.cpu_seconds(), time.monotonic()
        run_ids = at_work.start(key, runs, steps)
        enqueued = time.monotonic()
        at_work.wait_for(run_ids)
        ended, after = time.monotonic(), at_work.cpu_seconds()
    cpu = None if before is None or after is None else after - before
    return Round(runs * steps, ended - began, enqueued - began, cpu)


def summary(found: Mapping[str, Sequence[Round]], reference: str = REFERENCE) -> dict[str, dict[str, Any]]:
    """Return the best round of each variant beside that of the reference.

    Other work of the machine only ever takes time away, so the best round is the one that it disturbed least. CPU is the
    median of the rounds.

    Args:
        found: the rounds by variant.
        reference: whose figures are 1.
    """
    best = {key: max(made.steps / made.seconds for made in rounds) for key, rounds in found.items()}
    cpu = {key: _cpu_ms(rounds) for key, rounds in found.items()}
    return {
        key: {
            "steps_per_second": round(best[key], 1),
            "ratio": round(best[key] / best[reference], 3),
            "rounds": [round(made.steps / made.seconds, 1) for made in rounds],
            "enqueue_share": round(statistics.median(made.enqueue_seconds / made.seconds for made in rounds), 2),
            "cpu_ms_per_step": None if (own := cpu[key]) is None else round(own, 3),
            "cpu_ratio": None if own is None or not (base := cpu[reference]) else round(own / base, 2),
        }
        for key, rounds in found.items()
    }


def _cpu_ms(rounds: Sequence[Round]) -> float | None:
    seen = [1000 * made.cpu_seconds / made.steps for made in rounds if made.cpu_seconds is not None]
    return statistics.median(seen) if seen else None
