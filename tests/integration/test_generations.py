"""A run that is resumed, deleted, or started anew under its old id is not taken for the one before (I2, I9, I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Reject

from agent_tasks import AgentTask, AgentTasksError, RunCancelled, RunHandle, done, tool
from agent_tasks.answering import answer
from agent_tasks.cleaning import clean_up
from agent_tasks.inline import answer_all, run_to_its_end
from agent_tasks.states import FINISHED, OperationStatus, RunStatus
from agent_tasks.sweeper import end_lease
from agent_tasks.testing import check_invariants
from tests.duel import Duel, in_thread

MANUAL: dict[str, Any] = {"effect": "manual", "timeout": timedelta(seconds=5)}


class Shop(Duel):
    """A worker and its rival, with plain tasks whose results are kept."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.app.conf.result_backend = "cache+memory://"

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        return self.app.task(**{"base": AgentTask, "shared": False, "name": body.__name__, **options})(body)

    def run_of(self, run_id: str) -> RunHandle:
        return RunHandle(self.runtime, run_id)

    def row_of(self, run_id: str) -> Any:
        with self.runtime.engine.connect() as connection:
            return self.runtime.runs.find(connection, run_id)


def nothing() -> None:
    """A body that does nothing."""


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with closing(Shop(database_url)) as made:
        yield made
        with made.runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            assert check_invariants(connection) == []


def test_a_run_that_was_begun_and_is_resumed_after_its_expiry_goes_on(shop: Shop) -> None:
    def pay(order: str) -> str:
        shop.requests.append(order)
        if len(shop.requests) == 1:
            raise ValueError("a bug")
        return "paid"

    task = shop.task(pay, effect="repeatable", why="the same order is paid once")
    task.apply_async(("o-1",), task_id="r", expires=60)
    run_to_its_end(shop.runtime, task.job, "r")
    assert shop.run_of("r").status is RunStatus.FAILED

    shop.runtime.clock.advance(120)
    shop.run_of("r").resume(who="kim", why="the bug is mended")
    run_to_its_end(shop.runtime, task.job, "r")
    assert shop.run_of("r").status is not RunStatus.CANCELLED


def test_a_doubt_of_a_resumed_run_that_expired_is_still_asked_about(shop: Shop) -> None:
    def pay(order: str) -> str:
        raise TimeoutError("no answer")

    task = shop.task(pay, **MANUAL)
    task.apply_async(("o-1",), task_id="r", expires=60)
    run_to_its_end(shop.runtime, task.job, "r")
    shop.runtime.clock.advance(120)
    shop.run_of("r").resume(who="kim", why="look again")
    run_to_its_end(shop.runtime, task.job, "r")
    assert shop.run_of("r").status is RunStatus.NEEDS_ATTENTION
    assert [str(item.question) for item in shop.run_of("r").inbox()] == ["unknown"]


def test_a_resumed_call_stays_on_its_queue(shop: Shop) -> None:
    def pay(order: str) -> str:
        raise ValueError("a bug")

    task = shop.task(pay, effect="repeatable", why="the same order is paid once")
    task.apply_async(("o-1",), task_id="r", queue="money")
    run_to_its_end(shop.runtime, task.job, "r")
    shop.run_of("r").resume(who="kim", why="the bug is mended")
    assert shop.row_of("r")["queue"] == "money"


def test_the_late_outcome_of_a_deleted_run_settles_nothing_of_the_one_that_has_its_id_now(shop: Shop) -> None:
    def mail(words: str) -> str:
        shop.requests.append(words)
        if words == "first":
            in_thread(start_anew)
        else:
            raise MemoryError
        return f"sent {words}"

    def start_anew() -> None:
        assert end_lease(shop.rival, "r", shop.row_of("r")["lease_token"])
        run = RunHandle(shop.rival, "r")
        run.cancel(who="kim", why="not needed")
        run_to_its_end(shop.rival, task.job, "r")
        (item,) = run.inbox()
        run.resolve(item.item_id, "did-not-happen", who="kim", why="looked it up")
        run_to_its_end(shop.rival, task.job, "r")
        assert run.status is RunStatus.CANCELLED
        shop.runtime.clock.advance(1)
        assert clean_up(shop.rival, older_than=timedelta(0), dry_run=False).deleted == 1
        task.apply_async(("second",), task_id="r", ignore_result=True)
        answer_all(shop.runtime, task.job)

    task = shop.task(mail, **MANUAL)
    task.apply_async(("first",), task_id="r", ignore_result=True)
    answer_all(shop.runtime, task.job)

    (operation,) = shop.run_of("r").operations()
    assert operation.args == {"words": "second"}
    assert operation.status is not OperationStatus.SUCCEEDED


