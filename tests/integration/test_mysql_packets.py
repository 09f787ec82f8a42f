"""What is longer than a statement of MariaDB's and MySQL's may be: refused before it is sent, as any value that no ledger takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from agent_tasks import NotKept, NotWritable, RunFailed, done, run_calls, tool
from agent_tasks.errors import ArgumentsNotStorable
from agent_tasks.inbox_client import open_inbox
from agent_tasks.states import RunStatus
from agent_tasks.testing import check_invariants
from checkpoint import CheckpointState, open_store
from checkpoint.errors import UnstorableValue
from tests.one_process import OneProcess

KEYED: dict[str, Any] = {"effect": "keyed", "bind": True, "key_lifetime": timedelta(hours=24)}


def noise(length: int) -> bytes:
    """Return bytes that no codec makes shorter."""
    return Random(length).randbytes(length)


@pytest.fixture
def here(mysql_database: Callable[[], str]) -> Iterator[OneProcess]:
    with closing(OneProcess(mysql_database())) as made:
        yield made
        with made.runtime.engine.connect() as connection:
            assert check_invariants(connection) == []


@pytest.fixture
def limit(here: OneProcess) -> int:
    """The longest statement, in bytes."""
    with here.runtime.engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())


def test_a_result_that_is_too_long_is_asked_for_and_the_effect_is_not_repeated(here: OneProcess, limit: int) -> None:
    ran = []

    @tool(**KEYED, name="pay")
    def pay(_operation: Any) -> bytes:
        ran.append(1)
        return noise(limit // 2)

    agent = here.agent(pay, act=lambda _state: done(len(pay())))
    run = here.run(agent)
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert "the result of pay could not be stored" in (run.waiting_for or "")
    (item,) = run.inbox()
    assert str(item.question) == "result"
    with pytest.raises(ArgumentsNotStorable, match=r"nothing was changed: a statement of .* \(max_allowed_packet"):
        open_inbox(here.app).resolve(item.item_id, "happened", who="kim", why="seen", result=noise(limit))
    open_inbox(here.app).resolve(item.item_id, "happened", who="kim", why="seen", result=b"four")
    here.work(agent)
    assert (run.get(timeout=0), ran) == (4, [1])


def test_a_result_that_just_fits_is_kept(here: OneProcess, limit: int) -> None:
    @tool(**KEYED, name="pay")
    def pay(_operation: Any) -> bytes:
        return noise(limit // 2 - 2000)

    assert here.run(here.agent(pay, act=lambda _state: done(len(pay())))).get(timeout=0) == limit // 2 - 2000


def test_progress_that_is_too_long_is_told_to_the_body(here: OneProcess, limit: int) -> None:
    @tool(**KEYED, name="pay")
    def pay(operation: Any) -> str:
        with pytest.raises(NotKept, match=r"was not saved, so what was saved before stays: .*max_allowed_packet"):
            operation.save_progress(noise(limit // 2))
        return "paid"

    assert here.run(here.agent(pay, act=lambda _state: done(pay()))).get(timeout=0) == "paid"


def test_arguments_that_are_too_long_are_refused_before_anything_is_sent(here: OneProcess, limit: int) -> None:
    ran = []

    @tool(**KEYED, name="pay")
    def pay(_operation: Any, _what: bytes) -> None:
        ran.append(1)

    def act(_state: Any) -> Any:
        with pytest.raises(NotWritable, match="max_allowed_packet"):
            pay(noise(limit))
        return done("not paid")

    assert here.run(here.agent(pay, act=act)).get(timeout=0) == "not paid"
    assert ran == []


@pytest.mark.parametrize("what", ["output", "state", "text"])
def test_a_step_that_is_too_long_fails_the_run_at_once(here: OneProcess, limit: int, what: str) -> None:
    def act(state: Any) -> Any:
        state["long"] = noise(limit // 2) if what != "text" else noise(limit).hex()
        return done(state["long"]) if what == "output" else end

    def end(_state: Any) -> Any:
        return done()

    run = here.run(here.agent(act=act, end=end))
    assert run.status is RunStatus.FAILED
    with pytest.raises(RunFailed, match=r"NotWritable: .* refused a value at 'step', .*: a statement of \d+ bytes"):
        run.get(timeout=0)


def test_an_input_that_is_too_long_makes_no_run(here: OneProcess, limit: int) -> None:
    order = here.agent(act=lambda _state: done())
    with pytest.raises(NotWritable, match=r"refused a value at 'enqueue'.*max_allowed_packet.* Nothing was written"):
        order.enqueue({"cart": noise(limit)}, run_id="run-1")
    assert here.counts()["agent_runs"] == 0


def test_calls_that_are_together_too_long_for_one_statement_are_made(here: OneProcess, limit: int) -> None:
    @tool(**KEYED, name="put")
    def put(_operation: Any, what: bytes) -> int:
        return len(what)

    def act(_state: Any) -> Any:
        return done(sum(run_calls([put.call(noise(limit // 100)) for _ in range(100)])))

    assert here.run(here.agent(put, act=act)).get(timeout=0) == 100 * (limit // 100)


def test_a_checkpoint_that_is_too_long_is_refused_and_the_store_goes_on(
    mysql_database: Callable[[], str], here: OneProcess, limit: int
) -> None:
    with open_store(mysql_database()) as store:
        with pytest.raises(
            UnstorableValue, match=r"seq 0\) of run 'order-8' cannot be stored: .* \(max_allowed_packet"
        ):
            store.save(CheckpointState("order-8", 0, agent_state={"long": noise(limit)}))
        assert store.head("order-8") is None
        store.save(CheckpointState("order-8", 0, agent_state={"long": b"short"}))
        assert store.load("order-8", 0).agent_state == {"long": b"short"}
