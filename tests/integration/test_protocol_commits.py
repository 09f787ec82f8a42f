"""Commits whose answer never came, one by one, and a database that is away for a while (I2, I6, I7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from agent_tasks import Agent, DedupeConflict, Operation, done, tool
from agent_tasks.boundary import Point
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.inline import answer, answer_all
from agent_tasks.runtime import Runtime
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, Outage, duel
from tests.waiting import wait_until

TIMEOUT = timedelta(seconds=10)

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def two_steps(here: Duel) -> Agent:
    @tool(effect="read")
    def price(item: str) -> int:
        here.requests.append("price")
        return 100

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append("charge")
        return "charged"

    def pay(state: Any) -> Any:
        state["charged"] = charge(price("tea"))
        return order.steps["ship"]

    order = here.agent(price, charge, pay=pay, ship=lambda state: done(state["charged"]))
    return order


COMMITS = ("enqueue", "claim", "intent", "outcome", "record", "step")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("boundary", COMMITS)
def test_a_commit_whose_answer_never_came_is_found_or_written_and_not_doubled(
    here: Duel, boundary: str, moment: str
) -> None:
    outage = Outage(boundary, moment)
    here.runtime.boundary.observer = outage
    order = two_steps(here)
    try:
        run = here.run(order)
    except LedgerUnavailable:  # an enqueue that was not committed is the caller's to send again
        assert (boundary, moment) == ("enqueue", "before")
        run = here.run(order)

    assert run.get(timeout=0) == "charged"
    assert outage.hits == 1
    assert here.requests == ["price", "charge"]
    assert (here.row()["fence"], here.row()["crashes"]) == (2, 0)
    here.sound()


@pytest.mark.parametrize("boundary", ["claim", "intent", "outcome", "record", "step"])
def test_a_database_that_is_away_for_several_tries_is_waited_for(here: Duel, boundary: str) -> None:
    outage = Outage(boundary, "before", times=3)
    here.runtime.boundary.observer = outage
    order = two_steps(here)

    assert here.run(order).get(timeout=0) == "charged"
    assert outage.hits == 3
    assert here.requests == ["price", "charge"]
    assert here.row()["crashes"] == 0


def test_an_intent_that_is_found_again_keeps_its_first_deadline(here: Duel) -> None:
    """The answer came a minute late: the body does not begin, and what was never sent is no doubt (I6)."""
    lost = Outage("intent", "after")

    def observe(point: Point) -> None:
        try:
            lost(point)
        except OperationalError:
            here.runtime.clock.advance(60)
            raise

    here.runtime.boundary.observer = observe
    order = two_steps(here)
    run = here.run(order)
    assert here.requests == ["price"]

    here.drive(order)
    assert (run.get(timeout=0), here.requests) == ("charged", ["price", "charge"])
    assert here.operations()[-1].attempts == 2


def test_an_outcome_that_cannot_be_written_until_the_time_limit_leaves_a_doubt_and_no_second_charge(here: Duel) -> None:
    def observe(point: Point) -> None:
        if point == Point("commit", "outcome", "before"):
            here.runtime.clock.advance(600)
            Outage("outcome", "before")(point)

    here.sweeper.sweep()
    here.runtime.boundary.observer = observe
    order = two_steps(here)
    run = here.run(order)
    assert run.status is RunStatus.RUNNING  # nobody could say otherwise; the lease runs out
    here.runtime.boundary.observer = None

    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), here.requests) == (["unknown"], ["price", "charge"])
    here.reply(order, "happened", result="charged")
    assert (run.get(timeout=0), here.requests) == ("charged", ["price", "charge"])
    here.sound()


def test_a_suspension_whose_answer_was_lost_holds(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge() -> None:
        raise TimeoutError

    outage = Outage("suspend", "after")
    here.runtime.boundary.observer = outage
    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)

    assert (run.status, outage.hits) == (RunStatus.WAITING, 1)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["unknown"]


def test_a_claim_without_any_answer_is_left_to_the_sweeper(here: Duel) -> None:
    here.runtime.boundary.observer = Outage("claim", "before", times=5)
    order = two_steps(here)
    run = order.enqueue({}, run_id="run-1")
    with pytest.raises(LedgerUnavailable):
        here.work(order)

    assert run.status is RunStatus.QUEUED
    assert here.drive(order) is RunStatus.SUCCEEDED


@pytest.mark.parametrize("fails", ["the step's state", "the output"])
def test_a_commit_that_cannot_be_stored_fails_the_run_and_keeps_its_effects(here: Duel, fails: str) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge() -> str:
        here.requests.append("charge")
        return "charged"

    def pay(state: Any) -> Any:
        charge()
        if fails == "the output":
            return done(object())
        state["lock"] = threading.Lock()
        return done()

    run = here.run(here.agent(charge, pay=pay))
    assert (run.status, here.operation().status) == (RunStatus.FAILED, OperationStatus.SUCCEEDED)
    assert here.requests == ["charge"]
    here.sound()


# -- starting ---------------------------------------------------------------------------------------------------------------


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do work in so many threads at once, and return what each returned or raised."""
    barrier, answers = threading.Barrier(count), [None] * count

    def one(number: int) -> None:
        barrier.wait(30)
        try:
            answers[number] = work(number)
        except Exception as error:  # noqa: BLE001 - compared by the test
            answers[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_callers_that_race_for_a_dedupe_key_get_one_run(here: Duel) -> None:
    order = two_steps(here)
    handles = together(8, lambda _number: order.enqueue({"n": 1}, dedupe_key="order-7"))

    assert len({handle.run_id for handle in handles}) == 1
    assert here.counts()["agent_runs"] == 1


def test_callers_that_race_with_other_inputs_get_one_run_and_a_conflict(here: Duel) -> None:
    order = two_steps(here)
    answers = together(6, lambda number: order.enqueue({"n": number}, dedupe_key="order-7"))

    assert here.counts()["agent_runs"] == 1
    assert sum(isinstance(each, DedupeConflict) for each in answers) == 5


def test_workers_that_race_for_a_doorbell_run_the_step_once(here: Duel) -> None:
    order = two_steps(here)
    run = order.enqueue({}, run_id="run-1")
    ring = here.runtime.bell.rings.popleft()
    workers = [Runtime(Settings(here.url), InlineBell, engine=here.runtime.engine) for _ in range(4)]

    together(4, lambda number: answer(workers[number], order, ring))
    for worker in workers:
        answer_all(worker, order)

    assert (run.get(timeout=0), here.requests) == ("charged", ["price", "charge"])


@pytest.mark.parametrize(
    "run_id",
    ["' OR 1=1 --", '"; DROP TABLE agent_runs; --', "ü" * 200, "😀" * 200, "a/b?c#d %s %(x)s :x", " ", "\n\t", "NULL"],
)
def test_a_hostile_run_id_is_a_name_like_any_other(here: Duel, run_id: str) -> None:
    order = two_steps(here)
    run = here.run(order, run_id=run_id)
    assert run.get(timeout=0) == "charged"
    assert order.enqueue({}, run_id=run_id).run_id == run_id
    assert here.requests == ["price", "charge"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_large_input_comes_back_and_a_bottomless_one_is_refused_whole(here: Duel) -> None:
    order = here.agent(pay=lambda state: done(len(state["text"])))
    assert here.run(order, text="x" * 5_000_000).get(timeout=0) == 5_000_000
    with pytest.raises(Exception, match="cannot be stored, so no run was made"):
        order.enqueue({"deep": nested(100_000)})
    assert here.counts()["agent_runs"] == 1


# -- steps that take their worker along --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError, SystemExit])
def test_a_step_that_takes_its_worker_along_is_parked_and_can_be_tried_again(
    here: Duel, error: Callable[[], BaseException]
) -> None:
    def pay(_state: Any) -> Any:
        here.requests.append("pay")
        if len(here.requests) <= here.runtime.settings.max_crashes:
            raise error()
        return done("at last")

    order = here.agent(pay=pay)
    run = here.run(order)
    assert (run.status, here.questions(), len(here.requests)) == (RunStatus.NEEDS_ATTENTION, ["crashes"], 3)
    here.sound()
    here.reply(order, "retry")
    assert (run.get(timeout=0), here.row()["crashes"]) == ("at last", 0)


def test_a_late_success_does_not_free_a_run_that_was_parked_for_its_crashes(here: Duel) -> None:
    parked = threading.Event()

    @tool(effect="manual", timeout=TIMEOUT, bind=True)
    def charge(operation: Operation) -> str:
        here.requests.append("charge")
        here.set_run(crashes=here.runtime.settings.max_crashes - 1)
        here.meanwhile(order)
        parked.set()
        return "charged"

    order = here.agent(charge, pay=lambda _state: done(charge()))
    run = here.run(order)

    wait_until(parked.is_set)
    assert (run.status, here.questions()) == (RunStatus.NEEDS_ATTENTION, ["crashes"])
    assert here.operation().status is OperationStatus.SUCCEEDED
    here.reply(order, "retry")
    assert (run.get(timeout=0), here.requests) == ("charged", ["charge"])


def test_the_ledger_holds_one_checkpoint_for_each_step_whatever_was_sent_twice(here: Duel) -> None:
    here.runtime.boundary.observer = Outage("step", "after", times=2)
    here.run(two_steps(here)).get(timeout=0)
    table = here.runtime.store.tables.checkpoints
    with here.runtime.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 3
