"""The sweeper: what is due, lost or stuck is found, and nothing is rung for twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from agent_tasks.errors import LedgerUnavailable
from agent_tasks.sweeper import LONGEST_PAUSE_SECONDS, Sweeper, Swept, end_lease
from agent_tasks.worker import Looper
from tests.one_process import OneProcess
from tests.rows import Rows
from tests.waiting import wait_until

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    yield here
    here.close()


@pytest.fixture
def rows(here: OneProcess) -> Rows:
    return Rows(here)


@pytest.fixture
def sweeper(here: OneProcess) -> Sweeper:
    """A sweeper that has been in contact with the database for long enough."""
    sweeper = Sweeper(here.runtime)
    sweeper.sweep()
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    return sweeper


# -- ringing ------------------------------------------------------------------------------------------------------------


def test_a_run_whose_doorbell_may_still_be_heard_is_not_rung_for(here: OneProcess, rows: Rows) -> None:
    rows.queue("run-1")
    assert Sweeper(here.runtime).sweep() == Swept()
    assert rows.rung() == []


def test_a_run_whose_doorbell_was_lost_is_rung_for(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    rows.queue("run-1")
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    assert sweeper.sweep() == Swept(rung=1)
    assert rows.rung() == ["run-1"]
    assert sweeper.sweep() == Swept()


def test_two_sweepers_ring_once(here: OneProcess, rows: Rows) -> None:
    for number in range(20):
        rows.queue(f"run-{number}")
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    start, swept = threading.Barrier(2), []

    def sweep() -> None:
        sweeper = Sweeper(here.runtime)
        start.wait(10)
        swept.append(sweeper.sweep().rung)

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(swept) == 20
    assert sorted(rows.rung()) == sorted(f"run-{number}" for number in range(20))


def test_the_most_urgent_run_is_rung_for_first_and_then_the_one_that_waited_longest(
    here: OneProcess, rows: Rows, sweeper: Sweeper
) -> None:
    for run_id, priority in (("first", 0), ("urgent", 5), ("second", 0)):
        rows.queue(run_id, priority=priority)
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    sweeper.sweep()
    assert rows.rung() == ["urgent", "first", "second"]


def test_a_queue_is_filled_up_to_its_depth_and_no_further(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    depth = here.runtime.settings.queue_depth
    for number in range(depth + 5):
        rows.queue(f"run-{number}")
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    assert sweeper.sweep().rung == depth
    assert sweeper.sweep().rung == 0
    for _ in range(3):
        here.runtime.bell.rings.popleft()  # type: ignore[attr-defined]
    assert sweeper.sweep().rung == 3


def test_a_full_queue_does_not_hold_up_another_one(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    depth = here.runtime.settings.queue_depth
    for number in range(depth + 1):
        rows.queue(f"run-{number}", queue="full", priority=9)
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    sweeper.sweep()
    rows.queue("other", queue="empty")
    here.runtime.clock.advance(here.runtime.settings.ring_again_seconds)
    sweeper.sweep()
    assert here.runtime.bell.depth("empty") == 1


def test_a_transport_that_cannot_count_is_rung_less_and_less_often(
    here: OneProcess, rows: Rows, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here.runtime.bell, "depth", lambda _queue: None)
    rows.queue("run-1")
    shortest, pauses = here.runtime.settings.ring_again_seconds, []
    here.runtime.clock.advance(shortest)
    for _ in range(12):
        assert sweeper.sweep().rung == 1
        row = rows.find("run-1")
        pauses.append((row["due_at"] - row["now"]) / 1e6)
        here.runtime.clock.advance(pauses[-1] + 0.01)
    doubled = [min(shortest * 2**n, LONGEST_PAUSE_SECONDS) for n in range(12)]
    assert pauses == pytest.approx(doubled, rel=0.1)


def test_a_transport_that_counts_is_rung_at_an_even_pace(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    rows.queue("run-1")
    for _ in range(4):
        here.runtime.clock.advance(here.runtime.settings.ring_again_seconds + 0.01)
        assert sweeper.sweep().rung == 1


# -- waiting ------------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_for_a_time_is_woken_when_it_has_come(here: OneProcess, rows: Rows) -> None:
    rows.queue("run-1")
    due_at = rows.find("run-1")["now"] + 60_000_000
    rows.write("run-1", status="waiting", due_at=due_at, waiting_for="a minute")
    sweeper = Sweeper(here.runtime)
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(61)
    assert sweeper.sweep() == Swept(woken=1)
    row = rows.find("run-1")
    assert (row["status"], row["waiting_for"]) == ("queued", None)
    assert rows.rung() == ["run-1"]


# -- takeover -----------------------------------------------------------------------------------------------------------


def test_a_lease_that_ran_out_is_taken_over_and_rung_for(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    rows.run("run-1")
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    assert sweeper.sweep() == Swept(taken_over=1)
    row = rows.find("run-1")
    assert (row["status"], row["lease_owner"], row["lease_token"], row["crashes"]) == ("queued", None, None, 1)
    assert rows.rung() == ["run-1"]


def test_a_lease_that_was_renewed_is_not_taken_over(here: OneProcess, rows: Rows, sweeper: Sweeper) -> None:
    fence = rows.run("run-1")["fence"]
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    here.runtime.boundary.commit(
        "renew", here.runtime.engine, lambda connection: here.runtime.runs.renew(connection, [("run-1", fence)])
    )
    assert sweeper.sweep() == Swept()


@pytest.mark.parametrize("wrote", ["started_at", "finished_at"])
def test_an_owner_that_wrote_of_its_calls_lately_is_not_taken_over_from_though_nothing_renewed_its_lease(
    here: OneProcess, rows: Rows, sweeper: Sweeper, wrote: str
) -> None:
    rows.run("run-1")
    lease_seconds = here.runtime.settings.lease_seconds
    here.runtime.clock.advance(lease_seconds - 1)
    write_of_a_call(here, "the owner's", wrote)
    here.runtime.clock.advance(lease_seconds * 2 / 3 - 0.5)
    write_of_a_call(here, "of another attempt", wrote, token="another")
    write_of_a_call(here, "of another step", wrote, seq=2)
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(1)
    assert sweeper.sweep() == Swept(taken_over=1)


def test_an_owner_that_writes_of_its_calls_past_its_steps_time_limit_is_taken_over_from(
    here: OneProcess, rows: Rows, sweeper: Sweeper
) -> None:
    claimed = rows.run("run-1")
    here.runtime.clock.advance(here.runtime.settings.step_timeout_seconds - 1)
    write_of_a_call(here, "an early one")
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(1)
    write_of_a_call(here, "a late one")
    assert rows.find("run-1")["updated_at"] == claimed["updated_at"]
    assert sweeper.sweep() == Swept(taken_over=1)


def write_of_a_call(here: OneProcess, operation_id: str, wrote: str = "started_at", **more: Any) -> None:
    """Write what the owner of a run writes of a call in its first step."""
    values = {"run_id": "run-1", "line": 0, "seq": 1, "tool": "charge", "ordinal": 0, "effect": "keyed", "args": b""}
    values |= {"args_digest": "", "idempotency_key": "op", "status": "executing", "attempts": 1, "fence": 1, "born": 1}
    with here.runtime.engine.begin() as connection:
        now = {"started_at": 1, wrote: connection.execute(select(here.runtime.clock.now())).scalar_one()}
        row = {"token": "token", **values, **now, "operation_id": operation_id, **more}
        connection.execute(here.runtime.tables.operations.insert().values(row))


def test_nothing_is_taken_over_before_a_full_lease_of_contact(here: OneProcess, rows: Rows) -> None:
    rows.run("run-1")
    here.runtime.clock.advance(1000)
    sweeper, lease_seconds = Sweeper(here.runtime), here.runtime.settings.lease_seconds
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(lease_seconds - 1)
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(1)
    assert sweeper.sweep() == Swept(taken_over=1)


def test_an_outage_counts_the_contact_anew(
    here: OneProcess, rows: Rows, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.run("run-1")
    with monkeypatch.context() as outage:

        def away(*_args: object) -> None:
            raise LedgerUnavailable("the database is away")

        outage.setattr(here.runtime.boundary, "read", away)
        with pytest.raises(LedgerUnavailable):
            sweeper.sweep()
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    assert sweeper.sweep() == Swept()
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    assert sweeper.sweep() == Swept(taken_over=1)


def test_a_database_that_kept_everybody_waiting_counts_the_contact_anew(
    here: OneProcess, rows: Rows, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.run("run-1")
    here.runtime.clock.advance(1)
    with monkeypatch.context() as stall:
        read = here.runtime.boundary.read

        def late(*args: object) -> object:
            here.runtime.clock.advance(here.runtime.settings.lease_seconds)
            return read(*args)  # type: ignore[arg-type]

        stall.setattr(here.runtime.boundary, "read", late)
        assert sweeper.sweep().taken_over == 0
    assert sweeper.sweep().taken_over == 0
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    assert sweeper.sweep().taken_over == 1


def test_a_step_that_loses_its_worker_too_often_is_parked_with_a_question(
    here: OneProcess, rows: Rows, sweeper: Sweeper
) -> None:
    rows.queue("run-1")
    for _ in range(here.runtime.settings.max_crashes):
        rows.claim("run-1")
        rows.rung()
        here.runtime.clock.advance(here.runtime.settings.lease_seconds)
        sweeper.sweep()
    row = rows.find("run-1")
    assert (row["status"], row["due_at"]) == ("needs_attention", None)
    assert row["waiting_for"] == "step pay lost its worker 3 times"
    assert rows.rung() == []
    (item,) = here.runtime.boundary.read(here.runtime.engine, here.runtime.inbox.items)
    assert (str(item.question), item.run_id) == ("crashes", "run-1")


def test_a_lease_ends_once(here: OneProcess, rows: Rows) -> None:
    rows.run("run-1", token="mine")
    assert not end_lease(here.runtime, "run-1", "another's")
    assert end_lease(here.runtime, "run-1", "mine")
    assert not end_lease(here.runtime, "run-1", "mine")
    assert rows.find("run-1")["crashes"] == 1


def test_a_run_whose_row_is_locked_does_not_stop_the_others(postgres_database: Callable[[], str]) -> None:
    here = OneProcess(postgres_database())
    rows, sweeper, table = Rows(here), Sweeper(here.runtime), here.runtime.runs.table
    sweeper.sweep()
    for kind in ("locked", "other"):
        rows.run(f"{kind}-running")
        for status in ("queued", "waiting"):
            rows.queue(f"{kind}-{status}")
            rows.write(f"{kind}-{status}", status=status)
    here.runtime.clock.advance(here.runtime.settings.lease_seconds)
    with here.runtime.engine.connect() as frozen, frozen.begin():
        frozen.execute(table.select().where(table.c.run_id.startswith("locked")).with_for_update())
        assert sweeper.sweep() == Swept(taken_over=1, woken=1, rung=1)
    assert sorted(rows.rung()) == ["other-queued", "other-running", "other-waiting"]
    assert sweeper.sweep() == Swept(taken_over=1, woken=1, rung=1)
    here.close()


# -- the loop -----------------------------------------------------------------------------------------------------------


def test_a_turn_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise ValueError(f"turn {len(turns)}")

    looper = Looper("agent-test", turn, pause_seconds=0.001)
    looper.start()
    wait_until(lambda: len(turns) > 3, "the loop goes on")
    looper.stop()
    said = [(record.action, record.getMessage()) for record in caplog.records if hasattr(record, "loop")]
    assert said[0] == ("loop_failed", "agent-test: ValueError: turn 1")
    assert [action for action, _ in said] == ["loop_failed", "loop_recovered"]


def test_a_loop_that_was_stopped_takes_no_further_turn() -> None:
    turns: list[None] = []
    looper = Looper("agent-test", lambda: turns.append(None), pause_seconds=0.001)
    looper.start()
    wait_until(lambda: turns, "the loop begins")
    looper.stop()
    assert not looper._thread.is_alive()
