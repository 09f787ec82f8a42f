"""A claim and a sweep on ledgers with few and with many finished runs: what is over must cost nothing."""

from __future__ import annotations

import hashlib
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from celery import Celery
from sqlalchemy import BigInteger, Connection, Table, Text, cast, func, insert, inspect, literal, select

from agent_tasks import done
from agent_tasks.boundary import Boundary, Point
from agent_tasks.config import Settings
from agent_tasks.coordinator import Coordinator
from agent_tasks.doorbell import InlineBell
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.sweeper import LONGEST_PAUSE_SECONDS, Sweeper
from benchmarks.places import Place
from benchmarks.variants import act_on_nothing

#: The most that anything may take, as a multiple of what it takes on an empty ledger.
BUDGET = 1.5

#: A driver prepares a statement, and a database settles on a plan, when they have seen it often enough.
_WARM_UP = 12

_TEMPLATE = "template"


class UncountedBell(InlineBell):
    """Of a transport that cannot count its messages: then the sweeper asks the ledger, which is what is measured here."""

    def depth(self, queue: str) -> None:  # type: ignore[override]
        """See :class:`agent_tasks.doorbell.Bell`."""


class FilledLedger:
    """A ledger, and an engine on it in this process.

    Args:
        url: of an empty database.
        finished: how many runs of it have ended.
    """

    def __init__(self, url: str, finished: int) -> None:
        from agent_tasks import Agent, tool

        upgrade(url)
        self._claimed_at = 0.0
        self.runtime = Runtime(Settings(url), UncountedBell, boundary=Boundary(self._watch))
        app = Celery("bench-history", broker="memory://", set_as_current=False)
        AppState.of(app).use_runtime(self.runtime)
        act = tool(effect="repeatable", why="it does nothing")(act_on_nothing)
        self._agent = Agent("history", app=app, tools=[act])

        @self._agent.step
        def step(state: Any) -> Any:
            act(1)
            return done(state["n"])

        self._sweeper, self._number = Sweeper(self.runtime), 0
        self._step(_TEMPLATE)
        if finished:
            self._fill(finished)
        self._agent.enqueue({"n": 0}, run_id="due")  # the sweeper rings for it again and again

    def close(self) -> None:
        """Close its connections."""
        self.runtime.engine.dispose()

    def step(self) -> dict[str, float]:
        """Let a new run be claimed and carried to its end; return the seconds of its claim, and of all of it."""
        self._number += 1
        return self._step(f"run-{self._number}")

    def sweep(self) -> dict[str, float]:
        """Sweep when one run is due; return the seconds."""
        self.runtime.clock.advance(LONGEST_PAUSE_SECONDS + 1)
        began = time.perf_counter()
        swept = self._sweeper.sweep()
        seconds = time.perf_counter() - began
        assert swept.rung == 1, swept
        return {"sweep": seconds}

    def _step(self, run_id: str) -> dict[str, float]:
        self._agent.enqueue({"n": 1}, run_id=run_id)
        began = time.perf_counter()
        assert Coordinator(self.runtime).handle(self._agent, "step", run_id, 1), "it was not claimed"
        return {"claim": self._claimed_at - began, "step": time.perf_counter() - began}

    def _watch(self, point: Point) -> None:
        if (point.kind, point.name, point.moment) == ("commit", "claim", "after"):
            self._claimed_at = time.perf_counter()

    def _fill(self, finished: int) -> None:
        """Copy everything that the template's run has left in the ledger, whatever tables and columns there are.

        The copies only take up room: they have made up ids, which checksums and operations would not stand.
        """
        metadata = [*self.runtime.tables.metadata.sorted_tables, *self.runtime.store.metadata.sorted_tables]
        there = set(inspect(self.runtime.engine).get_table_names())
        tables = [table for table in metadata if table.name in there and "run_id" in table.c]
        with self.runtime.engine.connect() as connection, connection.begin():
            if connection.dialect.name == "sqlite":
                _teach_sqlite(connection)
            for table in tables:
                connection.execute(_copies(table, finished))
        # So that neither has to be done, nor is missing, while the clock runs.
        with self.runtime.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            words = "VACUUM ANALYZE" if connection.dialect.name == "postgresql" else "ANALYZE"
            connection.exec_driver_sql(words)


def _copies(table: Table, count: int) -> Any:
    number = select(literal(1, BigInteger).label("n")).cte("numbers", recursive=True)
    number = number.union_all(select(number.c.n + 1).where(number.c.n < count))
    n = number.c.n
    # In no order, as the ids of runs are.
    other: dict[str, Any] = {"run_id": func.md5(cast(n, Text))}
    if "operation_id" in table.primary_key:
        other["operation_id"] = func.md5(cast(n, Text) + table.c.operation_id)
    if "finished_at" in table.c:
        other["finished_at"] = table.c.finished_at - n * 1_000_000
    columns = [other.get(column.name, column).label(column.name) for column in table.c]
    rows = select(*columns).select_from(table.join(number, literal(value=True))).where(table.c.run_id == _TEMPLATE)
    return insert(table).from_select([column.name for column in table.c], rows)


def _teach_sqlite(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.create_function("md5", 1, lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())
    driver.execute("PRAGMA cache_size=-200000")  # this connection's; rows come in no order


def measure(place: Place, finished: Sequence[int], times: int) -> dict[str, dict[int, list[float]]]:
    """Let ledgers of several sizes take turns, claim by claim and sweep by sweep.

    Returns:
        The seconds of each, by what was done and by how many runs had ended.
    """
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: {size: [] for size in finished})
    with ExitStack() as stack:
        logging.disable(logging.WARNING)  # the run that is always due has nobody to answer it, and the sweeper says so
        stack.callback(logging.disable, logging.NOTSET)
        ledgers = {size: stack.enter_context(closing(FilledLedger(place.database(), size))) for size in finished}
        for work in (FilledLedger.step, FilledLedger.sweep):
            for turn in range(_WARM_UP + times):
                for size, ledger in ledgers.items():
                    seconds = work(ledger)
                    for what, took in seconds.items() if turn >= _WARM_UP else ():
                        found[what][size].append(took)
    return dict(found)


def summary(found: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the median of each size in milliseconds, and how many times that of the smallest it is."""
    said: dict[str, dict[str, dict[str, Any]]] = {}
    for what, sizes in found.items():
        median = {size: statistics.median(seconds) for size, seconds in sizes.items()}
        said[what] = {
            str(size): {"median_ms": round(1000 * took, 3), "ratio": round(took / median[min(median)], 2)}
            for size, took in median.items()
        }
    return said
