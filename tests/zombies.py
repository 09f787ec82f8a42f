"""A zombie at a boundary: an attempt is frozen there, a rival takes its run over, and then the zombie goes on."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from agent_tasks import Agent, RunHandle
from agent_tasks.boundary import Point
from agent_tasks.clock import MICROSECONDS
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.inline import answer
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.slots import Slots
from agent_tasks.states import FINISHED, IN_DOUBT, Effect, OperationStatus, Question, RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing import VendorWorld
from agent_tasks.testing.play import compare
from agent_tasks.testing.settling import settle_inbox
from agent_tasks.testing.stage import RUN_ID, Stage, StillClock, quick_engine
from tests.duel import in_thread

#: How far the rival gets before the zombie goes on: it stands before a horizon or a person, or the run has ended.
Until = Literal["it waits", "it ends"]
UNTIL: tuple[Until, ...] = ("it waits", "it ends")

#: Shorter than the horizon of the tools, so that a run can be taken over before it.
LEASE_SECONDS = 5.0

MAX_ROUNDS = 60

#: What a zombie may leave on an operation without changing what the ledger says of it.
_TRACES = {"evidence", "now"}


@dataclass(frozen=True)
class Freeze:
    """Where a zombie stood, and what was wrong afterwards.

    Attributes:
        index, point: the crossing.
        until: how far the rival got.
        open_attempt: the zombie had the lease.
        doubled: an effect happened twice, and a person is shown that.
        problems: empty if all was right.
    """

    index: int
    point: Point
    until: Until
    open_attempt: bool
    doubled: bool
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"frozen {self.point} (crossing {self.index}) until {self.until}: {'; '.join(self.problems) or 'ok'}"


class Graveyard:
    """A stage for zombies.

    Args:
        agent: whose run it is; its tools act on ``world``.
        world: counts what reached it.
        url: of an empty ledger, or None for one of its own.
    """

    def __init__(self, agent: Agent, world: VendorWorld, url: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agent-tests-")
        folder = Path(self._folder.name)
        self.url = url or f"sqlite:///{folder / 'ledger.db'}"
        upgrade(self.url)
        self.stage = Stage(agent, {"what": "a"}, world, self.url, Slots(folder / "slots"))
        self.stage.settings = replace(self.stage.settings, lease_seconds=LEASE_SECONDS)
        #: Its own: only the zombie's transactions are watched.
        self.engine = quick_engine(self.url)

    def close(self) -> None:
        self.engine.dispose()
        self.stage.close()
        self._folder.cleanup()

    def crossings(self) -> list[Point]:
        """Return what one process crosses in a whole run."""
        calm = Zombie(self, None, "it ends")
        freeze = calm.play()
        assert not freeze.problems, freeze
        return calm.crossed

    def freeze(self, index: int, until: Until) -> Freeze:
        """Freeze a fresh run at a crossing."""
        return Zombie(self, index, until).play()


class Zombie:
    """One play with a zombie in it."""

    def __init__(self, graveyard: Graveyard, index: int | None, until: Until) -> None:
        self.graveyard, self.stage, self.index, self.until = graveyard, graveyard.stage, index, until
        self.clock = StillClock()
        self.crossed: list[Point] = []
        self.problems: list[str] = []
        self.point = Point("nothing", "", "before")
        self.open_attempt = False
        self.left: dict[str, Any] | None = None  # the ledger as the rival left it
        self._in_transaction = self._freezes_at_next = False

    def play(self) -> Freeze:
        self.stage.empty()
        engine = self.graveyard.engine
        zombie = self.stage.runtime(self.clock, self._observe, engine)
        app_state = AppState.of(self.stage.agent.app)
        app_state.use_runtime(zombie)
        listeners = {
            "checkout": self._connects,
            "begin": self._began,
            "commit": self._ended,
            "rollback": self._ended,
        }
        for name, listener in listeners.items():
            event.listen(engine, name, listener)
        try:
            self._live(zombie)
        finally:
            for name, listener in listeners.items():
                event.remove(engine, name, listener)
            app_state.use_runtime(None)
        in_thread(lambda: self._rival_works("it ends"))
        return self._judge()

    # -- the zombie ----------------------------------------------------------------------------------------------------

    def _live(self, zombie: Runtime) -> None:
        """Everything that the zombie wants to do, before and after it was frozen."""
        bell = zombie.bell
        assert isinstance(bell, InlineBell)
        while True:
            with suppress(LedgerUnavailable):  # its caller tries again
                self.stage.agent.enqueue(dict(self.stage.state), run_id=RUN_ID)
                break
        while bell.rings:
            answer(zombie, self.stage.agent, bell.rings.popleft())
            if self.left is not None:
                self._compare(self.left)
                self.left = None  # what it does from here on, it does with a lease of its own
            self._check()

    def _observe(self, point: Point) -> None:
        index = len(self.crossed)
        self.crossed.append(point)
        if index != self.index:
            return
        self.point = point
        row = self.stage.row()
        self.open_attempt = row is not None and row["status"] == RunStatus.RUNNING
        if self._in_transaction:
            # Its locks would hold up everybody, so the server ends the transaction of a process that stands still in one.
            self._freezes_at_next = True
            _lose_connection()
        self._overtake()

    def _connects(self, *_connection: object) -> None:
        if self._freezes_at_next:
            self._freezes_at_next = False
            self._overtake()

    def _began(self, _connection: object) -> None:
        self._in_transaction = True

    def _ended(self, _connection: object) -> None:
        self._in_transaction = False

    # -- the rival -----------------------------------------------------------------------------------------------------

    def _overtake(self) -> None:
        in_thread(lambda: self._rival_works(self.until))
        self.left = self._everything()

    def _rival_works(self, until: Until) -> None:
        rival = self.stage.runtime(self.clock, None)
        bell, sweeper = rival.bell, Sweeper(rival)
        assert isinstance(bell, InlineBell)
        sweeper.sweep()  # contact with the database begins
        self.clock.advance(LEASE_SECONDS + 0.1)
        for _ in range(MAX_ROUNDS):
            sweeper.sweep()
            while bell.rings:
                answer(rival, self.stage.agent, bell.rings.popleft())
            self._check()
            row = self.stage.row()
            if row is None or row["status"] in FINISHED:
                return
            if until == "it waits" and row["status"] in (RunStatus.WAITING, RunStatus.NEEDS_ATTENTION):
                return
            if row["status"] == RunStatus.NEEDS_ATTENTION:
                settle_inbox(rival, self.stage.world)
            else:
                self.clock.advance(max(row["due_at"] - row["now"], 0) / MICROSECONDS + 0.01)
        self.problems.append(f"stuck: {row['status']} waiting for {row['waiting_for']}")

    # -- what is right -------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.problems += self.stage.violations()

    def _everything(self) -> dict[str, Any]:
        """Return the ledger's rows: runs, checkpoints, operations."""
        tables = self.graveyard.stage.runtime(None, None).store.metadata.sorted_tables
        row = self.stage.row()
        with self.stage.engine.connect().execution_options(agent_reads_only=True) as connection:
            checkpoints = {table.name: connection.execute(select(table)).all() for table in tables}
        return {
            "run": None if row is None else {name: value for name, value in row.items() if name != "now"},
            "checkpoints": checkpoints,
            "operations": {
                operation.operation_id: {name: value for name, value in operation.row.items() if name not in _TRACES}
                for operation in self.stage.operations()
            },
        }

    def _compare(self, left: dict[str, Any]) -> None:
        """Its late outcome settles a doubt and requeues the run; nothing else changes (I2)."""
        now = self._everything()
        if left["run"] is None or not self.open_attempt:
            return  # it had no lease to lose, and has as much right to claim as anybody
        settled = set()
        for identifier, after in now["operations"].items():
            before = left["operations"].get(identifier)
            if before is None:
                self.problems.append(f"the zombie began {after['tool']}")
            elif before != after:
                was, is_ = OperationStatus(before["status"]), OperationStatus(after["status"])
                settled.add(identifier)
                if was not in {*IN_DOUBT, OperationStatus.PENDING} or is_ in IN_DOUBT:
                    self.problems.append(f"the zombie changed {after['tool']} from {was!s} to {is_!s}")
        if now["checkpoints"] != left["checkpoints"]:
            self.problems.append("the zombie saved a checkpoint")
        if now["run"] != left["run"]:
            requeued = now["run"]["status"] == RunStatus.QUEUED and left["run"]["status"] not in FINISHED
            if not (settled and requeued):
                changed = [name for name in now["run"] if now["run"][name] != left["run"][name]]
                self.problems.append(f"the zombie changed the run: {changed}")

    def _judge(self) -> Freeze:
        row = self.stage.row()
        if row is None or row["status"] not in FINISHED:
            self.problems.append(f"the run did not end: {row and row['status']}")
        elif row["status"] != RunStatus.SUCCEEDED:
            self.problems.append(f"the run ended as {row['status']}")
        rival = self.stage.runtime(self.clock, None)
        shown = [item for item in RunHandle(rival, RUN_ID).inbox() if item.question is Question.DOUBLED]
        problems = compare(self.stage.operations(), self.stage.world.effects())
        doubled = bool(problems and shown)
        if not (doubled and self._is_beyond_any_client()):
            self.problems += problems
            self.problems += [f"{item.operation_id} is shown as doubled" for item in shown]
        return Freeze(self.index or 0, self.point, self.until, self.open_attempt, doubled, tuple(self.problems))

    def _is_beyond_any_client(self) -> bool:
        """Tell whether the zombie stood between its last check and its send until the horizon had passed (section 4)."""
        tools = self.stage.agent.tools
        return (
            (self.point.kind, self.point.moment, self.until) == ("effect", "before", "it ends")
            and self.point.name in tools
            and tools[self.point.name].guard.effect in (Effect.PROBED, Effect.MANUAL)
        )


def _lose_connection() -> NoReturn:
    error = ConnectionError("terminating connection due to idle-in-transaction timeout")
    raise OperationalError("BEGIN", {}, error, connection_invalidated=True)
