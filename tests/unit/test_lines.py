"""Any sequence of commits, fallbacks and resumes keeps each line as it was, and stands where its model stands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_tasks import Agent, RunHandle, current_run
from agent_tasks.inline import answer
from agent_tasks.lines import NewLine, next_place, standing_line
from agent_tasks.states import RunStatus
from agent_tasks.testing import check_invariants
from checkpoint import Position
from tests.one_process import OneProcess
from tests.questions import turn_bits

_runs = itertools.count()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    folder: Path = tmp_path_factory.mktemp("lines")
    with closing(OneProcess(f"sqlite:///{folder / 'agent.db'}")) as here:
        yield here


@pytest.fixture(scope="module")
def agent(here: OneProcess) -> Agent:
    """Notes at each step where it stands, for ever."""

    def step(state: Any) -> Any:
        state["trail"] = [*state["trail"], [current_run.line, current_run.seq]]
        state.messages.append(f"{current_run.line}.{current_run.seq}")
        return agent.steps["step"]

    agent = here.agent(name="endless", step=step)
    return agent


@dataclass
class Model:
    """What must stand: the trail that led to each checkpoint, and the run's present history of them."""

    trail: list[tuple[int, int]] = field(default_factory=list)  # of the place where the run stands
    saved: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=lambda: {(0, 0): []})
    line: int = 0
    damaged: set[tuple[int, int]] = field(default_factory=set)
    begun_at: set[int] = field(default_factory=set)  # by themselves, since a person's word

    def place(self, seq: int) -> tuple[int, int]:
        return self.trail[seq - 1] if seq else (0, 0)

    def claim(self) -> RunStatus:
        """A worker hears the doorbell."""
        seq = len(self.trail)
        if self.place(seq) not in self.damaged:
            self.trail.append((self.line, seq + 1))
            self.saved[self.line, seq + 1] = list(self.trail)
            return RunStatus.QUEUED
        usable = [older for older in range(seq) if self.place(older) not in self.damaged]
        if not usable or usable[-1] in self.begun_at:
            return RunStatus.NEEDS_ATTENTION
        self.begun_at.add(usable[-1])
        self.begin(usable[-1])
        return RunStatus.QUEUED

    def begin(self, seq: int) -> None:
        self.line += 1
        self.trail = self.trail[:seq]


def position(run: RunHandle, here: OneProcess) -> Any:
    row = here.runtime.boundary.read(here.runtime.engine, lambda c: here.runtime.runs.find(c, run.run_id))
    assert row is not None
    return row


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.one_of(st.just("commit"), st.just("damage"), st.integers(1, 9)), max_size=14))
def test_the_run_stands_where_its_model_stands(here: OneProcess, agent: Agent, acts: list[str | int]) -> None:
    model = Model()
    here.runtime.bell.rings.clear()  # type: ignore[attr-defined]
    run = agent.enqueue({"trail": []}, run_id=f"run-{next(_runs)}")
    for number, act in enumerate(acts):
        if act == "commit":
            if run.status is RunStatus.NEEDS_ATTENTION:
                continue
            here.runtime.bell.rings.clear()  # type: ignore[attr-defined]
            here.runtime.ring(run.run_id)
            answer(here.runtime, agent, here.runtime.bell.rings.popleft())  # type: ignore[attr-defined]
            assert run.status is model.claim()
        elif act == "damage":
            line, seq = model.place(len(model.trail))
            if (line, seq) not in model.damaged and seq:
                turn_bits(here.runtime, [seq], run.run_id, line)
                model.damaged.add((line, seq))
        else:
            assert isinstance(act, int)
            first = min(act, len(model.trail) + 1)
            if model.place(first - 1) not in model.damaged:
                run.resume(from_seq=first, who="kim", why=f"word {number}")
                model.begin(first - 1)
                model.begun_at.clear()
        row = position(run, here)
        assert (row["line"], row["seq"]) == (model.line, len(model.trail))
        assert standing_line(row) == model.place(len(model.trail))[0]
        if model.place(len(model.trail)) not in model.damaged:
            state = here.runtime.store.load_parent_of(next_place(row))
            assert [tuple(step) for step in state.agent_state["trail"]] == model.trail
            assert state.messages == [f"{line}.{seq}" for line, seq in model.trail]
    for (line, seq), trail in model.saved.items():
        if (line, seq) not in model.damaged:
            state = here.runtime.store.load(run.run_id, seq, line=line)
            assert [tuple(step) for step in state.agent_state["trail"]] == trail
    with here.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


def test_a_line_says_where_it_begins() -> None:
    line = NewLine(2, 1, 4, "pay", "money")
    row = {"run_id": "run-1", **line.columns()}
    assert standing_line(row) == 1
    assert next_place(row) == Position("run-1", 2, 5)
    assert standing_line({**row, "seq": 5}) == 2
