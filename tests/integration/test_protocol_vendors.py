"""Vendors that answer in every way: keys and their lives, refusals, horizons, probes (I5, I6)."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import (
    AskAgain,
    CannotTell,
    Happened,
    NotHappened,
    Operation,
    PartlyHappened,
    RunFailed,
    Tool,
    done,
    probing,
    tool,
)
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.sweeper import end_lease
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


class Declined(Exception):
    """This request did not happen."""


class CardDeclined(Declined):
    """A kind of it that the tool does not name."""


class Vendor:
    """Answers request n with `answers[n]`: an exception is raised, anything else returned."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.keys = answers, []  # type: tuple[Any, ...], list[str]

    def __call__(self, operation: Operation) -> Any:
        self.keys.append(operation.idempotency_key)
        answer = self.answers[min(len(self.keys), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def keyed(vendor: Vendor, lifetime: timedelta = timedelta(hours=1), **options: Any) -> Tool[..., Any]:
    @tool(
        effect="keyed", key_lifetime=lifetime, timeout=TIMEOUT, refused=(Declined,), bind=True, name="charge", **options
    )
    def charge(operation: Operation, cents: int) -> Any:
        return vendor(operation)

    return charge


def start(here: Duel, charge: Tool[..., Any]) -> Any:
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    here.run(order)
    return order


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_doubtful_keyed_request_is_sent_again_with_the_same_key_after_a_pause_that_is_a_row(here: Duel) -> None:
    vendor = Vendor(TimeoutError(), TimeoutError(), "charged")
    order = start(here, keyed(vendor))

    pauses = []
    for _ in range(2):
        row = here.row()
        assert (row["status"], row["lease_token"]) == (RunStatus.WAITING, None)
        pauses.append(round((row["due_at"] - row["updated_at"]) / 1e6))
        here.later(order, pauses[-1] + 0.01)

    assert pauses == [1, 2]
    assert order.run("run-1").get(timeout=0) == "charged"
    assert len(vendor.keys) == 3
    assert set(vendor.keys) == {here.operation().operation_id}


def test_a_refusal_settles_a_request_that_was_never_in_doubt(here: Duel) -> None:
    order = start(here, keyed(Vendor(Declined("no money"))))
    with pytest.raises(RunFailed, match="no money"):
        order.run("run-1").get(timeout=0)
    assert here.operation().status is OperationStatus.FAILED


def test_a_refusal_after_an_ambiguous_try_settles_nothing(here: Duel) -> None:
    vendor = Vendor(TimeoutError(), Declined("in use"), "charged")
    order = start(here, keyed(vendor))
    here.later(order, 1.01)

    assert here.operation().status is OperationStatus.UNKNOWN
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert order.run("run-1").get(timeout=0) == "charged"


def test_a_vendor_that_repeats_its_error_for_a_key_is_left_to_a_person_in_the_end(here: Duel) -> None:
    vendor = Vendor(TimeoutError("500"))
    order = start(here, keyed(vendor, timedelta(days=30)))

    assert here.drive(order, rounds=3 * MAX_SENDS) is RunStatus.NEEDS_ATTENTION
    assert (len(vendor.keys), here.questions()) == (MAX_SENDS, ["unknown"])
    assert len(set(vendor.keys)) == 1


def test_a_key_whose_life_is_over_is_not_used_and_a_person_is_asked(here: Duel) -> None:
    vendor = Vendor(TimeoutError())
    order = start(here, keyed(vendor))
    here.later(order, 3600)

    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (len(vendor.keys), here.questions()) == (1, ["unknown"])


def test_a_key_that_would_die_during_the_request_is_not_used(here: Duel) -> None:
    vendor = Vendor(TimeoutError())
    order = start(here, keyed(vendor, timedelta(seconds=15)))
    here.later(order, 5.5)

    here.drive(order)
    assert len(vendor.keys) == 1


def test_a_key_whose_life_is_over_is_asked_about_where_there_is_a_probe(here: Duel) -> None:
    vendor = Vendor(TimeoutError())
    charge = keyed(vendor)
    charge.probe(timeout=TIMEOUT)(lambda _operation: Happened("ch_1"))
    order = start(here, charge)
    here.later(order, 3600)

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert (order.run("run-1").get(timeout=0), len(vendor.keys)) == ("ch_1", 1)


def test_a_request_that_was_never_sent_does_not_settle_an_earlier_one(here: Duel) -> None:
    """The second intent is written after its own deadline; the first request may have happened all the same."""
    vendor = Vendor(TimeoutError(), "charged")
    charge = keyed(vendor)
    order = start(here, charge)

    def slow(point: Any) -> None:
        if (point.name, point.moment) == ("intent", "after"):
            here.rival.boundary.observer = None
            here.runtime.clock.advance(3600)  # the deadline has passed, and so has the key's life

    here.rival.boundary.observer = slow
    here.later(order, 1.01)
    assert here.operation().status is OperationStatus.UNKNOWN

    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (len(vendor.keys), here.questions()) == (1, ["unknown"])


def test_a_body_whose_deadline_passed_before_it_began_is_not_begun(here: Duel) -> None:
    vendor = Vendor("charged")

    def slow(point: Any) -> None:
        if (point.name, point.moment) == ("intent", "after"):
            here.runtime.boundary.observer = None
            here.runtime.clock.advance(11)

    here.runtime.boundary.observer = slow
    order = start(here, keyed(vendor))
    assert (vendor.keys, here.operation().status) == ([], OperationStatus.PENDING)

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert (len(vendor.keys), here.operation().attempts) == (1, 2)


# -- failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "repeatable", "keyed", "transactional"])
@pytest.mark.parametrize(
    "error", [KeyError("tea"), CardDeclined("no money"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")], ids=repr
)
def test_a_recorded_failure_is_of_the_same_class_in_every_attempt(here: Duel, error: Exception, effect: str) -> None:
    if effect == "keyed" and not isinstance(error, Declined):
        return  # ambiguous: no step sees it
    options = (
        {"key_lifetime": TIMEOUT} if effect == "keyed" else {"why": "sets a value"} if effect == "repeatable" else {}
    )
    seen: list[tuple[type, str]] = []

    @tool(effect=effect, refused=(Declined,), **options, bind=False)
    def act() -> None:
        here.requests.append("act")
        raise error

    def pay(_state: Any) -> Any:
        try:
            act()
        except Exception as failure:  # noqa: BLE001 - each is compared
            seen.append((type(failure), str(failure)))
        if len(seen) == 1:
            raise MemoryError
        return done()

    here.run(here.agent(act, pay=pay)).get(timeout=0)
    assert seen[0] == seen[1]
    assert here.requests == ["act"]


def test_a_group_of_exceptions_is_seen_alike_by_every_attempt(here: Duel) -> None:
    groups = getattr(builtins, "ExceptionGroup", None)  # Python 3.11
    if groups is None:
        return
    seen: list[str] = []

    @tool(effect="read")
    def look() -> None:
        raise groups("several", [ValueError("one")])

    def pay(_state: Any) -> Any:
        try:
            look()
        except Exception as failure:  # noqa: BLE001
            seen.append(type(failure).__name__)
        if len(seen) == 1:
            raise MemoryError
        return done()

    here.run(here.agent(look, pay=pay)).get(timeout=0)
    assert seen == ["ToolFailed", "ToolFailed"]


@pytest.mark.parametrize("effect", ["read", "repeatable", "transactional"])
@pytest.mark.parametrize("error", [MemoryError, SystemExit])
def test_what_takes_a_process_with_it_is_no_failure_of_the_tool(
    here: Duel, effect: str, error: Callable[[], BaseException]
) -> None:
    @tool(effect=effect, why="sets a value" if effect == "repeatable" else None, bind=False)
    def act() -> str:
        here.requests.append("act")
        if len(here.requests) < 3:
            raise error()
        return "at last"

    order = here.agent(act, pay=lambda _state: done(act()))
    run = here.run(order)
    assert run.get(timeout=0) == "at last"
    assert here.row()["crashes"] == 2


# -- horizons and probes -------------------------------------------------------------------------------------------------


def probed(here: Duel, *answers: Any, **options: Any) -> Tool[..., Any]:
    """Return a charge whose every request times out, and whose probe gives these answers; `here.requests` has both."""

    @tool(effect="probed", timeout=TIMEOUT, name="charge", **options, bind=False)
    def charge(cents: int) -> Any:
        here.requests.append("request")
        raise TimeoutError

    @charge.probe(timeout=timedelta(seconds=1))
    def look(_operation: Operation) -> Any:
        asked = here.requests.count("probe")
        here.requests.append("probe")
        answer = answers[min(asked, len(answers) - 1)]
        return answer() if callable(answer) else answer

    return charge


def test_nobody_is_asked_before_the_horizon(here: Duel) -> None:
    order = start(here, probed(here, Happened("ch_1"), settle=timedelta(seconds=5)))
    row = here.row()
    assert row["due_at"] == here.operation().horizon_at
    assert here.operation().horizon_at - here.operation().started_at in range(14_999_000, 15_001_001)

    for _ in range(3):  # woken for whatever reason, the run does not ask early
        here.set_run(status="queued", due_at=row["now"])
        here.later(order, 4)
        assert here.requests == ["request"]
    here.later(order, 4)
    assert order.run("run-1").get(timeout=0) == "ch_1"
    assert here.requests == ["request", "probe"]


def test_no_person_is_asked_before_the_horizon(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> None:
        raise TimeoutError

    order = start(here, charge)
    here.set_run(status="queued", due_at=here.row()["now"])  # woken for whatever reason
    here.later(order, 5)
    assert here.questions() == []
    here.later(order, 6)
    assert here.questions() == ["unknown"]


def test_an_empty_answer_is_believed_only_when_the_effect_would_be_visible(here: Duel) -> None:
    order = start(here, probed(here, NotHappened(), Happened("ch_1"), visible_after=timedelta(seconds=60)))
    here.later(order, 11)
    assert here.requests == ["request", "probe"]
    assert here.row()["due_at"] - here.operation().horizon_at in range(59_900_000, 60_100_000)

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert here.requests == ["request", "probe", "probe"]


def test_a_probe_that_says_ask_again_is_asked_again_then_and_not_before(here: Duel) -> None:
    order = start(here, probed(here, AskAgain(timedelta(minutes=5)), Happened("ch_1")))
    here.later(order, 11)
    here.set_run(status="queued", due_at=0)
    here.later(order, 100)
    assert here.requests == ["request", "probe"]
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert here.requests == ["request", "probe", "probe"]


def raising() -> Any:
    raise ConnectionError("the vendor is away")


ENOUGH = threading.Event()


def hanging() -> Any:
    assert ENOUGH.wait(30)
    return Happened("too late")


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


CANNOT = {
    "CannotTell": CannotTell("no such list"),
    "PartlyHappened": PartlyHappened({"sent": 3, "of": 5}),
    "PartlyHappened without a text": PartlyHappened(Speechless()),
    "an exception": raising,
    "a hang": hanging,
    "an exit": lambda: (_ for _ in ()).throw(SystemExit),
    "None": None,
    "a bool": True,
    "no answer and no text": Speechless(),
    "AskAgain without a duration": AskAgain(5),  # type: ignore[arg-type]
    "CannotTell with a NUL": CannotTell("a\0b\ud800"),
}


@pytest.mark.parametrize("answer", CANNOT)
def test_a_probe_that_cannot_tell_leaves_the_question_to_a_person(here: Duel, answer: str) -> None:
    ENOUGH.clear()
    order = start(here, probed(here, CANNOT[answer]))

    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), here.requests) == (["unknown"], ["request", "probe"])
    ENOUGH.set()
    here.sound()
    here.reply(order, "happened", result="ch_1")
    assert order.run("run-1").get(timeout=0) == "ch_1"


@pytest.mark.parametrize("external_id", [12345, "x" * 5000, "a\0b", "ch_1"], ids=["int", "long", "NUL", "text"])
def test_whatever_name_the_vendor_gives_an_effect_it_is_recorded(here: Duel, external_id: Any) -> None:
    order = start(here, probed(here, Happened("ch_1", external_id=external_id)))
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert str(here.operation().external_id)[:2] == str(external_id).replace("\0", "\\")[:2]


@pytest.mark.parametrize("after", [timedelta.max, timedelta(days=-1), timedelta(0)], ids=["ever", "past", "now"])
def test_a_probe_that_names_an_impossible_date_does_not_stop_the_run_for_good(here: Duel, after: timedelta) -> None:
    order = start(here, probed(here, AskAgain(after), Happened("ch_1")))
    assert here.drive(order) is RunStatus.SUCCEEDED


@pytest.mark.parametrize(
    "after",
    [timedelta(days=-1), timedelta.min, timedelta(0), timedelta(microseconds=1)],
    ids=["past", "never", "now", "at once"],
)
def test_a_probe_that_names_a_date_which_has_passed_is_not_asked_without_a_pause(
    here: Duel, after: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortest = timedelta(minutes=1)  # which no slow machine lets pass by itself
    monkeypatch.setattr(probing, "SHORTEST_PAUSE", shortest)
    order = start(here, probed(here, *[AskAgain(after)] * 20, Happened("ch_1")))
    here.drive(order, rounds=1)
    for probes in (1, 2, 3):
        for _ in range(3):  # as many sweepers as a fleet has
            here.later(order, 0)
        assert here.requests == ["request", *["probe"] * probes]
        here.later(order, shortest.total_seconds())


def test_a_call_that_always_times_out_and_never_happens_becomes_a_persons(here: Duel) -> None:
    order = start(here, probed(here, NotHappened()))
    assert here.drive(order, rounds=5 * MAX_SENDS) is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["sends"]
    assert here.requests == ["request", "probe"] * MAX_SENDS


def test_a_probe_says_happened_with_a_result_that_cannot_be_stored(here: Duel) -> None:
    order = start(here, probed(here, Happened(object())))
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["result"]
    here.reply(order, "happened", result="ch_1")
    assert order.run("run-1").get(timeout=0) == "ch_1"
    assert here.requests == ["request", "probe"]


def test_an_answer_of_a_probe_whose_attempt_was_overtaken_settles_nothing(here: Duel) -> None:
    """The rival is taken over while its probe looks; what it saw belongs to a lease that ended."""

    def look() -> Any:
        if here.requests == ["request", "probe"]:
            assert end_lease(here.runtime, "run-1", here.row()["lease_token"])
            return NotHappened()
        return Happened("ch_1")

    order = start(here, probed(here, look))
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert here.requests.count("request") == 1
    assert order.run("run-1").get(timeout=0) == "ch_1"
