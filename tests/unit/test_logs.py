"""What an operator reads in the log of a worker: what a run waits for, what he can do, and how it ended."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    AskAgain,
    CannotTell,
    Happened,
    NotHappened,
    Operation,
    PartlyHappened,
    RunUnfinished,
    done,
    fail,
    tool,
)
from agent_tasks.migrate import revision, upgrade
from agent_tasks.operations import MAX_SAID
from agent_tasks.states import NOT_BLOCKING, REPLIES
from agent_tasks.sweeper import Sweeper
from tests.one_process import OneProcess
from tests.questions import STOPS, Stopped
from tests.rows import Rows

SECONDS = timedelta(seconds=10)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


# -- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [name for name in STOPS if name not in NOT_BLOCKING])
def test_a_run_that_needs_attention_is_a_warning_with_the_lines_that_answer(
    here: OneProcess, log: pytest.LogCaptureFixture, stop: str
) -> None:
    stopped: Stopped = STOPS[stop](here)
    item = stopped.item
    (said,) = [text for text in warnings(log) if "needs attention" in text]
    reason, *lines = said.splitlines()
    assert reason == f"run run-1 needs attention: {str(stopped.run.waiting_for).removeprefix('a person: ')}"
    assert [line.split(" --")[0] for line in lines] == [
        f"  {stop}: agent-tasks -A yourapp inbox resolve {item.item_id} {reply}" for reply in REPLIES[item.question]
    ]
    assert all(line.endswith(" --why WHY") for line in lines)


def test_the_lines_that_answer_name_the_app_of_the_worker_and_ask_for_the_result(
    here: OneProcess, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["celery", "-A", "shop", "worker", "-l", "INFO"])
    item = STOPS["unknown"](here).item
    assert (
        f"unknown: agent-tasks -A shop inbox resolve {item.item_id} happened --result JSON --why WHY\n"
        f"  unknown: agent-tasks -A shop inbox resolve {item.item_id} did-not-happen --why WHY"
    ) in log.text


def test_where_the_ledger_ends_with_the_run_no_command_is_printed(
    here: OneProcess, log: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunUnfinished):
        doubtful(here, "manual", TimeoutError("no answer")).run_inline({})
    assert "unknown: nobody can answer, since this ledger ends with the run" in log.text
    assert "inbox resolve" not in log.text


def test_a_run_that_loses_workers_which_nobody_saw_die_is_a_warning_too(
    here: OneProcess, log: pytest.LogCaptureFixture
) -> None:
    rows, sweeper = Rows(here), Sweeper(here.runtime)
    sweeper.sweep()
    rows.queue("run-1")
    for number in range(here.runtime.settings.max_crashes):
        rows.claim("run-1", f"token-{number}")
        here.runtime.clock.advance(here.runtime.settings.lease_seconds + 1)
        sweeper.sweep()
    said = warnings(log)[-1]
    assert said.startswith(
        "run run-1 needs attention: step pay lost its worker 3 times\n  crashes: agent-tasks -A yourapp"
    )
    assert said.endswith(" abort --why WHY")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda _state: done("paid"), "run run-1 succeeded"),
        (lambda _state: fail("no such cart"), "run run-1 failed: no such cart"),
        (lambda state: done(state["cart"]), "run run-1 failed: KeyError: 'cart'"),
        (
            lambda _state: done(object()),
            "run run-1 failed: UnstorableValue: the output of step 'pay' cannot be stored: an object has",
        ),
    ],
)
def test_the_end_of_a_run_is_said_once(
    here: OneProcess, log: pytest.LogCaptureFixture, step: Callable[[Any], Any], said: str
) -> None:
    here.run(here.agent(pay=step))
    ends = [record for record in log.records if getattr(record, "action", "") == "run_ended"]
    assert [(record.levelno, record.getMessage()[: len(said)]) for record in ends] == [(logging.INFO, said)]


def test_a_step_that_is_called_in_a_step_is_warned_of_once_a_place(
    here: OneProcess, log: pytest.LogCaptureFixture
) -> None:
    def first(state: Any) -> Any:
        for _ in range(2):
            said = second(state)
        return said

    order = here.agent(first=first)
    second = order.step(lambda _state: done("paid"), name="second")
    assert here.run(order).get(timeout=0) == "paid"
    (warned,) = [record for record in log.records if getattr(record, "action", "") == "step_called"]
    assert warned.getMessage().startswith("run run-1: step first called step second as a function (")
    assert "return the step itself: return " in warned.getMessage()


def test_a_step_that_a_test_calls_is_no_reason_to_warn(here: OneProcess, log: pytest.LogCaptureFixture) -> None:
    order = here.agent(first=lambda _state: done("paid"))
    assert order.steps["first"]({}) == done("paid")
    assert log.text == ""


# -- doubts -------------------------------------------------------------------------------------------------------------


def doubtful(here: OneProcess, effect: str, error: BaseException) -> Agent:
    """Return an agent whose request is answered with this error."""
    declaration: dict[str, Any] = {"key_lifetime": SECONDS} if effect == "keyed" else {"timeout": SECONDS}

    @tool(effect=effect, **declaration, bind=False)
    def charge() -> None:
        raise error

    if effect == "probed":
        charge.probe(lambda _operation: NotHappened())
    return here.agent(charge, pay=lambda _state: done(charge()))


@pytest.mark.parametrize(
    ("effect", "error", "next_"),
    [
        (
            "keyed",
            TimeoutError("no answer"),
            "it is sent again with the same key in 1 s, while the key lives and its run is not cancelled",
        ),
        ("probed", TimeoutError("no answer"), "its probe is asked once nobody can be in the middle of it any more"),
        ("manual", TimeoutError("no answer"), "a person is asked once nobody can be in the middle of it any more"),
    ],
)
def test_an_exception_that_becomes_a_doubt_is_a_warning_with_its_traceback(
    here: OneProcess, log: pytest.LogCaptureFixture, effect: str, error: BaseException, next_: str
) -> None:
    order = doubtful(here, effect, error)
    run = order.enqueue({}, run_id="run-1")
    here.work(order)
    (operation,) = run.operations()
    (record,) = [record for record in log.records if getattr(record, "action", "") == "call_in_doubt"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"run run-1: step pay: nobody can tell whether charge happened (operation {operation.operation_id}): "
        f"{type(error).__name__}: {error}; {next_}"
    )
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize(
    ("effect", "next_"),
    [
        ("keyed", "the call is sent again with the same key"),
        ("probed", "whether the call happened is asked all the same"),
    ],
)
def test_a_bug_in_a_body_is_said_to_look_like_one(
    here: OneProcess, log: pytest.LogCaptureFixture, effect: str, next_: str
) -> None:
    run = here.run(doubtful(here, effect, AttributeError("'dict' object has no attribute 'id'")))
    (said,) = [record for record in log.records if getattr(record, "action", "") == "looks_like_a_bug"]
    assert (said.levelno, said.getMessage()) == (
        logging.WARNING,
        f"run run-1: AttributeError looks like a bug in the body of charge: mend it and restart the worker; {next_}",
    )
    assert run.status == "waiting"  # a doubt it stays


def test_a_lost_answer_is_not_said_to_look_like_a_bug(here: OneProcess, log: pytest.LogCaptureFixture) -> None:
    here.run(doubtful(here, "keyed", TimeoutError("no answer")))
    assert "looks like a bug" not in log.text


def test_the_traceback_of_a_doubt_can_be_written_to_any_log(here: OneProcess, log: pytest.LogCaptureFixture) -> None:
    here.run(doubtful(here, "manual", TimeoutError("no \ud800 answer")))
    assert "TimeoutError: no \\ud800 answer" in log.text
    assert "\ud800" not in log.text


@pytest.mark.parametrize("effect", ["keyed", "probed", "manual"])
def test_a_run_that_waits_because_of_a_doubt_is_a_warning(
    here: OneProcess, log: pytest.LogCaptureFixture, effect: str
) -> None:
    run = here.run(doubtful(here, effect, TimeoutError("no answer")))
    _, reason = str(run.waiting_for).split("Z: ")  # its time comes first
    assert f"run run-1: waiting: {reason}" in warnings(log)


def test_the_traceback_of_a_doubt_is_kept_in_the_evidence(here: OneProcess) -> None:
    (operation,) = here.run(doubtful(here, "manual", TimeoutError("no answer"))).operations()
    (fact,) = operation.evidence
    assert (fact["what"], fact["said"], fact["attempt"]) == ("unknown", "TimeoutError: no answer", 1)
    assert fact["traceback"].startswith("Traceback (most recent call last):")
    assert "in charge" in fact["traceback"]
    assert fact["traceback"].endswith("TimeoutError: no answer\n")


def test_of_a_long_traceback_the_end_is_kept(here: OneProcess) -> None:
    error = TimeoutError("\0" + "long " * MAX_SAID + "end")
    (operation,) = here.run(doubtful(here, "manual", error)).operations()
    (fact,) = operation.evidence
    assert len(fact["traceback"]) == MAX_SAID
    assert fact["traceback"].endswith("long end\n")


def said_of(log: pytest.LogCaptureFixture, action: str) -> list[tuple[int, str]]:
    found = [record for record in log.records if getattr(record, "action", "") == action]
    return [(record.levelno, record.getMessage()) for record in found]


def test_a_keyed_request_that_is_sent_again_after_a_crash_is_a_line(
    here: OneProcess, log: pytest.LogCaptureFixture
) -> None:
    @tool(effect="keyed", key_lifetime=timedelta(days=1), bind=True)
    def charge(operation: Operation) -> str:
        here.requests.append(operation.operation_id)
        if len(here.requests) == 1:
            raise MemoryError
        return "charged"

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    here.later(order, 60)
    assert run.get(timeout=0) == "charged"
    assert said_of(log, "call_sent_again") == [
        (
            logging.INFO,
            f"run run-1: step pay: charge is sent again with the same key, request 2 (operation {here.requests[0]})",
        )
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Happened({"card": "4242"}), "happened"),
        (NotHappened(), "not happened, which counts once the effect would be visible"),
        (AskAgain(timedelta(minutes=1)), "ask again after 0:01:00"),
        (PartlyHappened("half of it"), "partly happened: half of it"),
        (CannotTell("closed"), "cannot tell: closed"),
    ],
)
def test_what_a_probe_answered_is_a_line_without_the_result(
    here: OneProcess, log: pytest.LogCaptureFixture, answer: Any, said: str
) -> None:
    @tool(effect="probed", timeout=SECONDS, visible_after=timedelta(hours=1), bind=False)
    def charge() -> None:
        raise TimeoutError("no answer")

    charge.probe(lambda _operation: answer)
    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    (operation,) = run.operations()
    here.later(order, 30)
    assert said_of(log, "probe_answered") == [
        (
            logging.INFO,
            f"run run-1: step pay: the probe of charge answered: {said} (operation {operation.operation_id})",
        )
    ]


# -- Alembic ------------------------------------------------------------------------------------------------------------


def test_a_ledger_is_migrated_and_looked_at_without_a_word_of_alembic(
    here: OneProcess, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    upgrade(f"sqlite:///{tmp_path / 'new.db'}")
    assert revision(here.runtime.engine) == "0004"
    assert [record for record in log.records if record.name.startswith("alembic")] == []


def test_alembic_is_heard_again_afterwards(here: OneProcess, log: pytest.LogCaptureFixture) -> None:
    revision(here.runtime.engine)
    logging.getLogger("alembic.runtime.migration").info("the user's own migration")
    assert "the user's own migration" in log.text


def test_the_log_does_not_promise_a_second_request_of_a_run_that_was_cancelled_meanwhile(
    here: OneProcess, log: pytest.LogCaptureFixture
) -> None:
    @tool(effect="keyed", key_lifetime=SECONDS, bind=False)
    def charge() -> None:
        here.requests.append("charge")
        run.cancel(who="kim", why="not needed")
        raise TimeoutError("no answer")

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = order.enqueue({}, run_id="run-1")
    here.work(order)
    (doubt,) = [record.getMessage() for record in log.records if getattr(record, "action", "") == "call_in_doubt"]
    assert doubt.endswith(
        "its run was cancelled, so it is not sent again: a person is asked once nobody can be in the middle of it any more"
    )
    assert run.waiting_for is not None
    assert run.waiting_for.endswith("in the middle of charge any more; its run was cancelled, so it is not sent again")
    assert here.requests == ["charge"]
