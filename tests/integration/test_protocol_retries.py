"""Retries of a step: durable, fenced, and with what the step ended on done again (I2, I5, I8, I13, I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, RunFailed, current_run, done, retries, tool
from agent_tasks.retries import SHORTEST_PAUSE, retry_after
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, Outage, duel

TIMEOUT = timedelta(seconds=10)
DELAY = 60.0


class CardDeclined(Exception):
    """The bank answered, and the answer is no."""


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def agent_of(here: Duel, *tools: Any, pay: Callable[[Any], Any], **options: Any) -> Agent:
    """An agent whose first step is retried after a minute."""
    order = Agent("order", app=here.app, tools=tools)
    order.step(name="pay", start=True, default_retry_delay=DELAY, **options)(pay)
    return order


def declining(here: Duel, times: int) -> Any:
    @tool(effect="manual", timeout=TIMEOUT, refused=(CardDeclined,))
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) <= times:
            raise CardDeclined("insufficient funds")
        return f"charged {cents}"

    return charge


def test_a_step_that_raises_is_tried_again_after_its_pause_and_repeats_no_effect(here: Duel) -> None:
    charge, tries = declining(here, 0), []

    def pay(state: Any) -> Any:
        tries.append((current_run.retries, current_run.number))
        state["charged"] = charge(100)
        if current_run.retries < 2:
            raise ConnectionError("the warehouse is away")
        return order.steps["ship"]

    order = agent_of(here, charge, pay=pay, max_retries=2)
    order.step(lambda state: done((state["charged"], current_run.retries)), name="ship")
    run = here.run(order)

    assert run.status is RunStatus.WAITING
    assert str(run.waiting_for).endswith("retry 1 of 2 of pay in 60 s: ConnectionError: the warehouse is away")
    here.later(order, DELAY / 2)
    assert len(tries) == 1
    here.later(order, DELAY / 2)
    assert str(run.waiting_for).endswith("retry 2 of 2 of pay in 60 s: ConnectionError: the warehouse is away")
    here.later(order, DELAY)

    assert run.get(timeout=0) == ("charged 100", 0)  # the step's commit forgot its retries
    assert (tries, here.requests) == ([(0, 1), (1, 2), (2, 3)], [100])
    assert here.row()["crashes"] == 0
    here.sound()


class Leaves(Exception):
    """Looked at for its date it would end the process."""

    @property
    def retry_after_seconds(self) -> float:
        raise SystemExit(3)


class Masked(Exception):
    """It does not say its class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("masked")


@pytest.mark.parametrize("kind", [Leaves, Masked])
def test_an_exception_of_a_step_that_raises_when_it_is_looked_at_fails_its_run(
    here: Duel, kind: type[Exception]
) -> None:
    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        raise kind("no")

    agent = agent_of(here, pay=pay, autoretry_for=(CardDeclined,), max_retries=2)
    run = here.run(agent)
    with pytest.raises(RunFailed, match="no"):
        run.get(timeout=0)
    assert here.requests == ["pay"]
    here.sound()


