"""The crash explorer: an agent, crashed at each boundary that one run of it crosses, and recovered.

Boundaries are not listed anywhere: a run without a crash shows them, since every commit, publish, ack and effect of the
engine passes one module. For each of them a fresh run crashes there, a new runtime recovers it, and the outside world's
ledger is held against what the run's ledger says.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import MetaData
from sqlalchemy.exc import OperationalError

from agent_tasks.boundary import Boundary, Point
from agent_tasks.clock import MICROSECONDS, Clock
from agent_tasks.config import Settings
from agent_tasks.database import open_engine
from agent_tasks.doorbell import InlineBell, Ring
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.handle import RunHandle
from agent_tasks.inline import answer
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.slots import Slots
from agent_tasks.states import FINISHED, OperationStatus, RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing.invariants import check_invariants
from agent_tasks.testing.settling import settle_inbox
from checkpoint import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_tasks.agent import Agent
    from agent_tasks.operations import Operation
    from agent_tasks.testing.world import World

#: Rounds of doorbells, sweeps and answers after which a run counts as stuck.
MAX_ROUNDS = 60

RUN_ID = "explored"

Fault = Literal["crash", "lost answer", "cancel", "cancel and crash"]


class Crash(BaseException):
    """The process is dead. Every later boundary of its runtime raises it again, so nothing more of it happens."""


@dataclass(frozen=True)
class Schedule:
    """One crash: at which crossing, and what was found to be wrong after the recovery.

    Attributes:
        index: of the crossing, in the order of the run without a crash.
        point: the boundary.
        fault: ``crash``; ``lost answer``: the process goes on, and does not know whether its commit happened;
            ``cancel``: somebody cancels the run; ``cancel and crash``: and the process dies before it hears of it.
        broker: ``redelivers`` the message that was not acked, or was ``emptied``.
        problems: empty if the recovery was right.
        crashed: whether the crossing was reached at all.
    """

    index: int
    point: Point
    fault: Fault
    broker: Literal["redelivers", "emptied"]
    problems: tuple[str, ...]
    crashed: bool

    def __str__(self) -> str:
        return f"{self.fault} {self.point} (crossing {self.index}, broker {self.broker}): {'; '.join(self.problems) or 'ok'}"


@dataclass
class Exploration:
    """What an exploration found."""

    points: list[Point] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)

    @property
    def failures(self) -> list[Schedule]:
        """The schedules that went wrong, and those that never met their crossing."""
        return [schedule for schedule in self.schedules if schedule.problems or not schedule.crashed]

    def report(self) -> str:
        """Return how many boundaries there are, how often each was hit, and what went wrong."""
        hits = Counter(str(schedule.point) for schedule in self.schedules if schedule.crashed)
        lines = [f"{len(self.points)} crossings of {len(set(self.points))} boundaries; {len(self.schedules)} schedules"]
        lines += [f"  {hits[name]:4d} × {name}" for name in sorted(hits)]
        return "\n".join([*lines, *(f"  WRONG {schedule}" for schedule in self.failures)])


def explore_crashes(
    agent: Agent,
    input: dict[str, Any],  # noqa: A002 - the word of ``enqueue``
    world: World,
    *,
    database_url: str | None = None,
    brokers: tuple[Literal["redelivers", "emptied"], ...] = ("redelivers", "emptied"),
    lost_answers: bool = True,
    cancels: bool = False,
) -> Exploration:
    """Crash an agent at each boundary of one of its runs, let recovery finish, and compare with the outside world.

    Args:
        agent: its tools act on ``world``.
        input: of the run.
        world: counts what reached it, and answers as a person where one is asked.
        database_url: an empty database for the ledger, which is emptied again and again; an SQLite file if not given.
        brokers: what the broker does with the message under way at the crash.
        lost_answers: also let each commit happen without its answer.
        cancels: also cancel the run at each crossing but those in the middle of a commit, over another connection.

    Returns:
        What was found; ``.failures`` is empty if every recovery was right.

    Example:
        >>> from celery import Celery
        >>> from agent_tasks import Agent, done, tool
        >>> from agent_tasks.testing import VendorWorld, explore_crashes
        >>> from datetime import timedelta
        >>> world = VendorWorld()
        >>> @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
        ... def order(operation, item):
        ...     return world.act(operation.operation_id, key=operation.idempotency_key)
        >>> agent = Agent("explored-shop", app=Celery("shop", broker="memory://"), tools=[order])
        >>> @agent.step
        ... def buy(state):
        ...     return done(order(state["item"]))
        >>> explore_crashes(agent, {"item": "tea"}, world, brokers=("redelivers",), lost_answers=False).failures
        []
    """
    with tempfile.TemporaryDirectory(prefix="agent-tasks-") as folder:
        url = database_url or f"sqlite:///{Path(folder) / 'ledger.db'}"
        upgrade(url)
        explorer = _Explorer(agent, input, world, url, Slots(Path(folder) / "slots"))
        try:
            return explorer.explore(brokers, lost_answers=lost_answers, cancels=cancels)
        finally:
            explorer.engine.dispose()


class _Explorer:
    def __init__(self, agent: Agent, state: dict[str, Any], world: World, url: str, slots: Slots) -> None:
        self.agent, self.state, self.world = agent, state, world
        self.settings, self.slots = Settings(url), slots
        self.engine = open_engine(url)
        metadata = MetaData()
        metadata.reflect(self.engine)
        self._tables = [t for t in metadata.sorted_tables if t.name.startswith("agent_") and t.name != "agent_version"]
        self.expected: tuple[RunStatus, Any] = (RunStatus.SUCCEEDED, None)

    def explore(
        self, brokers: tuple[Literal["redelivers", "emptied"], ...], *, lost_answers: bool, cancels: bool
    ) -> Exploration:
        found = Exploration()
        calm = _Play(self, None)
        problems = calm.play()
        if problems:
            raise AssertionError("the run went wrong without any crash: " + "; ".join(problems))
        found.points, self.expected = calm.crossed, calm.ending
        for index, point in enumerate(found.points):
            for broker in brokers:
                found.schedules.append(self._try(index, point, "crash", broker))
            if lost_answers and point.kind == "commit" and point.moment == "after":
                found.schedules.append(self._try(index, point, "lost answer", "redelivers"))
            if cancels and (point.kind, point.moment) != ("commit", "before"):
                found.schedules.append(self._try(index, point, "cancel", "redelivers"))
                found.schedules.append(self._try(index, point, "cancel and crash", "emptied"))
        return found

    def empty(self) -> None:
        """Forget the schedule before."""
        with self.engine.connect() as connection, connection.begin():
            for table in reversed(self._tables):
                connection.execute(table.delete())
        self.world.reset()

    def _try(self, index: int, point: Point, fault: Fault, broker: Literal["redelivers", "emptied"]) -> Schedule:
        play = _Play(self, index, fault=fault, broker=broker)
        problems = play.play()
        return Schedule(index, point, fault, broker, tuple(problems), play.hit == point)


class _Play:
    """One run, with at most one fault in it."""

    def __init__(
        self, explorer: _Explorer, crash_at: int | None, *, fault: str = "crash", broker: str = "redelivers"
    ) -> None:
        self.explorer, self.crash_at, self.fault, self.broker = explorer, crash_at, fault, broker
        self.clock = Clock(0.0)
        self.crossed: list[Point] = []
        self.hit: Point | None = None
        self.dead = False
        self.problems: list[str] = []
        self.ending: tuple[RunStatus, Any] = (RunStatus.QUEUED, None)
        self.unacked: Ring | None = None
        self.rings: list[Ring] = []

    @property
    def is_cancelled(self) -> bool:
        return self.crash_at is not None and self.fault.startswith("cancel")

    def play(self) -> list[str]:
        self.explorer.empty()
        try:
            self._live(self._observe)
        except Crash:
            self.explorer.engine.dispose()  # the dead process's connections
            self._live(None)
        self._judge()
        return self.problems

    def _observe(self, point: Point) -> None:
        if self.dead:
            raise Crash
        index = len(self.crossed)
        self.crossed.append(point)
        if index == self.crash_at:
            self.hit = point
            if self.is_cancelled:
                RunHandle(self._runtime(None), RUN_ID).cancel(who="tester", why="changed its mind")
            if self.fault == "cancel":
                return
            if self.fault == "lost answer":
                raise OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))
            self.dead = True
            raise Crash

    def _live(self, observer: Callable[[Point], None] | None) -> None:
        """One process, from its start until the run waits for nobody any more."""
        runtime = self._runtime(observer)
        app_state = AppState.of(self.explorer.agent.app)
        app_state.use_runtime(runtime)
        try:
            self._drive(runtime)
        finally:
            app_state.use_runtime(None)

    def _runtime(self, observer: Callable[[Point], None] | None) -> Runtime:
        return Runtime(
            self.explorer.settings,
            InlineBell,
            boundary=Boundary(observer),
            engine=self.explorer.engine,
            clock=self.clock,
            slots=self.explorer.slots,
        )

    def _drive(self, runtime: Runtime) -> None:
        agent, bell, sweeper = self.explorer.agent, runtime.bell, Sweeper(runtime)
        assert isinstance(bell, InlineBell)  # noqa: S101
        if self.broker == "redelivers":
            bell.rings.extend(ring for ring in (self.unacked, *self.rings) if ring is not None)
        self.unacked, self.rings = None, []
        run = agent.enqueue(dict(self.explorer.state), run_id=RUN_ID)
        heard: list[Ring] = []
        for _ in range(MAX_ROUNDS):
            while bell.rings:
                self.unacked = bell.rings.popleft()
                self.rings = list(bell.rings)
                heard.append(self.unacked)
                answer(runtime, agent, self.unacked)
                self.unacked = None
                self._check(runtime)
            with suppress(LedgerUnavailable):  # as the worker's thread does: the next turn comes all the same
                sweeper.sweep()
            self._check(runtime)
            if bell.rings:
                continue
            if run.status in FINISHED:
                break
            if run.status is RunStatus.NEEDS_ATTENTION:
                with suppress(LedgerUnavailable):  # a person who is told so looks again
                    settle_inbox(runtime, self.explorer.world)
            else:
                self._wait(runtime)
        else:
            self.problems.append(f"stuck: {run.status} waiting for {run.waiting_for}")
        for ring in heard:  # late copies of every doorbell change nothing
            answer(runtime, agent, ring)
        self._check(runtime)

    def _wait(self, runtime: Runtime) -> None:
        """Let time pass until the run is due; a sweeper that must not act yet is given a lease of contact."""
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, RUN_ID))
        if row is not None and row["due_at"] is not None:
            missing = (row["due_at"] - row["now"]) / MICROSECONDS
            self.clock.advance(missing + 0.01 if missing > 0 else runtime.settings.lease_seconds)

    def _check(self, runtime: Runtime) -> None:
        with runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            self.problems += [str(violation) for violation in check_invariants(connection)]

    def _judge(self) -> None:
        runtime = self._runtime(None)
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, RUN_ID))
        if row is None:
            self.problems.append("the run was lost")
            return
        output = None if row["output"] is None else codec.loads(row["output"])
        self.ending = (RunStatus(row["status"]), output)
        endings = [self.explorer.expected, *([(RunStatus.CANCELLED, None)] if self.is_cancelled else [])]
        if self.crash_at is not None and self.ending not in endings:
            self.problems.append(f"ended as {self.ending}, and as {self.explorer.expected} without the crash")
        operations = runtime.boundary.read(runtime.engine, lambda connection: runtime.ledger.of_run(connection, RUN_ID))
        self.problems += compare(operations, self.explorer.world.effects())


def compare(operations: list[Operation], effects: Counter[str]) -> list[str]:
    """Return where the outside world's ledger and the run's ledger do not agree.

    Args:
        operations: of the run.
        effects: how often each operation's effect happened.
    """
    problems = []
    known = {operation.operation_id: operation for operation in operations if operation.effect != "read"}
    for identifier, operation in known.items():
        count = effects[identifier]
        expected = 1 if operation.status is OperationStatus.SUCCEEDED else 0
        repeats = operation.effect == "repeatable" and expected == 1
        if count != expected and not (repeats and count > 1):
            problems.append(f"{operation.tool} is {operation.status!s} and happened {count} times")
    problems += [
        f"{identifier} happened and no operation knows of it" for identifier in effects if identifier not in known
    ]
    return problems
