"""Which operation a call meets: other arguments, other paths, other names, calls in calls (I4, I5, I13)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Happened, NotHappened, Operation, RunFailed, Tool, current_run, done, tool
from agent_tasks.boundary import Point
from agent_tasks.inline import answer_all
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def manual(here: Duel, name: str, **options: Any) -> Tool[..., Any]:
    @tool(effect="manual", timeout=TIMEOUT, name=name, **options)
    def act(what: Any = None) -> str:
        here.requests.append((name, what))
        return f"{name} {what}"

    return act


def crash_once() -> None:
    if current_run.number == 1:
        raise MemoryError


# -- other arguments -----------------------------------------------------------------------------------------------------


def test_a_decision_about_some_arguments_says_nothing_about_others(here: Duel) -> None:
    charge = manual(here, "charge")

    def pay(_state: Any) -> Any:
        charged = charge(current_run.number)
        crash_once()
        return done(charged)

    order = here.agent(charge, pay=pay)
    here.run(order)
    here.reply(order, "new")  # about attempt 2, which asked with 2; attempt 3 asks with 3
    assert (here.questions(), here.requests) == (["conflict"], [("charge", 1)])
    here.sound()


def by_attempt(here: Duel) -> Any:
    """Charge 1 in the first attempt and 2 in every later one."""
    charge = manual(here, "charge")

    def pay(_state: Any) -> Any:
        charged = charge(min(current_run.number, 2))
        crash_once()
        return done(charged)

    order = here.agent(charge, pay=pay)
    here.run(order)
    assert (here.questions(), here.requests) == (["conflict"], [("charge", 1)])
    return order


@pytest.mark.parametrize(
    ("reply", "output", "sent"),
    [("recorded", "charge 1", [1]), ("new", "charge 2", [1, 2])],
)
def test_a_person_decides_what_other_arguments_mean(here: Duel, reply: str, output: str, sent: list[int]) -> None:
    order = by_attempt(here)
    here.reply(order, reply)
    assert order.run("run-1").get(timeout=0) == output
    assert [what for _, what in here.requests] == sent
    here.sound()


def test_a_new_operation_is_met_again_by_the_attempt_after_a_crash(here: Duel) -> None:
    charge = manual(here, "charge")

    def pay(_state: Any) -> Any:
        charged = charge(min(current_run.number, 2))
        if current_run.number in (1, 3):
            raise MemoryError
        return done(charged)

    order = here.agent(charge, pay=pay)
    here.run(order)
    here.reply(order, "new")
    assert order.run("run-1").get(timeout=0) == "charge 2"
    assert [what for _, what in here.requests] == [1, 2]
    here.sound()


def test_other_arguments_can_end_the_run(here: Duel) -> None:
    order = by_attempt(here)
    here.reply(order, "abort")
    with pytest.raises(RunFailed, match="abort"):
        order.run("run-1").get(timeout=0)
    here.sound()


def test_only_the_arguments_that_identity_names_make_a_conflict(here: Duel) -> None:
    sent: list[tuple[int, str]] = []

    @tool(effect="manual", timeout=TIMEOUT, identity=("cents",))
    def charge(cents: int, note: str) -> str:
        sent.append((cents, note))
        return note

    def pay(_state: Any) -> Any:
        note = charge(100, note=f"attempt {current_run.number}")
        crash_once()
        return done(note)

    assert here.run(here.agent(charge, pay=pay)).get(timeout=0) == "attempt 1"
    assert sent == [(100, "attempt 1")]


def test_a_read_with_other_arguments_runs_again_and_one_with_the_same_is_not_bought_again(here: Duel) -> None:
    @tool(effect="read")
    def price(item: str) -> str:
        here.requests.append(item)
        return item

    def pay(_state: Any) -> Any:
        found = [price("tea"), price(f"cup {current_run.number}")]
        crash_once()
        return done(found)

    assert here.run(here.agent(price, pay=pay)).get(timeout=0) == ["tea", "cup 2"]
    assert here.requests == ["tea", "cup 1", "cup 2"]


def test_arguments_that_cannot_be_stored_send_nothing_and_shift_no_later_call(here: Duel) -> None:
    charge = manual(here, "charge")
    refused: list[str] = []

    def pay(_state: Any) -> Any:
        for bad in (object(), {"lock": object()}, "\ud800"):
            try:
                charge(bad)
            except Exception as error:  # noqa: BLE001
                refused.append(type(error).__name__)
        charged = charge(100)
        crash_once()
        return done(charged)

    assert here.run(here.agent(charge, pay=pay)).get(timeout=0) == "charge 100"
    assert set(refused) == {"ArgumentsNotStorable"}
    assert here.requests == [("charge", 100)]


@pytest.mark.parametrize("key", ["", "k" * 201, "a\0b", None], ids=["empty", "long", "NUL", "none"])
def test_a_key_that_no_database_holds_is_refused_before_anything_is_sent(here: Duel, key: Any) -> None:
    charge = manual(here, "charge", key=lambda what: key)
    run = here.run(here.agent(charge, pay=lambda _state: done(charge(1))))
    with pytest.raises(RunFailed, match="key= of tool 'charge'"):
        run.get(timeout=0)
    assert here.requests == []


# -- other paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", ["keep", "ignore"])
@pytest.mark.parametrize("then", ["another tool", "nothing", "an exception", "the same tool later"])
def test_an_effect_of_a_path_that_is_not_taken_again_is_shown_before_anything_new_happens(
    here: Duel, then: str, reply: str
) -> None:
    charge, invoice = manual(here, "charge"), manual(here, "invoice")

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge(100)
            crash_once()
        if then == "another tool":
            return done(invoice(100))
        if then == "an exception":
            raise ValueError("no way")
        if then == "the same tool later":
            return done((invoice(1), charge(100)))
        return done("nothing")

    order = here.agent(charge, invoice, pay=pay)
    run = here.run(order)

    assert (run.status, here.questions()) == (RunStatus.NEEDS_ATTENTION, ["orphan"])
    assert here.requests == [("charge", 100)]
    here.sound()
    here.reply(order, reply)
    assert run.status is (RunStatus.FAILED if then == "an exception" else RunStatus.SUCCEEDED)
    assert here.requests.count(("charge", 100)) == 1
    here.sound()


def test_a_renamed_tool_meets_its_operation_by_its_declared_name(here: Duel) -> None:
    old = manual(here, "charge")

    @tool(effect="manual", timeout=TIMEOUT, name="charge")
    def charge_card(what: Any = None) -> str:
        here.requests.append(("charge_card", what))
        return "again"

    def pay(_state: Any) -> Any:
        if current_run.number == 2:  # the next release
            order.tools["charge"] = charge_card
        charged = order.tools["charge"](100)
        crash_once()
        return done(charged)

    order = here.agent(old, pay=pay)
    assert here.run(order).get(timeout=0) == "charge 100"
    assert here.requests == [("charge", 100)]


def test_a_renamed_tool_without_that_is_shown_before_it_acts_again(here: Duel) -> None:
    old, new = manual(here, "charge"), manual(here, "charge_card")

    def pay(_state: Any) -> Any:
        charged = (old if current_run.number == 1 else new)(100)
        crash_once()
        return done(charged)

    here.run(here.agent(old, new, pay=pay))
    assert (here.questions(), here.requests) == (["orphan"], [("charge", 100)])


def test_a_call_with_a_key_of_its_own_is_one_operation_in_all_steps(here: Duel) -> None:
    charge = manual(here, "charge", key=lambda what: f"order-{what}")

    def pay(state: Any) -> Any:
        state["first"] = charge(7)
        crash_once()
        return order.steps["again"]

    def again(state: Any) -> Any:
        second = charge(7)
        crash_once()
        return done((state["first"], second, charge(8)))

    order = here.agent(charge, pay=pay, again=again)
    assert here.run(order).get(timeout=0) == ("charge 7", "charge 7", "charge 8")
    assert here.requests == [("charge", 7), ("charge", 8)]


def test_a_keyed_call_that_stands_at_an_earlier_step_is_settled_before_a_later_one_ends(here: Duel) -> None:
    """Step 1 got no charge and went on; step 2 sent it again and lost its worker; nobody asks any more (I14)."""
    answers = [NotHappened(), Happened("charged")]

    @tool(effect="probed", timeout=TIMEOUT, key=lambda: "k", bind=False)
    def charge() -> str:
        here.requests.append("charge")
        if current_run.seq == 2:
            here.meanwhile(order)
        raise TimeoutError

    @charge.probe
    def look(_operation: Operation) -> Any:
        return answers.pop(0)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge()
        return order.steps["again"]

    def again(_state: Any) -> Any:
        if current_run.number == 1:
            charge()
        return done("without it")

    order = here.agent(charge, pay=pay, again=again)
    run = here.run(order)
    here.drive(order)
    assert run.get(timeout=0) == "without it"
    assert (here.operation().seq, here.operation().status) == (1, OperationStatus.SUCCEEDED)
    assert here.requests == ["charge", "charge"]
    here.sound()


# -- calls in calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer_effect", ["read", "keyed", "repeatable"])
def test_a_call_inside_a_body_has_an_identity_of_its_own(here: Duel, outer_effect: str) -> None:
    charge = manual(here, "charge")
    options: dict[str, Any] = {}
    if outer_effect == "keyed":
        options = {"key_lifetime": TIMEOUT}
    if outer_effect == "repeatable":
        options = {"why": "sets a value"}

    @tool(effect=outer_effect, **options, bind=False)
    def outer() -> str:
        return str(charge(100))

    def pay(_state: Any) -> Any:
        both = outer(), charge(100)
        crash_once()
        return done(both)

    assert here.run(here.agent(charge, outer, pay=pay)).get(timeout=0) == ("charge 100", "charge 100")
    assert here.requests == [("charge", 100), ("charge", 100)]
    here.sound()


def test_a_body_that_runs_again_meets_the_calls_that_it_made_before(here: Duel) -> None:
    charge = manual(here, "charge")

    @tool(effect="repeatable", why="sets a value")
    def outer() -> str:
        charged = charge(1), charge(2)
        if current_run.number == 1:
            raise MemoryError
        return str(charged)

    run = here.run(here.agent(charge, outer, pay=lambda _state: done(outer())))
    assert run.get(timeout=0) == "('charge 1', 'charge 2')"
    assert here.requests == [("charge", 1), ("charge", 2)]


def test_a_body_that_runs_again_on_another_path_shows_the_call_that_it_left(here: Duel) -> None:
    charge, invoice = manual(here, "charge"), manual(here, "invoice")

    @tool(effect="repeatable", why="sets a value")
    def outer() -> str:
        if current_run.number == 1:
            charge(1)
            raise MemoryError
        return "without it"

    order = here.agent(charge, invoice, outer, pay=lambda _state: done((outer(), invoice(1))))
    run = here.run(order)
    assert (run.status, here.questions(), here.requests) == (RunStatus.NEEDS_ATTENTION, ["orphan"], [("charge", 1)])


def test_a_run_inside_a_body_has_nothing_to_do_with_the_one_around_it(here: Duel) -> None:
    charge = manual(here, "charge")
    inner = here.agent(charge, name="inner", pay=lambda _state: done(charge("inner")))

    @tool(effect="repeatable", why="sets a value")
    def delegate() -> str:
        inner.enqueue({}, run_id="inner-1")
        answer_all(here.runtime, inner)
        return str(inner.run("inner-1").get(timeout=0))

    outer = here.agent(charge, delegate, name="outer", pay=lambda _state: done((delegate(), charge("outer"))))
    assert here.run(outer).get(timeout=0) == ("charge inner", "charge outer")
    assert [each.row["parent_operation"] for each in inner.run("inner-1").operations()] == [None]
    here.sound()


# -- a time-out that nothing fits into -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"effect": "manual"}, {"effect": "keyed", "key_lifetime": timedelta(hours=24), "bind": False}]
)
def test_a_call_whose_timeout_passes_before_its_body_begins_is_given_up_after_some_tries(
    here: Duel, options: dict[str, Any]
) -> None:
    @tool(timeout=timedelta(microseconds=1), **options)
    def charge() -> None:
        here.requests.append("sent")

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    assert (run.status, "before its body began" in str(run.waiting_for)) == (RunStatus.WAITING, True)
    for _ in range(MAX_SENDS - 1):
        assert run.status is RunStatus.WAITING
        here.later(order, 600)
    assert run.status is RunStatus.FAILED
    with pytest.raises(
        RunFailed, match=r"deadline \(1e-06 s\) passed .* at try 8 .*Nothing was sent; give it a longer"
    ):
        run.get(timeout=0)
    assert (here.requests, here.operation().status) == ([], OperationStatus.FAILED)
    here.sound()


def test_a_step_may_go_on_after_a_call_that_was_never_begun_in_time(here: Duel) -> None:
    @tool(effect="manual", timeout=timedelta(microseconds=1))
    def charge() -> None:
        here.requests.append("sent")

    def pay(_state: Any) -> Any:
        try:
            charge()
        except TimeoutError:
            return done("not charged")

    order = here.agent(charge, pay=pay)
    run = here.run(order)
    for _ in range(MAX_SENDS):
        here.later(order, 600)
    assert (run.get(timeout=0), here.requests) == ("not charged", [])
    here.sound()


def test_a_worker_that_dies_before_it_gives_such_a_call_up_leaves_a_doubt_and_the_next_try_is_the_last(
    here: Duel,
) -> None:
    @tool(effect="manual", timeout=timedelta(microseconds=1))
    def charge() -> None:
        here.requests.append("sent")

    outcomes = []

    def dies(point: Point) -> None:
        if point == Point("commit", "outcome", "before"):
            outcomes.append(point)
            if len(outcomes) == MAX_SENDS - 1:
                raise MemoryError

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)  # the first try; the others are the rival's
    here.rival.boundary.observer = dies
    for _ in range(MAX_SENDS + 1):
        here.later(order, 600)
    assert here.questions() == ["unknown"]
    here.reply(order, "did-not-happen")
    here.later(order, 600)
    assert (run.status, here.requests) == (RunStatus.FAILED, [])
    here.sound()