def test_a_step_without_retries_left_fails_its_run(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        raise ConnectionError(f"try {current_run.retries}")

    order = agent_of(here, pay=pay, max_retries=1)
    run = here.run(order)
    here.later(order, DELAY)

    with pytest.raises(RunFailed, match="ConnectionError: try 1"):
        run.get(timeout=0)
    assert here.row()["retries"] == 1
    here.sound()


def test_an_exception_that_is_not_named_fails_the_run_at_once(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        raise ValueError("wrong")

    run = here.run(agent_of(here, pay=pay, autoretry_for=(ConnectionError,)))
    assert (run.status, here.row()["retries"]) == (RunStatus.FAILED, 0)


def test_a_step_that_returns_no_outcome_is_not_tried_again(here: Duel) -> None:
    run = here.run(agent_of(here, pay=lambda _state: "paid", max_retries=5))
    assert (run.status, here.row()["retries"]) == (RunStatus.FAILED, 0)


# -- what is done again -----------------------------------------------------------------------------------------------------


def test_the_call_that_a_step_ended_on_is_made_again(here: Duel) -> None:
    charge = declining(here, 2)
    order = agent_of(here, charge, pay=lambda _state: done(charge(100)), max_retries=5)
    run = here.run(order)

    assert here.operation().status is OperationStatus.PENDING
    here.later(order, DELAY)
    assert here.operation().status is OperationStatus.PENDING
    here.later(order, DELAY)

    assert (run.get(timeout=0), here.requests, here.operation().attempts) == ("charged 100", [100] * 3, 3)
    said = [(fact["what"], fact["attempt"], fact["said"]) for fact in here.operation().evidence]
    declined = f"{CardDeclined.__module__}.{CardDeclined.__qualname__}: insufficient funds"
    assert said == [("failed", 1, declined), ("failed", 2, declined)]
    here.sound()


def test_the_last_failure_stays_as_it_is_recorded(here: Duel) -> None:
    charge = declining(here, 9)
    order = agent_of(here, charge, pay=lambda _state: done(charge(100)), max_retries=1)
    run = here.run(order)
    here.later(order, DELAY)

    assert (run.status, here.operation().status) == (RunStatus.FAILED, OperationStatus.FAILED)
    assert here.requests == [100, 100]
    here.sound()


def test_a_failure_that_the_step_went_on_after_is_final(here: Duel) -> None:
    """A step that paid by another card after the first was declined must not charge the first one, too (M19)."""
    charge = declining(here, 1)

    def pay(_state: Any) -> Any:
        try:
            charge(1)
        except CardDeclined:
            paid = charge(2)
        if current_run.retries < 1:
            raise ConnectionError
        return done(paid)

    order = agent_of(here, charge, pay=pay, max_retries=5)
    run = here.run(order)
    here.later(order, DELAY)

    assert (run.get(timeout=0), here.requests) == ("charged 2", [1, 2])
    assert [operation.status for operation in here.operations()] == [OperationStatus.FAILED, OperationStatus.SUCCEEDED]


def test_a_read_that_failed_is_bought_again(here: Duel) -> None:
    @tool(effect="read")
    def price() -> int:
        here.requests.append("price")
        if len(here.requests) == 1:
            raise ConnectionError("away")
        return 100

    order = agent_of(here, price, pay=lambda _state: done(price()), autoretry_for=(ConnectionError,))
    run = here.run(order)
    here.later(order, DELAY)
    assert (run.get(timeout=0), here.requests) == (100, ["price", "price"])


def test_a_transactional_tool_that_failed_is_done_again(here: Duel) -> None:
    @tool(effect="transactional")
    def book() -> str:
        here.requests.append("book")
        if len(here.requests) == 1:
            raise ValueError("not yet")
        return "booked"

    order = agent_of(here, book, pay=lambda _state: done(book()), max_retries=3)
    run = here.run(order)
    here.later(order, DELAY)
    assert (run.get(timeout=0), here.requests) == ("booked", ["book", "book"])


def test_an_old_copy_of_a_repeatable_call_is_waited_for_before_a_retry_makes_it_again(here: Duel) -> None:
    @tool(effect="repeatable", why="the same status twice is the same as once", timeout=timedelta(seconds=200))
    def set_status() -> str:
        here.requests.append("set")
        if len(here.requests) == 1:
            raise ConnectionError("reset by peer")
        return "set"

    order = agent_of(here, set_status, pay=lambda _state: done(set_status()), max_retries=3)
    run = here.run(order)
    here.later(order, DELAY)
    assert (run.status, here.requests, here.row()["retries"]) == (RunStatus.WAITING, ["set"], 0)
    here.later(order, 200 - DELAY)  # only now the step sees the failure
    assert (run.status, here.requests, here.row()["retries"]) == (RunStatus.WAITING, ["set"], 1)
    here.later(order, DELAY + 1)
    assert (run.get(timeout=0), here.requests, here.row()["retries"]) == ("set", ["set", "set"], 1)


# -- what comes first ---------------------------------------------------------------------------------------------------------


def test_a_doubt_is_settled_before_a_retry_is_spent(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge() -> str:
        raise MemoryError

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge()
        raise ConnectionError("away")

    order = agent_of(here, charge, pay=pay, max_retries=1)
    here.run(order)
    assert here.row()["retries"] == 0
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), here.row()["retries"]) == (["unknown"], 0)

    here.reply(order, "did-not-happen")
    assert (here.row()["status"], here.row()["retries"]) == (RunStatus.WAITING, 1)
    here.sound()


def test_an_orphan_is_asked_about_before_a_retry_is_spent(here: Duel) -> None:
    charge = declining(here, 0)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge(100)
            raise MemoryError
        raise ConnectionError("away")

    order = agent_of(here, charge, pay=pay, max_retries=1)
    run = here.run(order)
    assert (run.status, here.questions(), here.row()["retries"]) == (RunStatus.NEEDS_ATTENTION, ["orphan"], 0)
    here.sound()


def test_a_crash_is_not_a_retry_and_a_retry_is_not_a_crash(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        if current_run.number % 2:
            raise ConnectionError("away")
        if current_run.number < 6:
            raise MemoryError
        return done((current_run.number, current_run.retries))

    order = agent_of(here, pay=pay, max_retries=3)
    run = here.run(order)
    here.drive(order)
    assert run.get(timeout=0) == (6, 3)
    assert here.row()["crashes"] == 2


# -- who may write it -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_retry_whose_answer_was_lost_is_spent_once(here: Duel, moment: str) -> None:
    charge = declining(here, 1)
    order = agent_of(here, charge, pay=lambda _state: done(charge(100)), max_retries=5)
    outage = Outage("retry", moment)
    here.runtime.boundary.observer = outage
    run = here.run(order)

    assert (run.status, here.row()["retries"], outage.hits) == (RunStatus.WAITING, 1, 1)
    assert len(here.operation().evidence) == 1
    here.drive(order)
    assert (run.get(timeout=0), here.requests) == ("charged 100", [100, 100])
    here.sound()


def test_a_retry_of_a_worker_that_lost_its_lease_changes_nothing(here: Duel) -> None:
    charge = declining(here, 9)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            here.meanwhile(order)  # the rival is declined, and waits for its own retry
        return done(charge(100))

    order = agent_of(here, charge, pay=pay, max_retries=5)
    here.run(order)

    assert (here.row()["retries"], here.row()["fence"], here.requests) == (1, 2, [100])
    assert (here.operation().status, here.operation().attempts) == (OperationStatus.PENDING, 1)
    here.sound()


def test_a_retry_waits_through_the_death_of_every_worker_and_an_emptied_broker(here: Duel) -> None:
    order = agent_of(here, pay=lambda _state: done() if current_run.retries else 1 / 0, max_retries=1)
    run = here.run(order)
    here.runtime.bell.rings.clear()  # type: ignore[attr-defined]
    here.later(order, DELAY)  # the rival has never heard of the run
    assert run.status is RunStatus.SUCCEEDED


# -- an exception that says when to come again ----------------------------------------------------------------------------------


class SlowDown(Exception):
    """The vendor refuses, and says for how long."""

    def __init__(self, seconds: Any) -> None:
        super().__init__("slow down")
        self.retry_after_seconds = seconds


def test_a_step_that_says_when_to_come_again_waits_so_long_and_spends_no_retry(here: Duel) -> None:
    tries = []

    def pay(_state: Any) -> Any:
        tries.append(current_run.retries)
        if len(tries) <= 4:
            raise SlowDown(90)
        return done("paid")

    order = Agent("order", app=here.app)
    order.step(pay, name="pay")  # not one retry is allowed
    run = here.run(order)
    assert str(run.waiting_for).endswith("to try pay again in 90 s, as it was told to: SlowDown: slow down")
    for number in range(4):
        here.later(order, 40)
        assert len(tries) == number + 1
        here.later(order, 50)

    assert (run.get(timeout=0), tries) == ("paid", [0] * 5)
    here.sound()


def slow_tool(here: Duel, effect: str, times: int, seconds: Any = 90, **declared: Any) -> Any:
    @tool(effect=effect, refused=(SlowDown,), **declared, bind=False)
    def charge() -> str:
        here.requests.append("charge")
        if len(here.requests) <= times:
            raise SlowDown(seconds)
        return "charged"

    if effect == "probed":
        charge.probe(lambda _operation: pytest.fail("nothing is in doubt"))
    return charge


EVERY_EFFECT: dict[str, dict[str, Any]] = {
    "read": {},
    "repeatable": {"why": "twice is the same as once"},
    "transactional": {},
    "keyed": {"key_lifetime": timedelta(days=1)},
    "probed": {"timeout": TIMEOUT},
    "manual": {"timeout": TIMEOUT},
}


@pytest.mark.parametrize("effect", EVERY_EFFECT)
def test_a_call_that_was_refused_for_a_while_is_made_again_after_it_and_the_step_never_sees_it(
    here: Duel, effect: str
) -> None:
    charge = slow_tool(here, effect, 2, **EVERY_EFFECT[effect])

    def pay(_state: Any) -> Any:
        try:
            return done(charge())
        except Exception:  # noqa: BLE001
            return done("the step saw it")

    order = here.agent(charge, pay=pay)
    run = here.run(order)
    assert str(run.waiting_for).endswith("to call charge again in 90 s, as it was told to (SlowDown: slow down)")
    here.sound()
    here.later(order, 40)
    assert here.requests == ["charge"]
    here.later(order, 50)
    here.later(order, 90)

    assert (run.get(timeout=0), here.requests, here.row()["retries"]) == ("charged", ["charge"] * 3, 0)
    here.sound()


@pytest.mark.parametrize("effect", ["repeatable", "keyed", "probed", "manual"])
def test_a_call_that_was_refused_for_a_while_is_not_made_sooner_by_a_crash_that_forgot_the_wait(
    here: Duel, effect: str
) -> None:
    charge = slow_tool(here, effect, 1, **EVERY_EFFECT[effect])
    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    here.set_run(status="queued", waiting_for=None, due_at=0)  # as after a crash before the wait was written
    here.later(order, 0)

    assert run.status is RunStatus.WAITING
    assert str(run.waiting_for).endswith("Z: until charge may be called again")
    assert here.requests == ["charge"]
    here.later(order, 90)
    assert (run.get(timeout=0), here.requests) == ("charged", ["charge", "charge"])


def test_a_keyed_request_in_doubt_is_not_sent_again_before_the_vendor_said(here: Duel) -> None:
    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=False)
    def charge() -> str:
        here.requests.append("charge")
        if len(here.requests) == 1:
            raise SlowDown(90)  # not declared as refused: it may have happened
        return "charged"

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    assert here.operation().status is OperationStatus.UNKNOWN
    here.set_run(status="queued", waiting_for=None, due_at=0)
    here.later(order, 40)
    assert (run.status, here.requests) == (RunStatus.WAITING, ["charge"])
    here.later(order, 50)
    assert (run.get(timeout=0), here.requests) == ("charged", ["charge", "charge"])


def test_a_pause_beyond_the_life_of_its_key_sends_nothing_again(here: Duel) -> None:
    @tool(effect="keyed", key_lifetime=timedelta(hours=1), timeout=TIMEOUT, bind=False)
    def charge() -> str:
        here.requests.append("charge")
        raise SlowDown(7200)

    order = here.agent(charge, pay=lambda _state: done(charge()))
    here.run(order)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), here.requests) == (["unknown"], ["charge"])


