"""Two workers in this process on one ledger: one is frozen in the middle of a body while the other takes its run over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from agent_tasks import Agent, Operation, RunHandle
from agent_tasks.boundary import Boundary, Point
from agent_tasks.doorbell import InlineBell
from agent_tasks.inline import answer_all
from agent_tasks.runtime import Runtime
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.sweeper import Sweeper, end_lease
from agent_tasks.testing import check_invariants
from tests.one_process import OneProcess

RUN = "run-1"


class Duel(OneProcess):
    """One worker, and the rival that takes over from it; they share the database and the clock, and nothing else."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.rival = Runtime(self.runtime.settings, InlineBell, engine=self.runtime.engine, clock=self.runtime.clock)
        self.sweeper = Sweeper(self.rival)

    def meanwhile(self, agent: Agent, *, seconds: float = 0, reply: str | None = None) -> None:
        """While the caller stands in a body, its lease ends and the rival works on the run.

        Args:
            agent: of the run.
            seconds: how far the clock moves after that, for what the rival waits for.
            reply: what a person answers then to the open question.
        """
        in_thread(lambda: self._meanwhile(agent, seconds, reply))

    def _meanwhile(self, agent: Agent, seconds: float, reply: str | None) -> None:
        assert end_lease(self.rival, RUN, self.row()["lease_token"])
        answer_all(self.rival, agent)
        if seconds:
            self.later(agent, seconds)
        if reply is not None:
            self.reply(agent, reply)

    def later(self, agent: Agent, seconds: float) -> None:
        """Let time pass, and let the rival work on what is due then."""
        self.runtime.clock.advance(seconds)
        self.sweeper.sweep()
        answer_all(self.rival, agent)

    def reply(self, agent: Agent, reply: str, result: Any = None) -> bool:
        """Answer the one open question as Kim, and let the rival work on."""
        run = RunHandle(self.rival, RUN)
        (item,) = run.inbox()
        queued = run.resolve(item.item_id, reply, who="kim", why="looked it up", result=result)
        answer_all(self.rival, agent)
        return queued

    def drive(self, agent: Agent, rounds: int = 12) -> RunStatus:
        """Let the rival work, and time pass, until the run ends or waits for a person."""
        run = RunHandle(self.rival, RUN)
        for _ in range(rounds):
            self.sound()
            if run.status in FINISHED or run.status is RunStatus.NEEDS_ATTENTION:
                break
            row = self.row()
            self.later(agent, max(row["due_at"] - row["now"], 0) / 1e6 + 0.01)
        self.sound()
        return run.status

    def row(self) -> Any:
        """Return the run's row."""
        row = self.rival.boundary.read(self.rival.engine, lambda connection: self.rival.runs.find(connection, RUN))
        assert row is not None
        return row

    def operations(self) -> list[Operation]:
        return RunHandle(self.rival, RUN).operations()

    def operation(self) -> Operation:
        """Return the run's only operation."""
        (found,) = self.operations()
        return found

    def questions(self) -> list[str]:
        return [str(item.question) for item in RunHandle(self.rival, RUN).inbox()]

    def sound(self) -> None:
        """Fail if the ledger breaks an invariant."""
        with self.runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            assert check_invariants(connection) == []

    def set_run(self, **values: Any) -> None:
        """Change the run's row behind the engine's back."""
        table = self.runtime.tables.runs
        with self.runtime.engine.connect() as connection, connection.begin():
            connection.execute(update(table).where(table.c.run_id == RUN).values(**values))


@contextmanager
def duel(url: str) -> Iterator[Duel]:
    here = Duel(url)
    try:
        yield here
    finally:
        here.close()


def in_thread(work: Callable[[], Any]) -> None:
    """Do work in a thread of its own, where no run is current, and wait for it."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


class Outage:
    """Breaks the connection at one boundary, a number of times.

    Args:
        boundary: name of the commit.
        moment: ``before`` or ``after`` it.
        times: how often.
    """

    def __init__(self, boundary: str, moment: str, times: int = 1) -> None:
        self.at, self.left = Point("commit", boundary, moment), times
        self.hits = 0

    def __call__(self, point: Point) -> None:
        if point == self.at and self.left:
            self.left -= 1
            self.hits += 1
            raise OperationalError("COMMIT", {}, ConnectionError("the connection broke"))


def observed(runtime: Runtime, observer: Callable[[Point], None]) -> Boundary:
    """Let an observer see, and break, each crossing of a runtime."""
    runtime.boundary.observer = observer
    return runtime.boundary
