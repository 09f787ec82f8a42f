"""The heartbeat of a worker's parent, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from agent_tasks.errors import LedgerUnavailable
from agent_tasks.heartbeat import Heartbeat, is_alive
from agent_tasks.slots import Lease, Slots
from tests.one_process import OneProcess
from tests.rows import Rows
from tests.waiting import wait_until

Start = Callable[[], "subprocess.Popen[bytes]"]

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    here.runtime.slots = Slots.temporary()
    yield here
    here.close()


@pytest.fixture
def rows(here: OneProcess) -> Rows:
    return Rows(here)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes that do nothing until they are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def lease(
    here: OneProcess,
    index: int,
    run_id: str,
    pid: int,
    *,
    fence: int | None = 1,
    token: str = "token",
    deadline_in: float = 60,
    renew_in: float = 60,
) -> None:
    """Fill a slot as the child does."""
    now = here.runtime.clock.local()
    here.runtime.slots.write(index, Lease(pid, run_id, token, fence, now + deadline_in, now + renew_in))


def wait_for_the_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process is dead; it stays to be collected, as a pool leaves it for a while."""
    wait_until(lambda: not is_alive(process.pid), f"process {process.pid} ends")


def test_a_lease_is_renewed_while_its_process_lives(here: OneProcess, rows: Rows, start: Start) -> None:
    before = rows.run("run-1")
    lease(here, 0, "run-1", start().pid)
    here.runtime.clock.advance(10)
    Heartbeat(here.runtime).beat()
    assert rows.find("run-1")["due_at"] >= before["due_at"] + 10_000_000


