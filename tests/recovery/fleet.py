"""Real worker processes that are started again whenever they are killed, as a service manager does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_tasks.demo.supervisor import ProcessEnded, Supervised

ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """Workers under supervision; one that ends in another way than by a kill is a fault, which the test hears of.

    Args:
        environs: one for each worker.
        logs: the folder that gets what they print.
        concurrency: processes, threads or greenlets of each that run steps.
        pool: Celery's name of it.
        name: what the names of the workers begin with.
        always_restart: start a worker again however it ended.
        app: the module that they load.
    """

    def __init__(
        self,
        environs: Sequence[dict[str, str]],
        logs: Path,
        *,
        concurrency: int = 1,
        pool: str = "prefork",
        name: str = "w",
        always_restart: bool = False,
        app: str = "tests.recovery.worker",
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        fleet = uuid.uuid4().hex[:8]  # two fleets on one RabbitMQ must not share the names of control queues
        self.workers = [
            Supervised(
                _command(f"{name}{number}.{fleet}", pool, concurrency, app),
                {**os.environ, "PYTHONPATH": str(ROOT), **environ},
                logs / f"{name}{number}.log",
                f"{name}{number}",
            )
            for number, environ in enumerate(environs)
        ]
        self.ended = 0  # workers that were started again although nobody had killed them
        self._logs, self._always_restart = logs, always_restart
        self._retired: Supervised | None = None
        self._over = threading.Event()
        self._fault: ProcessEnded | None = None
        self._thread = threading.Thread(target=self._tend, name="fleet")

    def __enter__(self) -> Fleet:  # noqa: PYI034 - Self is newer than Python 3.10
        with contextlib.ExitStack() as started:
            for worker in self.workers:
                started.enter_context(worker)
            self._thread.start()
            self._stop = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for worker in self.workers:
            worker.ask_to_stop()
        self._stop.close()

    def check(self) -> bool:
        """Raise what went wrong with a worker, if anything did."""
        if self._fault is not None:
            raise self._fault
        return True

    def retire(self, pid: int, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask one worker to stop, and do not start it again."""
        self._retired = next(worker for worker in self.workers if worker.pid == pid)
        if how is signal.SIGTERM:
            self._retired.ask_to_stop()
        else:
            os.kill(pid, how)

    def said(self, *words: str) -> list[str]:
        """Return the lines of the workers' logs with one of these words."""
        logs = [log.read_text(encoding="utf-8", errors="replace") for log in sorted(self._logs.glob("*.log"))]
        return [line for log in logs for line in log.splitlines() if any(word in line for word in words)]

    def errors(self) -> list[str]:
        """What tasks raised: whatever happens, a step's task raises nothing."""
        lines = self.said("raised unexpected", "malformed")
        # A time limit may strike while Celery itself writes its last words about the task.
        return [line for line in lines if "SoftTimeLimitExceeded" not in line]

    def _tend(self) -> None:
        while not self._over.wait(0.02):
            try:
                for worker in self.workers:
                    if worker is not self._retired:
                        self._tend_one(worker)
            except ProcessEnded as fault:
                self._fault = fault
                return

    def _tend_one(self, worker: Supervised) -> None:
        try:
            worker.tend()
        except ProcessEnded:
            if not self._always_restart:
                raise
            self.ended += 1
            worker.stop()
            worker.__enter__()


def _command(name: str, pool: str, concurrency: int, app: str) -> list[str]:
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--pool", pool]
    command += ["--concurrency", str(concurrency), "--hostname", f"{name}@%h", "--loglevel", "INFO"]
    return [*command, "--without-gossip", "--without-mingle"]


@contextlib.contextmanager
def fleet(environs: Sequence[dict[str, str]], logs: Path, **options: Any) -> Iterator[Fleet]:
    """Keep workers running, and none at the end."""
    with Fleet(environs, logs, **options) as running:
        yield running
        running.check()
    assert running.errors() == []


def children_of(pid: int | None) -> list[int]:
    """The living children of a process, whichever of its threads made them."""
    lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in lists for child in children.split() if is_alive(int(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it ended, and was collected, while it was looked at
        return False
