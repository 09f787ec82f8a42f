"""A ledger and its worker in this process, beside an outside world that notes each request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import sqlalchemy
from celery import Celery

from agent_tasks import Agent, RunHandle
from agent_tasks.clock import Clock
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell
from agent_tasks.inline import answer_all
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.slots import Slots
from agent_tasks.sweeper import Sweeper
from checkpoint.sql import SqlStore


def bound(body: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body of a plain task take its task first, which a test of something else has no use for."""

    @functools.wraps(body)
    def taking_self(self: object, /, *args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    first, signature = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), inspect.signature(body)
    signed = signature.replace(parameters=[first, *signature.parameters.values()])
    setattr(taking_self, "__signature__", signed)  # noqa: B010 - of a function, to mypy
    return taking_self


class OneProcess:
    """What one test works with.

    Args:
        url: of the ledger.
        clock: of the engine, if not the usual one.
        migrated: False leaves the database as it is.
    """

    def __init__(self, url: str, clock: Clock | None = None, *, migrated: bool = True) -> None:
        if migrated:
            upgrade(url)
        self.url = url
        self.app = Celery("one-process", broker="memory://", set_as_current=False)
        self.app.conf.agent_database_url = url
        # With slots of its own: a worker that an earlier test ran in this process was told to stop.
        self.runtime = Runtime(Settings(url), InlineBell, clock=clock, slots=Slots.temporary())
        AppState.of(self.app).use_runtime(self.runtime)
        self.requests: list[Any] = []

    def close(self) -> None:
        self.runtime.engine.dispose()

    def agent(self, *tools: Any, name: str = "order", **steps: Callable[[Any], Any]) -> Agent:
        """Make an agent of these tools and steps; the first step starts it."""
        agent = Agent(name, app=self.app, tools=tools)
        for index, (step, function) in enumerate(steps.items()):
            agent.step(function, name=step, start=index == 0)
        return agent

    def run(self, agent: Agent, run_id: str = "run-1", **state: Any) -> RunHandle:
        """Start a run and work until no doorbell is left."""
        run = agent.enqueue(state, run_id=run_id)
        self.work(agent)
        return run

    def work(self, agent: Agent) -> None:
        answer_all(self.runtime, agent)

    def later(self, agent: Agent, seconds: float) -> None:
        """Let time pass, sweep, and work."""
        self.runtime.clock.advance(seconds)
        Sweeper(self.runtime).sweep()
        self.work(agent)

    def counts(self) -> dict[str, int]:
        """Count the rows of all tables of the ledger that are there."""
        store = SqlStore(self.runtime.engine, prefix="agent_checkpoint_")
        wanted = [*self.runtime.tables.metadata.sorted_tables, *store.metadata.sorted_tables]
        there = set(sqlalchemy.inspect(self.runtime.engine).get_table_names())
        with self.runtime.engine.connect() as connection:
            return {
                table.name: connection.execute(
                    sqlalchemy.select(sqlalchemy.func.count()).select_from(table)
                ).scalar_one()
                for table in wanted
                if table.name in there
            }
