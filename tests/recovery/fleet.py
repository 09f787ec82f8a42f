"""Real worker processes that are started again whenever they are killed, as a service manager does."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from agent_tasks.demo.supervisor import ProcessEnded, Supervised

ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """Workers under supervision; one that ends in another way than by a kill is a fault, which the test hears of.

    Args:
        environ: of the workers.
        logs: the folder that gets what they print.
        workers: how many.
        concurrency: processes of each that run steps.
    """

    def __init__(self, environ: dict[str, str], logs: Path, *, workers: int, concurrency: int = 1) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        everything = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
        self.workers = [
            Supervised(_command(name, concurrency), everything, logs / f"{name}.log", name)
            for name in (f"w{number}" for number in range(workers))
        ]
        self._logs = logs
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

    def retire(self, pid: int) -> None:
        """Ask one worker to stop, and do not start it again."""
        self._retired = next(worker for worker in self.workers if worker.pid == pid)
        self._retired.ask_to_stop()

    def errors(self) -> list[str]:
        """What tasks raised: whatever happens, a step's task raises nothing."""
        logs = (log.read_text(encoding="utf-8", errors="replace") for log in self._logs.glob("*.log"))
        return [line for log in logs for line in log.splitlines() if "raised unexpected" in line or "malformed" in line]

    def _tend(self) -> None:
        while not self._over.wait(0.02):
            try:
                for worker in self.workers:
                    if worker is not self._retired:
                        worker.tend()
            except ProcessEnded as fault:
                self._fault = fault
                return


def _command(name: str, concurrency: int) -> list[str]:
    command = [sys.executable, "-m", "celery", "-A", "tests.recovery.worker", "worker", "--pool", "prefork"]
    command += ["--concurrency", str(concurrency), "--hostname", f"{name}@%h", "--loglevel", "INFO"]
    return [*command, "--without-gossip", "--without-mingle"]


@contextlib.contextmanager
def fleet(environ: dict[str, str], logs: Path, *, workers: int, concurrency: int = 1) -> Iterator[Fleet]:
    """Keep workers running, and none at the end."""
    with Fleet(environ, logs, workers=workers, concurrency=concurrency) as running:
        yield running
        running.check()
    assert running.errors() == []
