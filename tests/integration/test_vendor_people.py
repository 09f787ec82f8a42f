"""People who answer late, twice, or at the moment at which somebody else does (I14): one is heard, and one acts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import AnswerTooLate, AskAgain, Happened, RunHandle, done
from agent_tasks.boundary import Point
from agent_tasks.doorbell import InlineBell
from agent_tasks.probing import MAX_PUT_OFFS
from agent_tasks.runtime import Runtime
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import RUN
from tests.market import HORIZON_SECONDS, Market, market
from tests.vendor_server import LOST_ON_THE_WAY, RESET, Way


@pytest.fixture
def here(database_url: str) -> Iterator[Market]:
    with market(database_url) as opened:
        yield opened


def asked(here: Market, *ways: Way, effect: str = "manual") -> Any:
    """Start a charge, and let time pass until a person is asked about it; return its agent."""
    here.script(*ways)
    order = here.start(here.charge(effect))
    here.later(order, HORIZON_SECONDS + 0.1)
    assert here.questions() == ["unknown"]
    return order


class Person:
    """Somebody with a process, a connection and an opinion of his own."""

    def __init__(self, here: Market, who: str, reply: str, result: Any = None) -> None:
        self.who, self.reply, self.result = who, reply, result
        self.runtime = Runtime(here.runtime.settings, InlineBell, clock=here.runtime.clock)
        self.heard: bool | None = None
        self.told = ""

    def answer(self, item_id: str) -> None:
        """Answer, and note whether that was heard or what he was told."""
        try:
            run = RunHandle(self.runtime, RUN)
            run.resolve(item_id, self.reply, who=self.who, why="looked it up", result=self.result)
            self.heard = True
        except AnswerTooLate as late:
            self.heard, self.told = False, str(late)
        finally:
            self.runtime.engine.dispose()


def at_once(first: Callable[[], Any], second: Callable[[], Any], hold: Runtime, name: str) -> None:
    """Let the second begin when the first stands before its commit, with its locks held."""
    begun = threading.Event()

    def run_second() -> None:
        begun.set()
        second()

    thread = threading.Thread(target=run_second)

    def observer(point: Point) -> None:
        if point == Point("commit", name, "before") and not thread.is_alive() and not begun.is_set():
            thread.start()
            assert begun.wait(30)

    hold.boundary.observer = observer
    first()
    hold.boundary.observer = None
    thread.join(60)
    assert begun.is_set()
    assert not thread.is_alive()


def audit(here: Market) -> list[tuple[str, str]]:
    return [(entry.who, entry.what) for entry in RunHandle(here.rival, RUN).audit()]


# -- two people ------------------------------------------------------------------------------------------------------------


def test_of_two_people_at_once_the_second_is_told_what_the_first_said(here: Market) -> None:
    order = asked(here, RESET)
    (item,) = RunHandle(here.rival, RUN).inbox()
    kim = Person(here, "kim", "happened", here.bank.book[0].seen())
    lee = Person(here, "lee", "did-not-happen")

    at_once(lambda: kim.answer(item.item_id), lambda: lee.answer(item.item_id), kim.runtime, "resolve")

    assert (kim.heard, lee.heard) == (True, False)
    assert "was answered already: happened by kim (looked it up)" in lee.told
    assert audit(here) == [("kim", "unknown: happened")]
    here.drive(order)
    here.later(order, 60)  # kim's bell was rung in his process; the sweeper rings here
    assert here.drive(order) is RunStatus.SUCCEEDED
    here.charged_once()


# -- a person and a late outcome ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["person", "outcome"])
@pytest.mark.parametrize("reply", ["happened", "did-not-happen"])
def test_a_person_and_a_late_outcome_at_once_leave_one_charge(here: Market, first: str, reply: str) -> None:
    """The zombie's own success and a person's word about the same request meet at the run's row."""
    charge = here.charge("manual")
    send, people = charge.body, []

    def body(operation: Any, cents: int) -> Any:
        answer = send(operation, cents)
        if len(here.bank.requests) == 1:
            here.meanwhile(order, seconds=HORIZON_SECONDS + 0.1)
            (item,) = RunHandle(here.rival, RUN).inbox()
            person = Person(here, "kim", reply, answer if reply == "happened" else None)
            people.append((person, item.item_id))
        return answer

    charge.body = body
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    order.enqueue({}, run_id=RUN)

    def kim() -> None:
        person, item_id = people[0]
        person.answer(item_id)

    if first == "outcome":
        at_once(lambda: here.work(order), kim, here.runtime, "outcome")
    else:
        threads = []

        def observer(point: Point) -> None:
            if point == Point("effect", "charge", "after") and not threads:
                # Kim is on his way into the transaction when the zombie writes its outcome.
                threads.append(threading.Thread(target=kim))
                threads[0].start()

        here.runtime.boundary.observer = observer
        here.work(order)
        here.runtime.boundary.observer = None
        threads[0].join(60)

    here.later(order, 60)
    assert here.drive(order) is RunStatus.SUCCEEDED
    here.charged_once()
    (person, _item_id), acted = people[0], audit(here)
    assert acted == ([("kim", f"unknown: {reply}")] if person.heard else [])
    if first == "outcome":
        assert not person.heard
        assert "withdrawn by evidence (a late outcome settled it)" in person.told


