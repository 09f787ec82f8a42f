"""A process never forks while it has the SQLite ledger open, nor in a turn of its own threads; its child has its own connections."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from agent_tasks import forks
from agent_tasks.database import open_engine
from agent_tasks.forks import ForkSafeConnection
from agent_tasks.integration import AppState
from tests.agents import new_app
from tests.apps import close
from tests.waiting import wait_until


def fork() -> int:
    """Fork a child that ends at once, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_waits_until_other_threads_have_closed_the_ledger(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    is_open, may_close, order = threading.Event(), threading.Event(), []

    def work() -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            is_open.set()
            may_close.wait(30)
            order.append("closed")

    def fork_meanwhile() -> None:
        may_close.set()
        fork()
        order.append("forked")

    working = threading.Thread(target=work)
    working.start()
    assert is_open.wait(30)
    forking = threading.Thread(target=fork_meanwhile)
    forking.start()
    forking.join(30)
    working.join(30)
    assert order == ["closed", "forked"]


def test_a_thread_that_forks_with_its_own_connection_does_not_wait_for_itself(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    with engine.connect():
        assert fork() == 0


def test_a_file_that_cannot_be_opened_holds_up_no_fork(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(tmp_path / "missing" / "agent.db", factory=ForkSafeConnection)
    assert fork() == 0


def test_a_child_opens_the_ledger_that_its_parent_had_open_before(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (n)")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with engine.begin() as connection:
                connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM t").scalars().all() == [1]


def test_a_child_rings_on_a_connection_of_its_own_and_its_parent_on_the_one_it_had() -> None:
    app = new_app()
    AppState.of(app)

    def connection() -> object:
        with app.producer_pool.acquire(block=True) as producer:
            return producer.connection

    before = connection()
    assert connection() is before
    pid = os.fork()
    if pid == 0:
        os._exit(int(connection() is before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert connection() is before
    close(app)


def test_a_fork_waits_for_the_turn_of_another_thread_so_that_its_child_finds_no_lock_held() -> None:
    lock, begun, order = threading.Lock(), threading.Event(), []

    def work() -> None:
        with forks.turn(), lock:
            begun.set()
            wait_until(forks.is_awaited, "the fork waits", 30)
            order.append("turn")

    working = threading.Thread(target=work)
    working.start()
    assert begun.wait(30)
    pid = os.fork()
    if pid == 0:
        os._exit(int(lock.locked()))
    order.append("forked")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    working.join(30)
    assert order == ["turn", "forked"]


def test_a_long_turn_lets_the_forks_by_that_wait_between_two_pieces_of_work() -> None:
    begun, forked, pieces = threading.Event(), threading.Event(), []

    def work() -> None:
        with forks.turn():
            begun.set()
            while not forked.is_set():
                pieces.append("began")
                forks.let_forks_by()

    working = threading.Thread(target=work)
    working.start()
    assert begun.wait(30)
    assert fork() == 0
    forked.set()
    working.join(30)
    assert pieces


def test_a_turn_that_does_not_end_keeps_a_fork_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forks, "_TURN_SECONDS", 0.01)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with forks.turn():
            begun.set()
            may_end.wait(30)

    working = threading.Thread(target=work)
    working.start()
    assert begun.wait(30)
    assert fork() == 0
    may_end.set()
    working.join(30)
    assert "a fork waits for it no longer" in caplog.text


def test_a_turn_that_uses_the_ledger_does_not_wait_for_the_fork_that_waits_for_it(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    begun, order = threading.Event(), []

    def work() -> None:
        with forks.turn():
            begun.set()
            wait_until(forks.is_awaited, "the fork waits", 30)
            with engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")
            order.append("turn")

    working = threading.Thread(target=work)
    working.start()
    assert begun.wait(30)
    assert fork() == 0
    order.append("forked")
    working.join(30)
    assert order == ["turn", "forked"]


def test_a_thread_that_forks_in_its_own_turn_does_not_wait_for_itself() -> None:
    with forks.turn():
        assert fork() == 0
