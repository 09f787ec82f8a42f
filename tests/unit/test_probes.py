"""Probes: which timeout they have, what they may answer, and what every other answer comes to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import AskAgain, CannotTell, Happened, NotHappened, Operation, PartlyHappened, Tool, done, tool
from agent_tasks.clock import Clock
from agent_tasks.probing import run_probe
from agent_tasks.recovery import Promise
from agent_tasks.states import Effect
from tests.one_process import OneProcess

SECONDS = timedelta(seconds=10)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


def nothing() -> None: ...


def probed(answer: Callable[[Operation], Any], timeout: timedelta = SECONDS) -> Tool[..., Any]:
    charge = tool(effect="probed", timeout=SECONDS, name="charge", bind=False)(lambda cents: cents)
    charge.probe(timeout=timeout)(answer)
    return charge


OPERATION = Operation({"operation_id": "op_1"}, Clock(), 0.0)


def test_a_probe_has_its_own_timeout_or_that_of_its_tool() -> None:
    charge = tool(effect="probed", timeout=SECONDS, name="charge", bind=False)(lambda cents: cents)

    @charge.probe
    def look(operation: Operation) -> NotHappened:
        return NotHappened()

    assert (charge.probe_body, charge.probe_timeout) == (look, SECONDS)
    charge.probe(timeout=timedelta(seconds=3))(look)
    assert charge.probe_timeout == timedelta(seconds=3)
    assert isinstance(look(OPERATION), NotHappened)  # it stays the function that it was


def test_a_keyed_tool_may_have_a_probe_with_a_timeout_of_its_own() -> None:
    charge = tool(effect="keyed", key_lifetime=SECONDS, name="charge", bind=False)(lambda cents: cents)
    charge.probe(timeout=SECONDS)(lambda _operation: NotHappened())
    assert charge.promise == Promise(Effect.KEYED, has_probe=True)


@pytest.mark.parametrize(
    "answer", [Happened(7, "ch_7"), NotHappened(), AskAgain(SECONDS), PartlyHappened("half"), CannotTell("closed")]
)
def test_a_probe_is_asked_about_its_operation(answer: Any) -> None:
    asked: list[Operation] = []
    assert run_probe(probed(lambda operation: asked.append(operation) or answer), OPERATION) == answer
    assert asked == [OPERATION]


def raising(error: BaseException) -> Callable[[Operation], Any]:
    def probe(_operation: Operation) -> Any:
        raise error

    return probe


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (raising(ConnectionError("closed")), "the probe raised ConnectionError: closed"),
        (raising(SystemExit(1)), "the probe raised SystemExit: 1"),
        (lambda _operation: None, "the probe returned None, which is no answer"),
        (lambda _operation: True, "the probe returned True, which is no answer"),
        (lambda _operation: "yes" * 20, "the probe returned 'yesyesyesyes...syesyesyesyes', which is no answer"),
        (
            lambda _operation: AskAgain(5),  # type: ignore[arg-type]
            "the probe returned AskAgain whose after= is no timedelta. Write timedelta(seconds=5).",
        ),
    ],
)
def test_a_probe_that_does_not_answer_cannot_tell(probe: Callable[[Operation], Any], reason: str) -> None:
    assert run_probe(probed(probe), OPERATION) == CannotTell(reason)


def test_a_probe_that_hangs_cannot_tell() -> None:
    end = threading.Event()
    answer = run_probe(probed(lambda _operation: end.wait(60), timeout=timedelta(milliseconds=20)), OPERATION)
    end.set()
    assert answer == CannotTell("the probe was still at work after 0:00:00.020000")


def test_a_tool_without_a_probe_cannot_tell() -> None:
    charge = tool(effect="manual", timeout=SECONDS)(nothing)
    assert run_probe(charge, OPERATION) == CannotTell("the tool has no probe")


def test_a_probe_is_not_asked_inside_the_run(here: OneProcess) -> None:
    """What it looks up is no call of the run: it would shift the calls that are."""
    inner = tool(effect="read", name="inner")(lambda: here.requests.append("looked"))
    charge = tool(effect="probed", timeout=SECONDS, name="charge", bind=True)(raising(TimeoutError("no answer")))
    charge.probe(lambda _operation: inner() or Happened("found"))
    agent = here.agent(charge, inner, pay=lambda _state: done(charge()))
    run = here.run(agent)
    here.later(agent, SECONDS.total_seconds() + 1)
    assert run.get(timeout=0) == "found"
    assert [operation.tool for operation in run.operations()] == ["charge"]
