"""Cancel: a request that the owner of a run honours in its next write, and that settles every doubt first (M21, I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    AnswerTooLate,
    Happened,
    NotHappened,
    RunCancelled,
    RunFailed,
    RunHandle,
    StepSuspended,
    current_run,
    done,
    fail,
    tool,
)
from agent_tasks.boundary import Point
from agent_tasks.errors import AgentTasksError, LedgerUnavailable
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.sweeper import end_lease
from tests.duel import RUN, Duel, Outage, duel, in_thread

TIMEOUT = timedelta(seconds=10)
SUCCEEDED, CANCELLED = RunStatus.SUCCEEDED, RunStatus.CANCELLED


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def cancel(here: Duel) -> bool:
    """Cancel the run as Kim, over a connection of her own."""
    return RunHandle(here.rival, RUN).cancel(who="kim", why="changed her mind")


def charging(
    here: Duel, meanwhile: Callable[[], object] = lambda: None, effect: str = "manual", **declared: Any
) -> Any:
    """A tool that notes each charge, and lets something happen in its middle."""
    declared = declared or {"timeout": TIMEOUT}

    @tool(effect=effect, **declared, bind=False)
    def charge(cents: int) -> int:
        here.requests.append(cents)
        in_thread(meanwhile)
        return cents

    return charge


def silent(here: Duel, effect: str = "manual", **declared: Any) -> Any:
    """A tool whose first request is never answered."""
    declared = declared or {"timeout": TIMEOUT}

    @tool(effect=effect, **declared, bind=False)
    def charge(cents: int) -> int:
        here.requests.append(cents)
        raise TimeoutError("no answer")

    return charge


def ended(here: Duel, run: RunHandle, seq: int) -> None:
    """Fail unless the run ended as cancelled at a checkpoint, by Kim, with nothing left open."""
    assert (run.status, here.row()["seq"], run.inbox()) == (CANCELLED, seq, [])
    with pytest.raises(RunCancelled, match=f"run '{RUN}' was cancelled by kim: changed her mind"):
        run.get(timeout=0)
    assert [(entry.who, entry.what) for entry in run.audit() if entry.what == "cancel"] == [("kim", "cancel")]
    here.sound()


# -- nobody works on it -----------------------------------------------------------------------------------------------------


def test_a_queued_run_ends_at_once_and_its_doorbell_finds_nothing_to_do(here: Duel) -> None:
    charge = charging(here)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = order.enqueue({}, run_id=RUN)

    assert cancel(here) is True
    ended(here, run, 0)
    here.work(order)
    assert (here.requests, cancel(here)) == ([], False)
    ended(here, run, 0)


def test_a_waiting_run_ends_at_once_and_is_never_woken(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        raise ConnectionError

    order = Agent("order", app=here.app)
    order.step(name="pay", max_retries=5, default_retry_delay=60)(pay)
    run = here.run(order)
    assert run.status is RunStatus.WAITING

    assert cancel(here) is True
    ended(here, run, 0)
    here.later(order, 120)
    assert here.requests == ["pay"]


def test_a_run_that_has_ended_is_not_cancelled(here: Duel) -> None:
    run = here.run(here.agent(pay=lambda _state: done("paid")))
    assert cancel(here) is False
    assert (run.get(timeout=0), run.audit()) == ("paid", [])


@pytest.mark.parametrize(("who", "why"), [("", "reason"), ("kim", " "), ("kim", "\0"), ("kim", None), ("k" * 201, "x")])
def test_a_cancel_without_a_name_or_a_reason_changes_nothing(here: Duel, who: Any, why: Any) -> None:
    order = here.agent(pay=lambda _state: done())
    run = order.enqueue({}, run_id=RUN)
    with pytest.raises(AgentTasksError, match="must be a text of 1 to"):
        run.cancel(who=who, why=why)
    assert (run.status, run.audit()) == (RunStatus.QUEUED, [])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cancel_whose_answer_was_lost_is_asked_again_and_written_once(here: Duel, moment: str) -> None:
    order = here.agent(pay=lambda _state: done())
    run = order.enqueue({}, run_id=RUN)
    here.rival.boundary.observer = Outage("cancel", moment)
    with pytest.raises(LedgerUnavailable):
        cancel(here)
    assert cancel(here) is (moment == "before")  # it has ended, or ends now
    ended(here, run, 0)


# -- in doubt -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "status"), [("happened", OperationStatus.SUCCEEDED), ("did-not-happen", OperationStatus.PENDING)]
)
def test_a_person_is_asked_whether_it_happened_before_a_cancelled_run_ends(
    here: Duel, reply: str, status: OperationStatus
) -> None:
    charge = silent(here)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)
    assert cancel(here) is True
    assert cancel(here) is True  # she asks again: it will end
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["unknown"]

    here.reply(order, reply)
    ended(here, run, 0)
    assert (here.operation().status, here.requests) == (status, [100])


def test_a_run_that_waits_for_that_very_answer_goes_on_waiting_for_it_and_then_ends(here: Duel) -> None:
    charge = silent(here)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert cancel(here) is True
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    here.reply(order, "happened", result=100)
    ended(here, run, 0)
    assert here.requests == [100]


@pytest.mark.parametrize(
    ("answer", "status"), [(Happened(100), OperationStatus.SUCCEEDED), (NotHappened(), OperationStatus.PENDING)]
)
def test_a_probe_is_asked_after_the_horizon_before_a_cancelled_run_ends(
    here: Duel, answer: Any, status: OperationStatus
) -> None:
    charge = silent(here, "probed")
    charge.probe(lambda _operation: answer)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)

    assert cancel(here) is True
    here.later(order, 0)
    assert run.status is RunStatus.WAITING
    here.later(order, TIMEOUT.total_seconds())
    ended(here, run, 0)
    assert (here.operation().status, here.requests) == (status, [100])


def test_a_doubtful_keyed_request_of_a_cancelled_run_is_not_sent_again(here: Duel) -> None:
    charge = silent(here, "keyed", key_lifetime=timedelta(days=1), timeout=TIMEOUT)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)
    cancel(here)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    here.reply(order, "happened", result=100)
    ended(here, run, 0)
    assert here.requests == [100]


def test_a_question_that_does_not_matter_any_more_is_closed_and_not_answered(here: Duel) -> None:
    charge = charging(here)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge(100)
            raise MemoryError
        return done("free of charge")

    order = here.agent(charge, pay=pay)
    run = here.run(order)
    (item,) = run.inbox()

    assert cancel(here) is True
    ended(here, run, 0)
    assert here.operation().status is OperationStatus.SUCCEEDED  # it happened, and nothing is undone
    with pytest.raises(AnswerTooLate, match=r"withdrawn by kim .*changed her mind"):
        run.resolve(item.item_id, "keep", who="lee", why="too late")


# -- its owner works on it ------------------------------------------------------------------------------------------------------


def test_a_call_under_way_is_not_disturbed_and_the_next_one_does_not_begin(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here))
    order = here.agent(charge, pay=lambda _state: done([charge(1), charge(2)]))
    run = here.run(order)

    ended(here, run, 0)
    assert (here.requests, here.operation().status) == ([1], OperationStatus.SUCCEEDED)


def test_a_cancel_between_two_calls_is_seen_by_the_intent_which_inserts_nothing(here: Duel) -> None:
    charge = charging(here)

    def pay(_state: Any) -> Any:
        in_thread(lambda: cancel(here))
        return done(charge(1))

    run = here.run(here.agent(charge, pay=pay))
    ended(here, run, 0)
    assert (here.requests, here.operations()) == ([], [])


def test_a_step_that_swallows_the_end_of_its_attempt_calls_nothing_more(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here))

    def pay(_state: Any) -> Any:
        charge(1)
        for cents in (2, 3):
            try:
                charge(cents)
            except StepSuspended:
                continue
        return done()

    run = here.run(here.agent(charge, pay=pay))
    ended(here, run, 0)
    assert here.requests == [1]


def test_a_step_that_comes_to_its_commit_keeps_its_checkpoint(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here))

    def pay(state: Any) -> Any:
        state["charged"] = charge(100)
        return order.steps["ship"]

    order = here.agent(charge, pay=pay, ship=lambda _state: done(charge(200)))
    run = here.run(order)

    ended(here, run, 1)
    state = run.state()
    assert state is not None
    assert state.agent_state == {"charged": 100}
    here.later(order, 60)
    assert here.requests == [100]


def test_done_has_the_last_word(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here))
    run = here.run(here.agent(charge, pay=lambda _state: done(charge(100))))
    assert (run.get(timeout=0), run.status) == (100, SUCCEEDED)
    here.sound()


def test_fail_has_the_last_word(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here))
    run = here.run(here.agent(charge, pay=lambda _state: charge(100) and fail("sold out")))
    with pytest.raises(RunFailed, match="sold out") as failed:
        run.get(timeout=0)
    assert not isinstance(failed.value, RunCancelled)
    here.sound()


def test_a_retry_becomes_the_end(here: Duel) -> None:
    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        in_thread(lambda: cancel(here))
        raise ConnectionError("away")

    order = Agent("order", app=here.app)
    order.step(name="pay", max_retries=5)(pay)
    run = here.run(order)
    ended(here, run, 0)
    assert (here.requests, here.row()["retries"]) == (["pay"], 0)


def test_a_wait_for_an_answer_that_never_came_becomes_the_end_once_it_is_settled(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge() -> None:
        in_thread(lambda: cancel(here))
        raise TimeoutError("no answer")

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    here.reply(order, "did-not-happen")
    ended(here, run, 0)


def test_a_read_that_was_bought_is_recorded_and_no_other_is_bought(here: Duel) -> None:
    @tool(effect="read")
    def ask(question: str) -> str:
        here.requests.append(question)
        in_thread(lambda: cancel(here))
        return "42"

    run = here.run(here.agent(ask, think=lambda _state: done([ask("one"), ask("two")])))
    ended(here, run, 0)
    assert (here.requests, here.operation().result) == (["one"], "42")


def test_a_call_in_the_body_of_another_is_made_so_that_the_outer_one_is_no_doubt(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> int:
        here.requests.append(cents)
        return cents

    @tool(effect="manual", timeout=TIMEOUT)
    def buy() -> int:
        in_thread(lambda: cancel(here))
        return charge(1) + charge(2)

    run = here.run(here.agent(buy, charge, pay=lambda _state: done([buy(), buy()])))
    ended(here, run, 0)
    assert here.requests == [1, 2]
    assert {operation.status for operation in here.operations()} == {OperationStatus.SUCCEEDED}


def test_an_intent_whose_answer_was_lost_before_the_cancel_is_no_doubt(here: Duel) -> None:
    lost = Outage("intent", "after")

    def observe(point: Point) -> None:
        if point == lost.at and lost.left:
            cancel(here)
        lost(point)

    charge = charging(here)
    here.runtime.boundary.observer = observe
    run = here.run(here.agent(charge, pay=lambda _state: done([charge(1), charge(2)])))
    ended(here, run, 0)
    assert (here.requests, here.operation().status) == ([1], OperationStatus.SUCCEEDED)


def test_a_transaction_that_meets_a_cancel_is_rolled_back(here: Duel) -> None:
    if "sqlite" in here.url:
        pytest.skip("SQLite has one writer: nobody can cancel while the transaction is open")

    book = charging(here, lambda: cancel(here), "transactional", timeout=TIMEOUT)
    run = here.run(here.agent(book, pay=lambda _state: done(book(1))))
    ended(here, run, 0)
    assert here.operations() == []


# -- its owner dies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [0, 2])
def test_a_cancelled_run_whose_worker_dies_runs_no_body_again_and_asks_nobody(here: Duel, crashes: int) -> None:
    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        here.set_run(crashes=crashes)
        in_thread(lambda: cancel(here))
        raise MemoryError

    order = here.agent(pay=pay)
    run = here.run(order)
    ended(here, run, 0)
    assert here.requests == ["pay"]


def test_a_cancel_outlives_the_lease_the_sweep_and_the_broker(here: Duel) -> None:
    charge = charging(here, lambda: cancel(here) and end_lease(here.rival, RUN, here.row()["lease_token"]))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)  # its late outcome settles the call, and says that it goes on
    assert here.drive(order) is CANCELLED
    ended(here, run, 0)
    assert (here.requests, here.operation().status) == ([100], OperationStatus.SUCCEEDED)


def test_a_late_outcome_after_the_end_is_evidence(here: Duel) -> None:
    def meanwhile() -> None:
        assert end_lease(here.rival, RUN, here.row()["lease_token"])
        cancel(here)
        assert here.drive(order) is RunStatus.NEEDS_ATTENTION
        here.reply(order, "did-not-happen")
        assert here.row()["status"] == CANCELLED

    charge = charging(here, meanwhile)
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)
    ended(here, run, 0)
    assert here.operation().evidence[-1]["what"] == "late succeeded"
    assert here.operation().status is OperationStatus.SUCCEEDED  # the ledger says what is true
