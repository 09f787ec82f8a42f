"""A backlog in full: `python -m tests.backlog [--runs N] [--database URL]`.

Runs are enqueued as a caller does it. A worker that sweeps and works on no step has an hour of injected time; then one that
works comes, and every run has to finish. The tests do the same with fewer runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import closing

from agent_tasks import done
from agent_tasks.folders import HeldFolder
from agent_tasks.sweeper import Sweeper
from tests.one_process import OneProcess

HOUR_SECONDS, PAUSE_SECONDS = 3600, 60
MOST_DOORBELLS = 1.5  # for each run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backlog", description="Let a backlog wait, then finish it.")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--database", metavar="URL", help="an empty one; an SQLite file if not given")
    options = parser.parse_args()
    with (
        HeldFolder() as folder,
        closing(OneProcess(options.database or f"sqlite:///{folder}/agent.db")) as here,
    ):
        return backlog(here, options.runs)


def backlog(here: OneProcess, count: int) -> int:
    order = here.agent(pay=lambda state: done(state["n"]))
    begun = time.monotonic()
    for number in range(count):
        order.enqueue({"n": number}, run_id=f"run-{number}")
    print(f"{count:,} runs enqueued in {time.monotonic() - begun:.0f} s", flush=True)

    sweeper = Sweeper(here.runtime)
    for _ in range(HOUR_SECONDS // PAUSE_SECONDS):
        here.runtime.clock.advance(PAUSE_SECONDS)
        sweeper.sweep()
    rings = here.runtime.bell.rings  # type: ignore[attr-defined]
    doorbells = len(rings) / count
    print(f"after an hour that nobody works: {doorbells:.3f} doorbells a run", flush=True)

    begun = time.monotonic()
    here.work(order)
    table = here.runtime.tables.runs
    with here.runtime.engine.connect() as connection:
        statuses = Counter(row.status for row in connection.execute(table.select()))
    print(f"then a worker came: {dict(statuses)} in {time.monotonic() - begun:.0f} s")
    return 0 if statuses == {"succeeded": count} and doorbells <= MOST_DOORBELLS else 1


if __name__ == "__main__":
    sys.exit(main())