def test_a_doubt_of_a_tool_without_a_key_waits_for_its_horizon_whatever_the_vendor_says(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge() -> str:
        raise SlowDown(0)

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    assert (run.status, here.operation().status) == (RunStatus.WAITING, OperationStatus.UNKNOWN)
    here.later(order, TIMEOUT.total_seconds())
    assert here.questions() == ["unknown"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "90", True, [90]])
def test_a_date_that_is_none_is_ignored_with_a_warning(
    here: Duel, seconds: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = here.run(agent_of(here, pay=lambda _state: (_ for _ in ()).throw(SlowDown(seconds)), max_retries=0))
    assert run.status is RunStatus.FAILED
    said = "retry_after_seconds of SlowDown must be a number of seconds of 0 or more, got"
    assert [message for message in caplog.messages if message.startswith(said)]


@pytest.mark.parametrize(("seconds", "waited"), [(10**400, 2678400.0), (1e12, 2678400.0), (1.5, 1.5)])
def test_a_pause_is_cut_at_a_month(seconds: float, waited: float) -> None:
    assert retry_after(SlowDown(seconds)) == waited


NO_PAUSE = [0, 0.0, -0.0, 1e-9, 5e-324, 0.5]


@pytest.mark.parametrize("seconds", NO_PAUSE)
def test_no_pause_is_shorter_than_the_shortest(seconds: float) -> None:
    assert retry_after(SlowDown(seconds)) == SHORTEST_PAUSE.total_seconds() == 1.0


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> float:
    """A shortest pause that no slow machine lets pass by itself; in seconds."""
    monkeypatch.setattr(retries, "SHORTEST_PAUSE", timedelta(minutes=1))
    return 60.0


@pytest.mark.parametrize("seconds", [0, 1e-9])
@pytest.mark.parametrize("effect", EVERY_EFFECT)
def test_a_vendor_who_always_says_at_once_is_not_called_without_a_pause(
    here: Duel, effect: str, seconds: float, minute: float
) -> None:
    charge = slow_tool(here, effect, 1000, seconds, **EVERY_EFFECT[effect])
    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    for calls in (1, 2, 3):
        for _ in range(3):  # as many sweepers as a fleet has
            here.later(order, 0)
        assert (run.status, len(here.requests)) == (RunStatus.WAITING, calls)
        here.later(order, minute)
    here.sound()


def test_a_step_that_always_says_at_once_is_not_run_without_a_pause(here: Duel, minute: float) -> None:
    tries = []

    def pay(_state: Any) -> Any:
        tries.append(1)
        raise SlowDown(0)

    order = agent_of(here, pay=pay, max_retries=0)
    run = here.run(order)
    for _ in range(3):
        here.later(order, 0)
    assert (run.status, len(tries)) == (RunStatus.WAITING, 1)
    here.later(order, minute)
    assert len(tries) == 2