def test_a_call_that_follows_a_deleted_one_ends_and_says_why(shop: Shop) -> None:
    def pay(order: str) -> str:
        return "paid"

    task = shop.task(pay, tools=[], dedupe_on=("order",))
    task.apply_async(("o-1",), task_id="a")
    run_to_its_end(shop.runtime, task.job, "a")
    task.apply_async(("o-1",), task_id="b", countdown=3600)
    with shop.runtime.engine.connect() as connection, connection.begin():
        connection.execute(shop.runtime.tables.runs.delete().where(shop.runtime.tables.runs.c.run_id == "a"))
    run_to_its_end(shop.runtime, task.job, "b")
    assert shop.run_of("b").status is RunStatus.FAILED


def test_a_second_call_that_wants_the_result_gets_it_although_the_first_did_not(shop: Shop) -> None:
    def pay(order: str) -> str:
        return "paid"

    task = shop.task(pay, tools=[], dedupe_on=("order",))
    task.apply_async(("o-1",), ignore_result=True)
    answer_all(shop.runtime, task.job)
    second = task.apply_async(("o-1",))
    assert shop.row_of(second.id)["keeps_result"] == 1
    run_to_its_end(shop.runtime, task.job, second.id)
    assert shop.run_of(second.id).get(timeout=0) == "paid"


def test_whoever_cancelled_last_is_named(shop: Shop) -> None:
    @tool(effect="read")
    def look() -> None:
        RunHandle(shop.rival, "r").cancel(who="kim", why="the first")

    def pay(_state: Any) -> Any:
        look()
        raise ValueError("a bug")

    order = shop.agent(look, pay=pay)
    shop.run(order, "r")
    if shop.run_of("r").status is RunStatus.FAILED:
        shop.run_of("r").resume(who="lee", why="once more")
        shop.run_of("r").cancel(who="max", why="the second")
        with pytest.raises(RunCancelled, match="max: the second"):
            shop.run_of("r").get(timeout=0)
    assert shop.run_of("r").status in FINISHED


def test_an_enqueue_that_races_a_cleanup_makes_its_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    order = shop.agent(pay=lambda _state: done("paid"))
    order.enqueue({}, run_id="a", dedupe_key="k")
    shop.work(order)
    find, runs = shop.runtime.runs.find_by_dedupe_key, shop.runtime.tables.runs

    def deleted_meanwhile(connection: Any, agent: str, key: str) -> Any:
        connection.execute(runs.delete().where(runs.c.run_id == "a"))
        return find(connection, agent, key)

    monkeypatch.setattr(shop.runtime.runs, "find_by_dedupe_key", deleted_meanwhile)
    assert order.enqueue({}, run_id="b", dedupe_key="k").run_id == "b"


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": float("inf")},
        {"countdown": "soon"},
        {"expires": float("nan")},
        {"countdown": 1e15},
        {"headers": {"agent_revoked": "x"}},
        {"headers": {"id": "another"}},
    ],
    ids=str,
)
def test_an_option_that_no_run_can_have_is_refused_before_anything_is_made(shop: Shop, options: dict[str, Any]) -> None:
    task = shop.task(nothing, tools=[])
    with pytest.raises(AgentTasksError, match="Nothing was sent"):
        task.apply_async((), task_id="r", **options)
    assert shop.row_of("r") is None


def test_a_message_by_name_that_could_not_become_a_run_goes_back_to_the_broker(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = shop.task(nothing, tools=[])

    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("a time limit, say")

    monkeypatch.setattr(task.job, "make", breaks)
    monkeypatch.setattr("agent_tasks.answering._REQUEUE_PAUSE_SECONDS", 0)
    task.push_request(id="r", args=[], kwargs={}, delivery_info={})
    try:
        with pytest.raises(Reject):
            answer(task, task.job)
    finally:
        task.pop_request()
