"""A play: one run of an agent, the faults of one schedule in it, and what was found to be wrong at its end."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy.exc import OperationalError

from agent_tasks.clock import MICROSECONDS
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.handle import RunHandle
from agent_tasks.inline import answer
from agent_tasks.integration import AppState
from agent_tasks.states import FINISHED, Effect, OperationStatus, RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing.ending import Ending
from agent_tasks.testing.faults import Crash, lose_answer
from agent_tasks.testing.settling import settle_inbox
from agent_tasks.testing.stage import RUN_ID, StillClock
from agent_tasks.testing.trail import Trail
from checkpoint import codec

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from agent_tasks.boundary import Point
    from agent_tasks.doorbell import Ring
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime
    from agent_tasks.testing.faults import Broker, Fault
    from agent_tasks.testing.stage import Stage

#: Rounds of doorbells, sweeps and answers after which a run counts as stuck.
MAX_ROUNDS = 60


class Play:
    """One run on a stage.

    Args:
        stage: emptied first.
        faults: of the schedule, in order; the index of each counts from the one before.
        broker: what it does with the message under way at a crash.

    Attributes:
        stretches: the boundaries crossed before the first fault, from there to the second, and so on.
        met: for each fault that was met, whether an attempt was under way then.
        problems: empty if all went well.
        ending: of the run; of one that is stuck, how it was left.
    """

    def __init__(self, stage: Stage, faults: Sequence[Fault] = (), broker: Broker = "redelivers") -> None:
        self.stage, self.broker = stage, broker
        self.agent, self.clock = stage.agent, StillClock()
        self.stretches: list[list[Point]] = [[]]
        self.met: list[bool] = []
        self.problems: list[str] = []
        self.ending = Ending(RunStatus.QUEUED)
        self._trail = Trail()
        self._faults = deque(faults)
        self._unacked: list[Ring] = []
        self._heard: dict[Ring, None] = {}
        self._changed = False

    def play(self) -> Play:
        """Play it to its end, with a new process after each crash."""
        self.stage.empty()
        while not self._live(_Process(self)):
            self.stage.engine.dispose()  # the dead process's connections
            self.agent = self.stage.next_release
        self._judge()
        return self

    def cross(self, point: Point) -> bool:
        """Note a crossing and carry out the fault that is due there; True if it is a crash."""
        self.stretches[-1].append(point)
        self._changed = self._changed or (point.kind, point.moment) == ("commit", "after")
        if not self._faults or len(self.stretches[-1]) - 1 != self._faults[0].index:
            return False
        fault = self._faults.popleft()
        if point != fault.point:
            self.problems.append(f"{fault} was not met: there was {point}")
        row = self.stage.row()
        self.met.append(row is not None and row["status"] == RunStatus.RUNNING)
        self.stretches.append([])
        if fault.kind == "lost answer":
            lose_answer()
        if fault.kind in ("cancel", "cancel and crash"):
            canceller = self.stage.runtime(self.clock, None)
            RunHandle(canceller, RUN_ID).cancel(who="tester", why="changed its mind")
        return fault.kind != "cancel"

    def _live(self, process: _Process) -> bool:
        """One process, from its start until the run waits for nobody any more; False if it crashed."""
        runtime = self.stage.runtime(self.clock, process.observe)
        try:
            with AppState.of(self.agent.app).working_with(runtime):
                self._drive(runtime)
        except BaseException:  # the step's code may have wrapped the crash in something else
            if not process.dead:
                raise
            return False
        return True

    def _drive(self, runtime: Runtime) -> None:
        stage, bell, sweeper = self.stage, runtime.bell, Sweeper(runtime)
        assert isinstance(bell, InlineBell)  # noqa: S101
        if self.broker == "redelivers":
            bell.rings.extend(self._unacked)
        self._unacked = []
        run = self._enqueue(runtime)
        for _ in range(MAX_ROUNDS):
            while bell.rings:
                self._unacked = list(bell.rings)
                ring = bell.rings.popleft()
                self._heard[ring] = None
                with suppress(LedgerUnavailable):  # as the worker's task does: the sweeper rings again
                    answer(runtime, self.agent, ring)
                self._unacked = []
                self._check()
            with suppress(LedgerUnavailable):  # as the worker's thread does: the next turn comes all the same
                sweeper.sweep()
            self._check()
            if bell.rings:
                continue
            if run.status in FINISHED:
                break
            self._trail.note(stage.row())
            if run.status is RunStatus.NEEDS_ATTENTION:
                with suppress(LedgerUnavailable):  # a person who is told so looks again
                    settle_inbox(runtime, stage.world)
            else:
                self._wait(runtime)
        else:
            self.problems.append(self._trail.why_stuck(stage.row(), stage.questions(), stage.questions(answered=True)))
        for ring in self._heard:  # late copies of every doorbell change nothing
            answer(runtime, self.agent, ring)
        self._check()

    def _enqueue(self, runtime: Runtime) -> RunHandle:
        """Start the run, or find it; a caller with a transaction of his own starts none that he finds committed."""
        stage = self.stage
        if not stage.in_transaction:
            return self.agent.enqueue(dict(stage.state), run_id=RUN_ID)
        while stage.row() is None:
            with suppress(OperationalError), stage.engine.connect() as connection:  # a lost answer
                transaction = connection.begin()
                self.agent.enqueue(dict(stage.state), run_id=RUN_ID, connection=connection)
                transaction.commit()
        return RunHandle(runtime, RUN_ID)

    def _wait(self, runtime: Runtime) -> None:
        """Let time pass until the run is due; a sweeper that must not act yet is given a lease of contact."""
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, RUN_ID))
        if row is not None and row["due_at"] is not None:
            missing = (row["due_at"] - row["now"]) / MICROSECONDS
            self.clock.advance(missing + 0.01 if missing > 0 else runtime.settings.lease_seconds)

    def _check(self) -> None:
        if self._changed:
            self._changed = False
            self.problems += self.stage.violations()

    def _judge(self) -> None:
        row = self.stage.row()
        if row is None:
            self.problems.append("the run was lost")
            return
        status = RunStatus(row["status"])
        self.ending = Ending(
            status,
            None if row["output"] is None else codec.loads(row["output"]),
            {} if row["error"] is None else codec.loads(row["error"]),
            self.stage.step() if status is RunStatus.FAILED else None,
        )
        self.problems += [f"{fault} was not met" for fault in self._faults]
        self.problems += compare(self.stage.operations(), self.stage.world.effects())


class _Process:
    """What a play sees of one process, whose threads may outlive its death."""

    def __init__(self, play: Play) -> None:
        self.play, self.dead = play, False

    def observe(self, point: Point) -> None:
        if self.dead or self.play.cross(point):
            self.dead = True
            raise Crash


def compare(operations: list[Operation], effects: Counter[str]) -> list[str]:
    """Return where the outside world's ledger and the run's ledger do not agree.

    Args:
        operations: of the run.
        effects: how often each operation's effect happened.
    """
    problems = []
    known = {operation.operation_id: operation for operation in operations}
    for identifier, operation in known.items():
        if operation.effect is Effect.READ:
            continue
        count = effects[identifier]
        expected = 1 if operation.status is OperationStatus.SUCCEEDED else 0
        repeats = operation.effect is Effect.REPEATABLE and expected == 1
        if count != expected and not (repeats and count > 1):
            problems.append(f"{operation.tool} is {operation.status!s} and happened {count} times")
    for identifier, count in effects.items():
        if count and identifier not in known:
            problems.append(
                f"{identifier} happened ({count}×) and no operation knows of it: an effect outside a tool (in the "
                "step's own body), or in a `read` that was not recorded, or one that the world counts under another "
                "name than the operation_id or idempotency_key of its operation"
            )
        elif count and known[identifier].effect is Effect.READ:
            problems.append(
                f"{known[identifier].tool} is a `read` and had an effect ({count}×, {identifier}): a read has none, "
                "and may be done again; declare the tool by what it does"
            )
    return problems
