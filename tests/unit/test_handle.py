"""A run as its caller sees it: what is said of it, and what two handles of one run have in common."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import RunFailed, RunHandle, RunUnfinished, ToolFailed, done, fail, tool
from tests.one_process import OneProcess

SECONDS = timedelta(seconds=10)


class Declined(Exception):
    """The vendor's."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


def mailing(here: OneProcess, *, effect: str = "manual", **declaration: Any) -> Any:
    """Return a tool whose request is never answered."""

    @tool(effect=effect, **declaration, bind=False)
    def mail(to: str) -> None:
        here.requests.append(to)
        raise TimeoutError("no answer")

    return mail


def test_an_operation_is_shown_by_its_tool_effect_status_and_attempts(here: OneProcess) -> None:
    create_order = tool(effect="keyed", key_lifetime=SECONDS, name="create_order", bind=False)(lambda: "order-1")
    (operation,) = here.run(here.agent(create_order, create=lambda _state: done(create_order()))).operations()
    assert repr(operation) == "<operation create_order keyed succeeded attempts=1>"


def test_two_handles_of_one_run_are_equal(here: OneProcess, tmp_path: Path) -> None:
    order = here.agent(create=lambda _state: done())
    run, other = here.run(order, "run-1"), here.run(order, "run-2")
    assert run == order.run("run-1")
    assert {run, order.run("run-1"), other} == {run, other}
    assert run != other
    assert run != "run-1"

    elsewhere = OneProcess(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert run != RunHandle(elsewhere.runtime, "run-1")
    elsewhere.close()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda _state: fail("no such cart"), "run 'run-1' failed: no such cart"),
        (lambda state: done(state["cart"]), "run 'run-1' failed: KeyError: 'cart'"),
    ],
)
def test_a_failed_run_says_why_in_the_words_of_its_step(here: OneProcess, step: Any, said: str) -> None:
    run = here.run(here.agent(create=step))
    with pytest.raises(RunFailed) as failed:
        run.get(timeout=0)
    assert str(failed.value) == said


def test_a_run_that_waits_for_a_person_says_what_is_asked(here: OneProcess) -> None:
    mail = mailing(here, timeout=SECONDS)
    order = here.agent(mail, send=lambda _state: done(mail("kim")))
    run = here.run(order)
    with pytest.raises(RunUnfinished) as waits:
        run.get(timeout=0)
    assert str(waits.value) == (
        "run 'run-1' is waiting, it waits: until nobody can be in the middle of mail any more (TimeoutError: no answer)."
    )
    here.later(order, 11)
    with pytest.raises(RunUnfinished) as asks:
        run.get(timeout=0.01)
    (item,) = run.inbox()
    assert str(asks.value) == (
        "run 'run-1' is needs_attention after 0.01 s, it waits: did mail happen?; a person is asked: unknown about mail "
        f"(happened or did-not-happen, item {item.item_id})."
    )


def test_a_run_in_process_that_does_not_end_says_what_it_waits_for_and_because_of_what(here: OneProcess) -> None:
    mail = mailing(here, effect="keyed", key_lifetime=timedelta(days=1))
    order = here.agent(mail, send=lambda _state: done(mail("kim")))
    with pytest.raises(RunUnfinished, match=r"a person is asked: unknown about mail") as asked:
        order.run_inline({})
    assert isinstance(asked.value.__cause__, TimeoutError)


def test_a_run_in_process_passes_over_its_waits(here: OneProcess) -> None:
    tries: list[int] = []

    def pay(_state: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("reset")
        return done(len(tries))

    order = here.agent()
    order.step(start=True, max_retries=5, retry_backoff=600)(pay)
    assert order.run_inline({}) == 3


def test_a_run_in_process_that_asks_a_person_says_what(here: OneProcess) -> None:
    charge = tool(effect="manual", timeout=SECONDS, name="charge")(object)
    order = here.agent(charge, pay=lambda _state: done(charge()))
    with pytest.raises(RunUnfinished, match=r"a person is asked: result about charge \(happened, item q_\w+\)\.$"):
        order.run_inline({})


def test_a_run_in_process_fails_because_of_what_its_step_raised(here: OneProcess) -> None:
    def pay(state: Any) -> Any:
        return done(state["cart"])

    order = here.agent(create=lambda _state: order.steps["pay"], pay=pay)
    with pytest.raises(RunFailed, match=r"failed: KeyError: 'cart'$") as failed:
        order.run_inline({})
    cause = failed.value.__cause__
    assert isinstance(cause, KeyError)
    assert "pay" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


def test_a_run_in_process_that_a_tool_failed_leads_to_what_the_tool_raised(here: OneProcess) -> None:
    @tool(effect="read")
    def price() -> None:
        raise Declined("no such item")

    order = here.agent(price, create=lambda _state: done(price()))
    with pytest.raises(RunFailed) as failed:
        order.run_inline({})
    assert isinstance(failed.value.__cause__, ToolFailed)
    assert isinstance(failed.value.__cause__.__cause__, Declined)


def test_a_run_in_process_that_its_step_ends_as_failed_has_no_other_cause(here: OneProcess) -> None:
    with pytest.raises(RunFailed, match=r"failed: no such cart$") as failed:
        here.agent(create=lambda _state: fail("no such cart")).run_inline({})
    assert failed.value.__cause__ is None


def test_a_queued_run_waits_for_a_worker_that_knows_its_step(here: OneProcess) -> None:
    run = here.agent(create=lambda _state: done()).enqueue({}, run_id="run-1")
    queue = here.runtime.bell.queue_for("order.create")
    assert run.waiting_for == f"a worker on queue {queue!r}"
    with pytest.raises(RunUnfinished) as unfinished:
        run.get(timeout=0)
    assert str(unfinished.value) == (
        f"run 'run-1' is queued, it waits for a worker on queue {queue!r}. Is one running (celery -A yourapp worker -Q {queue}), "
        "with the same agent_database_url and the same broker as this process, and does it import the module that declares step 'create' of agent 'order'?"
    )
