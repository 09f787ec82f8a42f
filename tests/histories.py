"""A run that goes step by step, whose history is then damaged, found unhealthy, or begun again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, update

from agent_tasks import Agent, RunHandle, Tool, current_run, done, tool
from agent_tasks.doorbell import InlineBell
from agent_tasks.inline import answer
from agent_tasks.integration import AppState
from agent_tasks.runtime import Runtime
from agent_tasks.testing import check_invariants
from tests.one_process import OneProcess

RUN = "run-1"

#: The steps of a walker.
ALL = ["s1", "s2", "s3", "s4"]


class History(OneProcess):
    """A ledger with an agent whose every step charges once, notes itself and says something."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.bodies: list[tuple[int, str]] = []

    def charge(self) -> Tool[..., Any]:
        """Return a tool that notes each request of it, and can be neither asked about nor sent again."""

        @tool(effect="manual", timeout=timedelta(seconds=10))
        def charge(what: Any) -> str:
            self.requests.append(what)
            return f"charged {what}"

        return charge

    def walker(self, steps: int = 4, **options: Any) -> Agent:
        """Return an agent of steps ``s1``, ``s2`` …; the last one ends the run."""

        charge = self.charge()
        agent = Agent("walker", app=self.app, tools=[charge], **options)

        def body(number: int) -> Callable[[Any], Any]:
            def step(state: Any) -> Any:
                name = f"s{number}"
                self.bodies.append((current_run.line, name))
                state[name] = charge(name)
                state["made_on"] = current_run.line
                state.messages.append({"role": "assistant", "content": name})
                return (
                    done(sorted(k for k in state if k != "made_on"))
                    if number == steps
                    else agent.steps[f"s{number + 1}"]
                )

            return step

        for number in range(1, steps + 1):
            agent.step(body(number), name=f"s{number}", start=number == 1)
        return agent

    def begun(self, agent: Agent, steps: int, **options: Any) -> RunHandle:
        """Start a run and let this many steps commit; the doorbell of the next one waits."""
        run = agent.enqueue({}, run_id=RUN, **options)
        self.go(agent, steps)
        return run

    def go(self, agent: Agent, steps: int) -> None:
        """Answer this many doorbells."""
        for _ in range(steps):
            answer(self.runtime, agent, self.runtime.bell.rings.popleft())  # type: ignore[attr-defined]

    def walk_on(self, agent: Agent, run: RunHandle) -> None:
        """Let a walker come to its end; fail unless it has taken every step and each of them has charged once."""
        self.work(agent)
        assert run.get(timeout=0) == ALL
        assert self.requests == ALL

    def another_process(self) -> None:
        """Go on in a process that remembers nothing of the run."""
        rings = self.runtime.bell.rings  # type: ignore[attr-defined]
        self.runtime = Runtime(self.runtime.settings, InlineBell, engine=self.runtime.engine, clock=self.runtime.clock)
        self.runtime.bell.rings.extend(rings)  # type: ignore[attr-defined]
        AppState.of(self.app).use_runtime(self.runtime)

    def row(self) -> Any:
        """Return the run's row."""
        row = self.runtime.boundary.read(
            self.runtime.engine, lambda connection: self.runtime.runs.find(connection, RUN)
        )
        assert row is not None
        return row

    def place(self) -> tuple[int, int, int, int]:
        """Return line, parent_line, line_start_seq and seq of the run."""
        row = self.row()
        return row["line"], row["parent_line"], row["line_start_seq"], row["seq"]

    def sound(self) -> None:
        """Fail if the ledger breaks an invariant."""
        with self.runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            assert check_invariants(connection) == []

    def lose(self, seq: int, line: int = 0) -> None:
        """Delete a checkpoint behind the engine's back."""
        table = self.runtime.store.tables.checkpoints
        with self.runtime.engine.connect() as connection, connection.begin():
            connection.execute(delete(table).where(table.c.run_id == RUN, table.c.line == line, table.c.seq == seq))

    def garble_message(self, position: int) -> None:
        """Change a message behind the engine's back."""
        table = self.runtime.store.tables.messages
        with self.runtime.engine.connect() as connection, connection.begin():
            changed = update(table).where(table.c.run_id == RUN, table.c.position == position).values(payload=b"lost")
            assert connection.execute(changed).rowcount == 1
