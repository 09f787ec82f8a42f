"""Steps that share a message beside waits, progress and what an attempt opens: a message ends where its run waits (I2, I7, I8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, Coalesce, Operation, RunFailed, calls, done, sleep, tool, wait_until
from agent_tasks.coalesce import BOUNDARIES, EACH
from agent_tasks.schema import WAITS_PROTOCOL
from agent_tasks.states import RunStatus
from tests.rows import Rows
from tests.unit.test_coalesce import RUN, Here, nothing

HOUR = 3600.0

both_ways = pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])


@pytest.fixture
def here(database_url: str) -> Iterator[Here]:
    with closing(Here(database_url)) as made:
        yield made


def committed(here: Here) -> list[str | None]:
    """Return the steps whose checkpoints are there, the first one first."""
    return [each.step for each in here.runtime.store.list_checkpoints(RUN)][::-1]


@both_ways
def test_a_step_that_returns_a_sleep_ends_the_message_with_all_its_checkpoints(here: Here, checkpoints: str) -> None:
    def rest(_state: Any) -> Any:
        return sleep(HOUR, then=agent.steps["s3"])

    agent = here.chain(nothing, nothing, rest, nothing, nothing, coalesce=Coalesce(checkpoints=checkpoints))
    run = here.run(agent)
    row = Rows(here).find(RUN)
    assert (row["status"], row["seq"], row["next_step"], row["lease_token"]) == (RunStatus.WAITING, 3, "s3", None)
    assert (here.messages, committed(here)) == (1, [None, "s0", "s1", "s2"])
    here.later(agent, HOUR - 10)
    assert (run.status, here.messages) == (RunStatus.WAITING, 1)
    here.later(agent, 10)
    assert run.get(timeout=0) == {"ran": [0, 1, 2, 3, 4]}
    assert here.messages == 2


@both_ways
def test_a_sleep_counts_from_the_step_that_returns_it_and_not_from_the_messages_claim(
    here: Here, checkpoints: str
) -> None:
    def take_time(_state: Any) -> None:
        here.runtime.clock.advance(100.0)

    agent = here.chain(
        take_time,
        take_time,
        lambda _state: sleep(HOUR, then=agent.steps["s3"]),
        nothing,
        coalesce=Coalesce(seconds=1000.0, checkpoints=checkpoints),
    )
    here.run(agent)
    row = Rows(here).find(RUN)
    assert here.messages == 1
    assert HOUR - 10 < (row["due_at"] - row["now"]) / 1e6 <= HOUR


@both_ways
def test_a_check_is_asked_in_a_message_of_its_own_and_its_answer_goes_on(here: Here, checkpoints: str) -> None:
    made = Agent("order", app=here.app, coalesce=Coalesce(checkpoints=checkpoints))
    answers = [False, "shipped"]

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return second

    @made.step
    def second(_state: Any) -> Any:
        return wait_until(asked, every=HOUR, then=third)

    @made.step
    def asked(_state: Any) -> Any:
        return answers.pop(0)

    @made.step
    def third(state: Any, answer: str) -> Any:
        state["answer"] = answer
        return fourth

    @made.step
    def fourth(state: Any) -> Any:
        return done(state["answer"])

    run = here.run(made)
    row = Rows(here).find(RUN)
    assert (row["status"], row["seq"], row["next_step"], row["protocol"]) == (
        RunStatus.WAITING,
        2,
        "asked",
        WAITS_PROTOCOL,
    )
    assert here.messages == 2  # the steps until the wait, and the no
    here.later(made, HOUR)
    assert run.get(timeout=0) == "shipped"
    assert here.messages == 3


@both_ways
def test_planned_calls_in_a_message_do_not_open_the_run_to_releases_without_waits(here: Here, checkpoints: str) -> None:
    act = tool(effect="manual", name="act", timeout=timedelta(seconds=10))(lambda: "acted")
    made = Agent("order", app=here.app, tools=[act], coalesce=Coalesce(checkpoints=checkpoints))
    seen: list[int] = []

    def note() -> None:
        seen.append(Rows(here).find(RUN)["protocol"])

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return wait_until(asked, every=HOUR, then=plan)

    @made.step
    def asked(_state: Any) -> Any:
        return True

    @made.step
    def plan(_state: Any, _answer: bool) -> Any:
        return calls([act.call()], then=after)

    @made.step
    def after(_state: Any, results: Any) -> Any:
        note()
        return rest

    @made.step
    def rest(_state: Any) -> Any:
        return sleep(HOUR, then=last)

    @made.step
    def last(_state: Any) -> Any:
        return done("ended")

    run = here.run(made)
    note()
    here.later(made, HOUR)
    assert run.get(timeout=0) == "ended"
    assert seen == [WAITS_PROTOCOL, WAITS_PROTOCOL]


@both_ways
def test_each_step_in_a_message_closes_what_it_has_opened_before_its_checkpoint(here: Here, checkpoints: str) -> None:
    notes: list[str] = []
    agent: Any = None

    def use(_state: Any) -> None:
        notes.append(f"use {agent.desk()['number']}")

    agent = here.chain(use, nothing, use, coalesce=Coalesce(checkpoints=checkpoints))

    def desk() -> Iterator[Any]:
        number = len([note for note in notes if note.startswith("open")])
        notes.append(f"open {number}")
        yield {"number": number}
        notes.append(f"close {number} with {len(committed(here)) - 1} checkpoints")

    agent.desk = agent.resource(desk)
    here.run(agent).get(timeout=0)
    # Nothing was called, so with boundaries the last step's message is where they are committed.
    third = 2 if checkpoints == EACH else 0
    assert notes == [
        "open 0",
        "use 0",
        "close 0 with 0 checkpoints",
        "open 1",
        "use 1",
        f"close 1 with {third} checkpoints",
    ]
    assert here.messages == 1


@both_ways
def test_a_resource_is_kept_out_of_the_state_of_every_step_in_a_message(here: Here, checkpoints: str) -> None:
    agent: Any = None

    def keep(state: Any) -> None:
        state["kept"] = agent.desk()

    agent = here.chain(nothing, keep, nothing, coalesce=Coalesce(checkpoints=checkpoints))

    def desk() -> Iterator[Any]:
        yield {"number": 1}

    agent.desk = agent.resource(desk)
    with pytest.raises(RunFailed, match="desk"):
        here.run(agent).get(timeout=0)
    assert committed(here) == [None, "s0"]


@both_ways
def test_progress_is_saved_behind_the_checkpoints_of_the_steps_before(here: Here, checkpoints: str) -> None:
    seen: list[Any] = []

    def body(operation: Operation) -> str:
        operation.save_progress(1)
        operation.record_external_id("v-1")
        with here.runtime.engine.connect() as connection:
            (kept,) = here.runtime.ledger.of_run(connection, RUN, from_seq=0)
        seen.append((committed(here), kept.progress, kept.external_id))
        return "acted"

    act = tool(effect="manual", bind=True, name="act", timeout=timedelta(seconds=10))(body)
    agent = here.chain(
        nothing,
        nothing,
        lambda _state: act() and None,
        nothing,
        tools=[act],
        coalesce=Coalesce(checkpoints=checkpoints),
    )
    assert here.run(agent).get(timeout=0) == {"ran": [0, 1, 2, 3]}
    assert seen == [([None, "s0", "s1"], 1, "v-1")]
    assert here.messages == 1