def test_a_lease_is_renewed_every_third_of_its_length(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.run("run-1")
    lease(here, 0, "run-1", start().pid)
    heartbeat = Heartbeat(here.runtime)
    heartbeat.beat()
    due_at = rows.find("run-1")["due_at"]
    heartbeat.beat()
    assert rows.find("run-1")["due_at"] == due_at
    here.runtime.clock.advance(here.runtime.settings.lease_seconds / 3)
    heartbeat.beat()
    assert rows.find("run-1")["due_at"] > due_at


@pytest.mark.parametrize(
    ("slot", "why"),
    [
        ({"fence": None}, "the claim was not answered yet"),
        ({"fence": 7}, "the lease is of another fence"),
        ({"renew_in": -1}, "the attempt is past its time limit"),
    ],
)
def test_a_lease_is_not_renewed_when(
    here: OneProcess, rows: Rows, start: Start, slot: dict[str, float | None], why: str
) -> None:
    before = rows.run("run-1")
    lease(here, 0, "run-1", start().pid, **slot)  # type: ignore[arg-type]
    here.runtime.clock.advance(1)
    Heartbeat(here.runtime).beat()
    assert rows.find("run-1")["due_at"] == before["due_at"], why


def test_a_run_that_its_attempt_gave_back_is_not_renewed(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.run("run-1")
    rows.write("run-1", status="waiting", lease_token=None, lease_owner=None, due_at=123)
    lease(here, 0, "run-1", start().pid)
    Heartbeat(here.runtime).beat()
    assert rows.find("run-1")["due_at"] == 123


def test_the_lease_of_a_dead_process_is_given_back_and_rung_for(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.run("run-1")
    child = start()
    lease(here, 0, "run-1", child.pid)
    child.kill()
    wait_for_the_end(child)
    Heartbeat(here.runtime).beat()
    row = rows.find("run-1")
    assert (row["status"], row["lease_token"], row["crashes"]) == ("queued", None, 1)
    assert rows.rung() == ["run-1"]
    assert here.runtime.slots.leases() == []


def test_a_claim_that_its_process_did_not_live_to_see_is_given_back(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.run("run-1")
    child = start()
    lease(here, 0, "run-1", child.pid, fence=None)
    child.kill()
    child.wait()
    Heartbeat(here.runtime).beat()
    assert rows.find("run-1")["status"] == "queued"


def test_the_lease_of_the_next_attempt_is_not_given_back_for_a_dead_one(
    here: OneProcess, rows: Rows, start: Start
) -> None:
    rows.run("run-1", token="the next one's")
    child = start()
    lease(here, 0, "run-1", child.pid, token="the dead one's")
    child.kill()
    child.wait()
    Heartbeat(here.runtime).beat()
    assert rows.find("run-1")["lease_token"] == "the next one's"
    assert here.runtime.slots.leases() == []


def test_a_step_that_kills_its_process_again_and_again_is_parked(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.queue("run-1")
    heartbeat = Heartbeat(here.runtime)
    for crash in range(here.runtime.settings.max_crashes):
        rows.claim("run-1", token=f"token {crash}")
        child = start()
        lease(here, 0, "run-1", child.pid, token=f"token {crash}")
        child.kill()
        child.wait()
        heartbeat.beat()
    assert rows.find("run-1")["status"] == "needs_attention"
    items = here.runtime.boundary.read(here.runtime.engine, here.runtime.inbox.items)
    detail = {"step": "pay", "seq": 1, "crashes": 3}
    assert [(str(item.question), item.detail) for item in items] == [("crashes", detail)]


def test_a_process_past_its_deadline_is_killed_and_its_lease_given_back(
    here: OneProcess, rows: Rows, start: Start
) -> None:
    rows.run("run-1")
    child = start()
    lease(here, 0, "run-1", child.pid, deadline_in=10)
    heartbeat = Heartbeat(here.runtime)
    heartbeat.beat()
    assert is_alive(child.pid)
    here.runtime.clock.advance(10)
    heartbeat.beat()
    assert child.wait(10) == -signal.SIGKILL
    heartbeat.beat()
    assert rows.find("run-1")["status"] == "queued"


def test_a_stopped_process_past_its_deadline_is_killed_too(here: OneProcess, start: Start) -> None:
    child = start()
    child.send_signal(signal.SIGSTOP)
    lease(here, 0, "run-1", child.pid, deadline_in=-1)
    Heartbeat(here.runtime).beat()
    assert child.wait(10) == -signal.SIGKILL


def test_a_process_past_its_deadline_is_killed_while_the_database_is_away(
    here: OneProcess, rows: Rows, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, late = start(), start()
    dead.kill()
    dead.wait()
    lease(here, 0, "run-1", dead.pid)
    lease(here, 1, "run-2", late.pid, deadline_in=-1)

    def away(*_args: object) -> None:
        raise LedgerUnavailable("the database is away")

    monkeypatch.setattr(here.runtime.boundary, "commit", away)
    with pytest.raises(LedgerUnavailable):
        Heartbeat(here.runtime).beat()
    assert late.wait(10) == -signal.SIGKILL
    assert [lease.run_id for lease in here.runtime.slots.leases()] == ["run-1", "run-2"]  # for the next look


def test_a_heartbeat_never_kills_its_own_process(here: OneProcess) -> None:
    lease(here, 0, "run-1", os.getpid(), deadline_in=-1)
    Heartbeat(here.runtime).beat()


def test_a_run_whose_row_is_locked_does_not_stop_the_others(postgres_database: Callable[[], str], start: Start) -> None:
    here = OneProcess(postgres_database())
    here.runtime.slots, rows, table = Slots.temporary(), Rows(here), here.runtime.runs.table
    before = {run_id: rows.run(run_id, run_id)["due_at"] for run_id in ("dead", "locked-1", "locked-2", "run-1")}
    child, living = start(), start()
    lease(here, 0, "locked-1", child.pid, token="locked-1")
    lease(here, 1, "locked-2", living.pid, token="locked-2")
    lease(here, 2, "dead", child.pid, token="dead")
    lease(here, 3, "run-1", living.pid, token="run-1")
    child.kill()
    child.wait()
    here.runtime.clock.advance(1)
    heartbeat = Heartbeat(here.runtime)
    with here.runtime.engine.connect() as other, other.begin():
        other.execute(table.select().where(table.c.run_id.startswith("locked")).with_for_update())
        heartbeat.beat()
        assert rows.find("run-1")["due_at"] > before["run-1"]
        assert rows.find("dead")["status"] == "queued"
        assert rows.find("locked-2")["due_at"] == before["locked-2"]
        assert rows.find("locked-1")["status"] == "running"
    heartbeat.beat()
    assert rows.find("locked-1")["status"] == "queued"
    here.close()


def test_a_process_that_nobody_collected_yet_is_dead(start: Start) -> None:
    child = start()
    assert is_alive(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()
    assert not is_alive(child.pid)


def test_a_process_of_somebody_else_is_alive() -> None:
    assert is_alive(os.getppid())


def test_the_pool_is_told_of_a_dead_process_and_of_no_living_one(here: OneProcess, rows: Rows, start: Start) -> None:
    rows.run("run-1")
    process, told = start(), []
    lease(here, 0, "run-1", process.pid)
    heartbeat = Heartbeat(here.runtime, lambda: told.append(process.pid))
    heartbeat.beat()
    assert told == []
    process.kill()
    wait_for_the_end(process)
    heartbeat.beat()
    assert told == [process.pid]


# -- attempts of this process itself, which nobody kills ----------------------------------------------------------------


def test_an_attempt_of_this_process_that_overstays_is_said_once_to_do_so_and_not_killed(
    here: OneProcess, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    rows.run("run-1")
    lease(here, 0, "run-1", os.getpid(), deadline_in=-1)
    heartbeat = Heartbeat(here.runtime)
    heartbeat.beat()
    heartbeat.beat()
    assert [record.run_id for record in caplog.records if record.action == "overstays"] == ["run-1"]  # type: ignore[attr-defined]
    lease(here, 0, "run-1", os.getpid(), deadline_in=-1, token="of the next attempt")
    heartbeat.kill_overdue()
    assert len([record for record in caplog.records if record.action == "overstays"]) == 2  # type: ignore[attr-defined]


def test_what_only_renews_gives_nothing_back_and_rings_for_nobody(here: OneProcess, rows: Rows, start: Start) -> None:
    before, dead = rows.run("run-1"), start()
    rows.run("run-2")
    lease(here, 0, "run-1", os.getpid())
    lease(here, 1, "run-2", dead.pid)
    dead.kill()
    wait_for_the_end(dead)
    here.runtime.clock.advance(10)
    Heartbeat(here.runtime).renew()
    assert rows.find("run-1")["due_at"] >= before["due_at"] + 10_000_000
    assert (rows.find("run-2")["status"], rows.rung()) == ("running", [])


# -- rows that others hold ----------------------------------------------------------------------------------------------


def test_a_lease_whose_row_was_held_is_renewed_at_the_next_look(here: OneProcess, rows: Rows, start: Start) -> None:
    if here.runtime.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer, and holds no rows")
    before = rows.run("run-1")
    lease(here, 0, "run-1", start().pid)
    here.runtime.clock.advance(10)
    heartbeat = Heartbeat(here.runtime)
    with here.runtime.engine.begin() as connection:
        here.runtime.runs.find(connection, "run-1", lock=True)
        heartbeat.beat()
        assert rows.find("run-1")["due_at"] == before["due_at"]
    heartbeat.beat()
    renewed = rows.find("run-1")["due_at"]
    assert renewed >= before["due_at"] + 10_000_000
    here.runtime.clock.advance(1)
    heartbeat.beat()
    assert rows.find("run-1")["due_at"] == renewed  # until a third of the lease has passed


def test_a_lease_is_renewed_whose_row_the_calls_of_its_own_run_hold_one_after_another(
    postgres_database: Callable[[], str], start: Start
) -> None:
    with closing(OneProcess(postgres_database())) as here:
        here.runtime.slots, rows = Slots.temporary(), Rows(here)
        before, ended = rows.run("run-1"), threading.Event()

        def call() -> None:
            statement = text("SELECT 1 FROM agent_runs WHERE run_id = 'run-1' FOR SHARE")
            with here.runtime.engine.connect() as connection:
                while not ended.is_set():
                    with connection.begin():
                        connection.execute(statement)
                        connection.execute(text("SELECT pg_sleep(0.02)"))

        calls = [threading.Thread(target=call) for _ in range(3)]
        for thread in calls:
            thread.start()
        lease(here, 0, "run-1", start().pid)
        here.runtime.clock.advance(10)
        heartbeat = Heartbeat(here.runtime)

        def is_renewed() -> bool:
            heartbeat.beat()
            return bool(rows.find("run-1")["due_at"] >= before["due_at"] + 10_000_000)

        try:
            wait_until(is_renewed, "the lease is renewed")
        finally:
            ended.set()
            for thread in calls:
                thread.join()
