"""Where plays happen: one agent, one outside world, and one ledger that is emptied before each play."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import MetaData, delete, event
from sqlalchemy.pool import QueuePool

from agent_tasks.boundary import Boundary
from agent_tasks.clock import MICROSECONDS, Clock
from agent_tasks.config import Settings
from agent_tasks.database import open_engine
from agent_tasks.doorbell import InlineBell
from agent_tasks.lines import next_place, step_after
from agent_tasks.runtime import Runtime
from agent_tasks.states import Effect
from agent_tasks.testing.invariants import check_invariants
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import BindParameter, ColumnElement, Connection, Engine, RowMapping

    from agent_tasks.agent import Agent
    from agent_tasks.boundary import Point
    from agent_tasks.inbox import InboxItem
    from agent_tasks.operations import Operation
    from agent_tasks.slots import Slots
    from agent_tasks.testing.world import World

T = TypeVar("T")

#: Where a connection may say so. On MySQL only the server may.
_DO_NOT_WAIT_FOR_DISK = {"postgresql": "SET synchronous_commit = off", "sqlite": "PRAGMA synchronous = OFF"}

#: The one run of each play.
RUN_ID = "explored"


class StillClock(Clock):
    """Moves by :meth:`advance` and by :meth:`pause`, at once: on a busy machine, too, a play takes the way of its schedule.

    Each reading is a microsecond later than the one before, so that what happened later has a later date.
    """

    def __init__(self) -> None:
        super().__init__(0.0)
        self._readings = 0
        self._started, self._started_here = time.time(), super().local()

    @staticmethod
    def moment(offset: BindParameter[int]) -> ColumnElement[int]:
        """See :class:`~agent_tasks.clock.Clock`; here the parameter is the moment itself."""
        return offset

    def offset(self, seconds: float) -> int:
        """See :class:`~agent_tasks.clock.Clock`."""
        self._readings += 1
        return int((self._started + self._offset_seconds + seconds) * MICROSECONDS) + self._readings

    def pause(self, seconds: float) -> None:
        """See :class:`~agent_tasks.clock.Clock`; nobody waits for it."""
        self.advance(seconds)

    def local(self) -> float:
        """See :class:`~agent_tasks.clock.Clock`."""
        return self._started_here + self._offset_seconds


class Stage:
    """What plays have in common.

    Args:
        agent: whose run is played.
        state: the input of the run.
        world: counts what the agent's tools do.
        url: of the ledger.
        slots: of the workers.
        next_release: of the agent, for processes that are started after a crash; the same agent if not given.
        in_transaction: the run is enqueued in a transaction of its caller's own.
    """

    def __init__(
        self,
        agent: Agent,
        state: dict[str, Any],
        world: World,
        url: str,
        slots: Slots,
        next_release: Agent | None = None,
        in_transaction: bool = False,
    ) -> None:
        self.in_transaction = in_transaction
        self.agent, self.state, self.world, self.slots = agent, state, world, slots
        self.next_release = next_release or agent
        self.settings = Settings(url)
        self.engine = quick_engine(url)
        self._observing = self.runtime(None, None)
        metadata = MetaData()
        metadata.reflect(self.engine)
        self._emptying = [
            delete(table)
            for table in reversed(metadata.sorted_tables)
            if table.name.startswith("agent_") and table.name != "agent_version"
        ]

    def empty(self) -> None:
        """Forget the play before."""
        with self.engine.connect() as connection, connection.begin():
            for statement in self._emptying:
                connection.execute(statement)
        self.world.reset()

    def runtime(
        self, clock: Clock | None, observer: Callable[[Point], None] | None, engine: Engine | None = None
    ) -> Runtime:
        """Return a process of its own; it shares the ledger's engine unless it is given another."""
        engine = engine or self.engine
        made = Runtime(
            self.settings, InlineBell, boundary=Boundary(observer), engine=engine, clock=clock, slots=self.slots
        )
        made.most_threads = 1  # else the order of the crossings of a batch would be chance
        return made

    def row(self) -> RowMapping | None:
        """Return the run's row as everybody sees it now."""
        return self._read(lambda connection: self._observing.runs.find(connection, RUN_ID))

    def operations(self) -> list[Operation]:
        """Return the run's operations."""
        return self._read(lambda connection: self._observing.ledger.of_run(connection, RUN_ID))

    def tools_that_lock_the_ledger(self) -> set[str]:
        """Return the tools in whose bodies no other connection can write to the ledger: one writer at a time on SQLite."""
        if self.engine.dialect.name != "sqlite":
            return set()
        return {tool.name for tool in self.agent.tools.values() if tool.guard.effect is Effect.TRANSACTIONAL}

    def step(self) -> str | None:
        """Return the step that follows the run's last checkpoint; of a run that failed, the one it failed in."""
        row = self.row()
        if row is None:
            return None
        store = self._observing.store
        try:
            return step_after(
                self._read(lambda connection: store.load_parent_of(next_place(row), connection=connection))
            )
        except CheckpointError:
            return None

    def questions(self, *, answered: bool = False) -> list[InboxItem]:
        """Return what a person is asked about the run now, oldest first; or what was asked and answered."""
        return self._read(lambda connection: self._observing.inbox.items(connection, RUN_ID, closed=answered))

    def violations(self) -> list[str]:
        """Return which invariants the ledger breaks now."""
        return [str(violation) for violation in self._read(check_invariants)]

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._observing.boundary.read(self.engine, work)


def quick_engine(url: str) -> Engine:
    """Return an engine that waits for no disk and keeps its connections: here processes die, and never the machine."""
    engine = open_engine(url, poolclass=QueuePool)
    do_not_wait = _DO_NOT_WAIT_FOR_DISK.get(engine.dialect.name)

    def set_up(connection: Any, _record: object) -> None:
        connection.execute(do_not_wait)
        connection.commit()

    if do_not_wait is not None:
        event.listen(engine, "connect", set_up)
    return engine
