"""What is compared: the same chain of empty steps, carried by Celery alone and by the engine. One entry of a table each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.notes import Notes

if TYPE_CHECKING:
    from celery import Celery


class Chain(Protocol):
    """Runs of empty steps, one after the other; the last one makes a note."""

    def start(self, run_id: str, steps: int) -> None:
        """Start a run of so many steps."""
        ...

    def unfinished(self) -> int:
        """Return how many runs have made their note and are not committed yet."""
        ...

    def close(self) -> None:
        """Let go of what the calling process holds."""
        ...


class RawChain:
    """The reference: a task that does nothing and sends itself again, acknowledged late as the engine's steps are.

    Args:
        key: of the variant, which names the task.
        app: of worker or caller.
        notes: of the runs' ends.
    """

    def __init__(self, key: str, app: Celery, notes: Notes) -> None:
        # Not shared with the process's other apps, of which a caller has several.
        @app.task(name=f"{key}.step", shared=False, acks_late=True, reject_on_worker_lost=True, ignore_result=True)  # type: ignore[untyped-decorator]
        def step(run_id: str, left: int) -> None:
            if left > 1:
                step.delay(run_id, left - 1)
            else:
                notes.add(run_id)

        self._step = step

    def start(self, run_id: str, steps: int) -> None:
        """See :class:`Chain`."""
        self._step.delay(run_id, steps)

    def unfinished(self) -> int:
        """See :class:`Chain`; Celery alone commits nothing."""
        return 0

    def close(self) -> None:
        """See :class:`Chain`."""


class AgentChain:
    """An agent whose one step follows itself.

    Args:
        key: of the variant, which names the agent.
        app: of worker or caller.
        notes: of the runs' ends.
        effect: that of the tool which each step calls once; none is called if not given.
        **options: of the agent.
    """

    def __init__(self, key: str, app: Celery, notes: Notes, *, effect: str | None = None, **options: Any) -> None:
        from agent_tasks import Agent, done, tool  # not in the reference's worker

        key_lifetime = timedelta(hours=1) if effect == "keyed" else None
        act = None if effect is None else tool(effect=effect, key_lifetime=key_lifetime, bind=False)(act_on_nothing)
        self._agent = Agent(key, app=app, tools=[] if act is None else [act], **options)

        @self._agent.step
        def step(state: Any) -> Any:
            left = state["left"] = state["left"] - 1
            if act is not None:
                act(left)
            if left:
                return step
            notes.add(state["run"])
            return done()

    def start(self, run_id: str, steps: int) -> None:
        """See :class:`Chain`."""
        self._agent.enqueue({"run": run_id, "left": steps}, run_id=run_id)

    def unfinished(self) -> int:
        """See :class:`Chain`."""
        from sqlalchemy import func, select

        from agent_tasks.states import FINISHED

        runs = self._agent.runtime.tables.runs
        count = select(func.count()).select_from(runs).where(runs.c.due_at.isnot(None), runs.c.status.notin_(FINISHED))
        with self._agent.runtime.engine.connect() as connection:
            return int(connection.execute(count).scalar_one())

    def close(self) -> None:
        """See :class:`Chain`."""
        self._agent.runtime.engine.dispose()


def act_on_nothing(number: int) -> int:
    return number


@dataclass(frozen=True)
class Variant:
    """One way to carry the chain.

    Attributes:
        label: what people call it.
        make: declares the chain on an app by the variant's key, in worker and caller alike.
        budget: the least of its steps a second on servers, as a part of the reference's.
    """

    label: str
    make: Callable[[str, Celery, Notes], Chain]
    budget: float | None = None


REFERENCE = "raw"

#: What takes turns. An engine that learns another way to carry a chain is one more entry.
VARIANTS = {
    REFERENCE: Variant("raw Celery chain", RawChain),
    "steps": Variant("steps without a tool", AgentChain, budget=0.55),
    "effect": Variant("steps with one recorded effect", partial(AgentChain, effect="keyed"), budget=0.45),
    "coalesced": Variant("several steps in one message", partial(AgentChain, coalesce=True), budget=1.2),
}

#: With what only the count of round trips looks at.
ALL = {**VARIANTS, "read": Variant("steps with one recorded read", partial(AgentChain, effect="read"))}
