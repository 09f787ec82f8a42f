"""A whole run in one process, without broker or worker."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS
from agent_tasks.config import Settings
from agent_tasks.coordinator import Coordinator
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import RunFailed, RunUnfinished, is_a
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

#: Waits of one run that are passed over in this process; one that puts off for ever would keep its caller for ever.
MOST_WAITS = 200


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
        runtime.is_kept = False
        try:
            yield runtime
        finally:
            runtime.engine.dispose()


def run_inline(agent: Agent, state: dict[str, Any]) -> Any:
    """See ``Agent.run_inline``."""
    with own_ledger() as runtime, AppState.of(agent.app).working_with(runtime):
        run = agent.enqueue(state)
        raised = run_to_its_end(runtime, agent, run.run_id)
        try:
            return run.get(timeout=0)
        except (RunFailed, RunUnfinished) as error:
            raise error from raised.get(run.run_id)


def answer_all(runtime: Runtime, agent: Agent) -> dict[str, BaseException | None]:
    """Answer the doorbells of an inline runtime until none is left.

    Returns:
        What ended or stopped runs, as it was raised, by run id; see :class:`agent_tasks.ending.Ending`.
    """
    bell = runtime.bell
    assert isinstance(bell, InlineBell)  # noqa: S101
    raised: dict[str, BaseException | None] = {}
    while bell.rings:
        raised.update(answer(runtime, agent, bell.rings.popleft()))
    return raised


def run_to_its_end(runtime: Runtime, agent: Agent, run_id: str) -> dict[str, BaseException | None]:
    """Answer, sweep and let time pass until a run has ended, waits for a person, or has waited too often.

    Returns:
        What ended or stopped runs, as it was raised, by run id; see :class:`agent_tasks.ending.Ending`.

    Raises:
        KeyboardInterrupt: it struck in a call. A worker keeps that call as a doubt, which its runs outlive; here somebody
            wants his prompt back, and the ledger ends with this process's run.
    """
    bell = runtime.bell
    assert isinstance(bell, InlineBell)  # noqa: S101
    sweeper, raised = Sweeper(runtime), dict[str, BaseException | None]()
    for waits in count():
        while bell.rings:
            raised.update(answer(runtime, agent, bell.rings.popleft()))
            _stop_if_interrupted(raised)
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None or row["status"] in FINISHED or row["status"] == RunStatus.NEEDS_ATTENTION:
            return raised
        if waits == MOST_WAITS:
            return raised
        missing = max(0, row["due_at"] - row["now"]) / MICROSECONDS
        runtime.clock.advance(missing + 0.001)
        sweeper.sweep()
    raise AssertionError("unreachable")


def _stop_if_interrupted(raised: dict[str, BaseException | None]) -> None:
    for error in raised.values():
        if is_a(error, KeyboardInterrupt):
            raise error


def answer(runtime: Runtime, agent: Agent, ring: Ring) -> dict[str, BaseException | None]:
    """Answer one doorbell, and ack it; return what the step raised, as :func:`answer_all` does."""
    coordinator = Coordinator(runtime)
    coordinator.handle(agent, ring.step, ring.run_id, ring.seq)
    runtime.boundary.ack("doorbell", lambda: None)
    return coordinator.ending.raised
