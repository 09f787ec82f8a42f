"""A whole run in one process, without broker or worker."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS
from agent_tasks.config import Settings
from agent_tasks.coordinator import Coordinator
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import RunFailed
from agent_tasks.folders import HeldFolder
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_tasks.agent import Agent
    from agent_tasks.doorbell import Ring


@cache
def _empty_ledger() -> bytes:
    """An SQLite file with empty tables: making them takes longer than most runs, and a test suite needs many."""
    with HeldFolder() as folder:
        ledger = folder / "ledger.db"
        upgrade(f"sqlite:///{ledger}")
        return ledger.read_bytes()


@contextmanager
def own_ledger() -> Iterator[Runtime]:
    """Make a runtime on a ledger of its own, whose doorbells stay in memory."""
    with HeldFolder() as folder:
        ledger = folder / "ledger.db"
        ledger.write_bytes(_empty_ledger())
        runtime = Runtime(Settings(f"sqlite:///{ledger}"), InlineBell)
        try:
            yield runtime
        finally:
            runtime.engine.dispose()


def run_inline(agent: Agent, state: dict[str, Any]) -> Any:
    """See ``Agent.run_inline``."""
    with own_ledger() as runtime:
        app_state = AppState.of(agent.app)
        app_state.use_runtime(runtime)
        try:
            run = agent.enqueue(state)
            raised = answer_all(runtime, agent)
            try:
                return run.get(timeout=0)
            except RunFailed as failed:
                raise failed from raised.get(run.run_id)
        finally:
            app_state.use_runtime(None)


def answer_all(runtime: Runtime, agent: Agent) -> dict[str, Exception]:
    """Answer the doorbells of an inline runtime until none is left.

    Returns:
        What steps raised that ended their runs as failed, by run id.
    """
    bell = runtime.bell
    assert isinstance(bell, InlineBell)  # noqa: S101
    raised: dict[str, Exception] = {}
    while bell.rings:
        raised.update(answer(runtime, agent, bell.rings.popleft()))
    return raised


def run_to_its_end(runtime: Runtime, agent: Agent, run_id: str) -> dict[str, Exception]:
    """Answer, sweep and let time pass until a run has ended or waits for a person.

    Returns:
        What steps raised that ended their runs as failed, by run id.
    """
    sweeper, raised = Sweeper(runtime), dict[str, Exception]()
    while True:
        raised.update(answer_all(runtime, agent))
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None or row["status"] in FINISHED or row["status"] == RunStatus.NEEDS_ATTENTION:
            return raised
        missing = max(0, row["due_at"] - row["now"]) / MICROSECONDS
        runtime.clock.advance(missing + 0.001)
        sweeper.sweep()


def answer(runtime: Runtime, agent: Agent, ring: Ring) -> dict[str, Exception]:
    """Answer one doorbell, and ack it; return what the step raised, as :func:`answer_all` does."""
    coordinator = Coordinator(runtime)
    coordinator.handle(agent, ring.step, ring.run_id, ring.seq)
    runtime.boundary.ack("doorbell", lambda: None)
    return coordinator.ending.raised
