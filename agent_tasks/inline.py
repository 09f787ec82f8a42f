"""A whole run in one process, without broker or worker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_tasks.config import Settings
from agent_tasks.coordinator import Coordinator
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import RunFailed
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime

if TYPE_CHECKING:
    from agent_tasks.agent import Agent
    from agent_tasks.doorbell import Ring


def run_inline(agent: Agent, state: dict[str, Any]) -> Any:
    """See ``Agent.run_inline``."""
    with tempfile.TemporaryDirectory(prefix="agent-tasks-") as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        upgrade(url)
        runtime = Runtime(Settings(url), InlineBell)
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
            runtime.engine.dispose()


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


def answer(runtime: Runtime, agent: Agent, ring: Ring) -> dict[str, Exception]:
    """Answer one doorbell, and ack it; return what the step raised, as :func:`answer_all` does."""
    coordinator = Coordinator(runtime)
    coordinator.handle(agent, ring.step, ring.run_id, ring.seq)
    runtime.boundary.ack("doorbell", lambda: None)
    return coordinator.ending.raised
