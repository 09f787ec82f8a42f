"""A worker that carries the chain of one variant, and its caller."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_tasks.demo.supervisor import Supervised
from agent_tasks.migrate import upgrade
from benchmarks.notes import Notes
from benchmarks.places import NOTES_VARIABLE, ROOT, VARIANTS_VARIABLE, Place
from benchmarks.variants import ALL, Chain

#: Long enough that nothing but a chain that stands still ends the wait.
LIMIT_SECONDS = 300

#: Pause between two looks at the notes; short beside what is measured.
_LOOK_SECONDS = 0.005

_numbers = itertools.count()


class Crew:
    """One worker with its children, and the caller's side of its runs.

    Args:
        process: the worker.
        chains: what starts runs, by the variants' keys.
        notes: what they say at their ends.
    """

    def __init__(self, process: Supervised, chains: dict[str, Chain], notes: Notes) -> None:
        self.process, self.notes, self._chains = process, notes, chains

    def start(self, key: str, count: int, steps: int) -> list[str]:
        """Start runs of a variant and return their ids."""
        run_ids = [f"run-{next(_numbers)}" for _ in range(count)]
        for run_id in run_ids:
            self._chains[key].start(run_id, steps)
        return run_ids

    def wait_for(self, run_ids: list[str]) -> dict[str, float]:
        """Wait until runs have made their notes and are committed; return the moments of the notes."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not set(run_ids) <= (moments := self.notes.moments()).keys() or self._unfinished():
            self.process.tend()
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.process.name}: runs did not end within {LIMIT_SECONDS} s")
            time.sleep(_LOOK_SECONDS)
        return moments

    def _unfinished(self) -> int:
        return sum(chain.unfinished() for chain in self._chains.values())

    def cpu_seconds(self) -> float | None:
        """Return what the worker's processes have used, in user and system mode; None where that cannot be seen."""
        try:
            pids = [self.process.pid, *_children(self.process.pid)]
            return sum(map(_cpu_ticks, pids)) / os.sysconf("SC_CLK_TCK")
        except FileNotFoundError:  # only Linux has /proc
            return None


@contextmanager
def crew(
    place: Place, *keys: str, warm_up: int, concurrency: int = 2, environ: dict[str, str] | None = None
) -> Iterator[Crew]:
    """Start a worker and let it run a few chains, so that its children have imported, connected and prepared everything.

    Args:
        place: where it works.
        *keys: of the variants that it carries.
        warm_up: how many runs of ten steps it makes of each before anybody measures.
        concurrency: its children.
        environ: more of the worker's environment.
    """
    number = next(_numbers)
    path = place.folder / f"notes-{number}"
    own = {
        NOTES_VARIABLE: str(path),
        VARIANTS_VARIABLE: " ".join(keys),
        "AGENT_QUEUE": f"bench-{number}",
        "PGAPPNAME": "parent",
    }
    notes, app = Notes(path), place.app(own)
    upgrade(app.conf.agent_database_url)
    chains = {key: ALL[key].make(key, app, notes) for key in keys}
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.worker", "worker", "--pool", "prefork"]
    command += ["--concurrency", str(concurrency), "--hostname", f"bench{number}@%h", "--loglevel", "WARNING"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), **place.environ, **own, **(environ or {})}
    process = Supervised(command, inherited, place.folder / f"worker-{number}.log", f"the worker of {', '.join(keys)}")
    try:
        with process:
            made = Crew(process, chains, notes)
            for key in keys:
                made.wait_for(made.start(key, warm_up, 10))
            yield made
    finally:
        for chain in chains.values():
            chain.close()
        app.close()


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123 - as short as it gets
        return [int(child) for child in file.read().split()]


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        facts = file.read().rpartition(")")[2].split()
    return int(facts[11]) + int(facts[12])  # utime and stime, as proc(5) numbers them from the state on
