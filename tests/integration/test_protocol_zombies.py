"""An attempt that lost its lease and goes on: it changes no state, and what it knows is not lost (I2, I13, I14)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from agent_tasks import NotHappened, Operation, StepSuspended, Tool, current_run, done, tool
from agent_tasks.errors import LeaseLost
from agent_tasks.inline import answer_all
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel, in_thread
from tests.waiting import wait_until

HORIZON = 11.0

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


class Declined(Exception):
    """The vendor says: this request did not happen."""


def charge_of(here: Duel, effect: str, first: Callable[[], None], *, name: str = "charge") -> Tool[..., Any]:
    """Return a tool whose first request runs `first` before it succeeds; a probe would say that nothing happened."""
    promised: dict[str, Any] = {"timeout": timedelta(seconds=10)}
    if effect == "keyed":
        promised["key_lifetime"] = timedelta(hours=1)

    @tool(effect=effect, refused=(Declined,), name=name, **promised, bind=False)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        number = len(here.requests)
        if number == 1:
            first()
        return f"charge {number}"

    if effect == "probed":

        @charge.probe
        def look(_operation: Operation) -> NotHappened:
            return NotHappened()

    return charge


# -- what a zombie brings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["manual", "probed"])
def test_a_late_success_settles_the_doubt_and_requeues_the_waiting_run(here: Duel, effect: str) -> None:
    charge = charge_of(here, effect, lambda: here.meanwhile(order))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    run = here.run(order)

    assert run.get(timeout=0) == "charge 1"
    assert here.requests == [100]
    here.sound()


def test_a_late_success_answers_the_question_of_a_parked_run(here: Duel) -> None:
    charge = charge_of(here, "manual", lambda: here.meanwhile(order, seconds=HORIZON))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    run = here.run(order)

    assert (run.get(timeout=0), here.requests, run.inbox()) == ("charge 1", [100], [])


def test_a_late_refusal_settles_the_doubt_as_a_failure(here: Duel) -> None:
    def refuse() -> None:
        here.meanwhile(order, seconds=HORIZON)
        raise Declined("no money")

    charge = charge_of(here, "manual", refuse)

    def pay(_state: Any) -> Any:
        try:
            return done(charge(100))
        except Declined as declined:
            return done(f"declined: {declined}")

    order = here.agent(charge, pay=pay)
    assert here.run(order).get(timeout=0) == "declined: no money"
    assert here.requests == [100]
    here.sound()


def test_a_late_success_counts_after_a_person_said_no_while_nothing_was_sent_again(here: Duel) -> None:
    def first() -> None:
        here.meanwhile(order, seconds=HORIZON)
        run = order.run("run-1")
        (item,) = run.inbox()
        assert run.resolve(item.item_id, "did-not-happen", who="kim", why="not in the list")
        assert here.operation().status is OperationStatus.PENDING

    charge = charge_of(here, "manual", first)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    run = here.run(order)

    assert (run.get(timeout=0), here.requests) == ("charge 1", [100])
    here.sound()


@pytest.mark.parametrize("effect", ["manual", "probed"])
def test_a_late_success_of_what_was_sent_again_is_shown_to_a_person(here: Duel, effect: str) -> None:
    reply = "did-not-happen" if effect == "manual" else None
    charge = charge_of(here, effect, lambda: here.meanwhile(order, seconds=HORIZON, reply=reply))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    run = here.run(order)

    assert (run.get(timeout=0), here.requests) == ("charge 2", [100, 100])
    assert here.questions() == ["doubled"]
    assert "late succeeded" in [fact["what"] for fact in here.operation().evidence]
    here.sound()


def test_two_successes_under_one_living_key_are_one_effect(here: Duel) -> None:
    charge = charge_of(here, "keyed", lambda: here.meanwhile(order))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    assert here.run(order).get(timeout=0) == "charge 2"
    assert here.questions() == []


def test_a_late_success_is_shown_when_the_key_had_died_before_the_next_request(here: Duel) -> None:
    def first() -> None:
        here.runtime.clock.advance(3600)
        here.meanwhile(order, reply="did-not-happen")

    charge = charge_of(here, "keyed", first)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    assert here.run(order).get(timeout=0) == "charge 2"
    assert here.questions() == ["doubled"]


def test_a_late_success_of_an_operation_that_was_dropped_is_shown_to_a_person(here: Duel) -> None:
    charge = charge_of(here, "keyed", lambda: here.meanwhile(order, seconds=HORIZON, reply="did-not-happen"))

    def pay(_state: Any) -> Any:
        return done(charge(100) if current_run.number == 1 else "for free")

    order = here.agent(charge, pay=pay)
    run = here.run(order)

    assert run.get(timeout=0) == "for free"
    assert here.operation().status is OperationStatus.DROPPED
    assert here.questions() == ["doubled"]


# -- what comes in while the next attempt works ----------------------------------------------------------------------------


class Freeze:
    """Keeps the first attempt in its body until a later one lets it go, and waits there for its outcome."""

    def __init__(self, here: Duel) -> None:
        self.here, self.go, self.rival = here, threading.Event(), threading.Thread()

    def __call__(self, work: Callable[[], None]) -> None:
        self.rival = threading.Thread(target=work)
        self.rival.start()
        assert self.go.wait(30)

    def let_go(self, until: OperationStatus = OperationStatus.SUCCEEDED) -> None:
        self.go.set()
        wait_until(lambda: self.here.operations()[0].status is until, "the zombie's outcome is recorded")


def test_a_wait_is_not_written_over_an_outcome_that_came_in_since_the_claim(here: Duel) -> None:
    freeze = Freeze(here)
    charge = charge_of(here, "manual", lambda: freeze(lambda: here._meanwhile(order, 0, None)))

    def pay(_state: Any) -> Any:
        if current_run.number == 2:
            freeze.let_go()
        return done(charge(100))

    order = here.agent(charge, pay=pay)
    run = here.run(order)
    freeze.rival.join()

    assert (run.get(timeout=0), here.requests) == ("charge 1", [100])


@pytest.mark.parametrize("then", ["ends", "charges"])
def test_an_effect_that_turns_out_to_have_happened_is_no_silent_orphan(here: Duel, then: str) -> None:
    """Attempt 4 was told that the first charge did not happen, and takes another way; then it did happen (I13)."""
    freeze = Freeze(here)
    charge = charge_of(
        here, "manual", lambda: freeze(lambda: here._meanwhile(order, seconds=HORIZON, reply="did-not-happen"))
    )
    refunds: list[int] = []

    @tool(effect="manual", timeout=timedelta(seconds=10))
    def invoice(cents: int) -> str:
        refunds.append(cents)
        return "sent"

    def pay(_state: Any) -> Any:
        if current_run.number < 4:  # zombie, wait for the horizon, question
            return done(charge(100))
        if not freeze.go.is_set():
            freeze.let_go()
        return done(invoice(100) if then == "charges" else "for free")

    order = here.agent(charge, invoice, pay=pay)
    run = here.run(order)
    freeze.rival.join()

    assert run.status is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["orphan"]
    assert refunds == []
    here.sound()
    here.reply(order, "keep")
    assert run.get(timeout=0) == ("sent" if then == "charges" else "for free")
    here.sound()


# -- what a zombie cannot do ------------------------------------------------------------------------------------------------


def test_a_zombie_begins_no_further_call_and_commits_nothing(here: Duel) -> None:
    seen: list[BaseException] = []
    sent: list[str] = []
    charge = charge_of(here, "keyed", lambda: here.meanwhile(order))

    @tool(effect="manual", timeout=timedelta(seconds=10))
    def mail(to: str) -> None:
        sent.append(to)

    def pay(state: Any) -> Any:
        number = current_run.number
        try:
            state["paid"] = charge(100)
        except StepSuspended as suspended:
            seen.append(suspended)
            try:
                mail("the zombie")
            except StepSuspended as again:
                seen.append(again)
        return done(number)

    order = here.agent(charge, mail, pay=pay)
    run = here.run(order)

    assert run.get(timeout=0) == 2
    assert sent == []
    assert [type(each) for each in seen] == [LeaseLost, LeaseLost]
    state = run.state()
    assert state is not None
    assert (state.seq, state.agent_state) == (1, {"paid": "charge 2"})
    here.sound()


def test_the_intent_of_a_zombie_that_was_overtaken_between_two_calls_is_not_written(here: Duel) -> None:
    charge = charge_of(here, "manual", lambda: None)

    def pay(_state: Any) -> Any:
        number = current_run.number
        if number == 1:
            here.meanwhile(order)
            charge(1)
        return done(number)

    order = here.agent(charge, pay=pay)
    assert here.run(order).get(timeout=0) == 2
    assert (here.requests, here.operations()) == ([], [])


def test_a_zombie_that_ends_its_step_changes_no_state(here: Duel) -> None:
    def pay(state: Any) -> Any:
        number = state["number"] = current_run.number
        if number == 1:
            here.meanwhile(order)
        return order.steps["ship"] if number == 2 else done("the zombie's")

    order = here.agent(pay=pay, ship=lambda state: done(state["number"]))
    run = here.run(order)

    assert run.get(timeout=0) == 2
    here.sound()


def test_a_zombie_that_suspends_leaves_the_run_as_its_owner_left_it(here: Duel) -> None:
    def time_out() -> None:
        here.meanwhile(order)
        raise TimeoutError

    charge = charge_of(here, "keyed", time_out)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))

    assert here.run(order).get(timeout=0) == "charge 2"
    assert here.operation().status is OperationStatus.SUCCEEDED


def test_a_read_of_a_zombie_is_not_recorded(here: Duel) -> None:
    @tool(effect="read")
    def price(item: str) -> int:
        here.requests.append(item)
        if len(here.requests) == 1:
            here.meanwhile(order)
        return len(here.requests)

    order = here.agent(price, pay=lambda _state: done(price("tea")))
    assert here.run(order).get(timeout=0) == 2
    assert here.operation().result == 2


def test_a_transactional_tool_whose_lease_is_lost_in_its_body_is_rolled_back(here: Duel) -> None:
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(text("CREATE TABLE effects (what VARCHAR(40))"))

    @tool(effect="transactional", bind=True)
    def write(operation: Operation, what: str) -> str:
        assert operation.connection is not None
        operation.connection.execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})
        return what

    def pay(_state: Any) -> Any:
        number = current_run.number
        if number == 1:
            here.meanwhile(order)
        return done(write(f"attempt {number}"))

    order = here.agent(write, pay=pay)
    assert here.run(order).get(timeout=0) == "attempt 2"
    with here.runtime.engine.connect() as connection:
        assert [row.what for row in connection.execute(text("SELECT what FROM effects"))] == ["attempt 2"]


def test_an_expired_lease_that_nobody_took_is_still_its_owners(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        here.runtime.clock.advance(3600)
        return done("late, and first")

    order = here.agent(pay=pay)
    assert here.run(order).get(timeout=0) == "late, and first"


def test_the_sweeper_takes_an_expired_lease_and_its_owner_then_changes_nothing(here: Duel) -> None:
    here.sweeper.sweep()  # contact begins

    def pay(_state: Any) -> Any:
        number = current_run.number
        if number == 1:
            in_thread(lambda: here.later(order, here.runtime.settings.lease_seconds + 1))
        return done(number)

    order = here.agent(pay=pay)
    run = here.run(order)
    assert run.get(timeout=0) == 2
    answer_all(here.rival, order)
    assert here.row()["fence"] == 2