# -- a person and a probe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["probe", "person"])
def test_a_person_and_a_probe_at_once_leave_one_answer(here: Market, first: str) -> None:
    """The probe has put off often enough for a person to be asked beside it; then both know at the same moment."""
    here.script(RESET)
    person = Person(here, "kim", "happened", "by kim")
    threads: list[threading.Thread] = []

    def probe(_operation: Any) -> Any:
        if not here.questions():
            return AskAgain(timedelta(minutes=1))
        if first == "person":
            person.answer(RunHandle(here.rival, RUN).inbox()[0].item_id)
        return Happened("by the probe")

    order = here.start(here.charge("probed", probe=probe))
    here.later(order, HORIZON_SECONDS + 0.1)
    for _ in range(MAX_PUT_OFFS - 1):
        here.later(order, 61)
    (item,) = RunHandle(here.rival, RUN).inbox()

    if first == "probe":
        at_once(lambda: here.later(order, 61), lambda: person.answer(item.item_id), here.rival, "answer")
    else:
        here.later(order, 61)

    assert here.drive(order) is RunStatus.SUCCEEDED
    here.sound()
    assert not threads
    assert here.output() == ("by kim" if first == "person" else "by the probe")
    assert audit(here) == ([("kim", "unknown: happened")] if first == "person" else [])
    assert person.heard is (first == "person")
    assert here.questions() == []


# -- answers that come too late -----------------------------------------------------------------------------------------------


def test_an_answer_about_the_first_try_does_not_settle_the_second(here: Market) -> None:
    order = asked(here, LOST_ON_THE_WAY, RESET)
    (about_first,) = RunHandle(here.rival, RUN).inbox()
    here.reply(order, "did-not-happen")
    here.later(order, HORIZON_SECONDS + 0.1)
    (about_second,) = RunHandle(here.rival, RUN).inbox()
    assert about_second.item_id != about_first.item_id

    lee = Person(here, "lee", "did-not-happen")
    lee.answer(about_first.item_id)
    assert "was answered already: did-not-happen by kim" in lee.told
    assert here.operation().status is OperationStatus.UNKNOWN
    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()


def test_an_answer_for_a_run_that_ended_changes_nothing(here: Market) -> None:
    order = asked(here, RESET)
    (item,) = RunHandle(here.rival, RUN).inbox()
    here.reply(order, "happened", here.bank.book[0].seen())
    before = here.row()

    lee = Person(here, "lee", "did-not-happen")
    lee.answer(item.item_id)
    assert not lee.heard
    assert dict(here.row(), now=0) == dict(before, now=0)
    assert audit(here) == [("kim", "unknown: happened")]
    here.charged_once()
