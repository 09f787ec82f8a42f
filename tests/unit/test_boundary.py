"""The boundary: what an observer sees, what is run again, and how a database's troubles are said."""

from __future__ import annotations

import pickle
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from agent_tasks import boundary as module
from agent_tasks.boundary import MAX_LOCK_RETRIES, Boundary, Point
from agent_tasks.database import open_engine
from agent_tasks.errors import LedgerUnavailable, SchemaMissing

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    with engine.connect() as connection, connection.begin():
        connection.execute(text("CREATE TABLE notes (id INTEGER PRIMARY KEY, note VARCHAR(50))"))
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.random, "uniform", lambda *_bounds: 0)


def write(note: str, identifier: int = 1) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO notes VALUES (:id, :note)"), {"id": identifier, "note": note})

    return work


def notes(engine: Engine) -> list[str]:
    return Boundary().read(engine, lambda c: list(c.execute(text("SELECT note FROM notes ORDER BY id")).scalars()))


def busy(_connection: Connection) -> None:
    raise OperationalError("INSERT …", {}, sqlite3.OperationalError("database is locked"))


# -- crossings ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_crossed_before_it_is_sent_and_after_it_was_answered(engine: Engine) -> None:
    seen: list[tuple[str, list[str]]] = []
    boundary = Boundary(lambda point: seen.append((str(point), notes(engine))))
    boundary.commit("step", engine, write("paid"))
    assert seen == [("before commit step", []), ("after commit step", ["paid"])]


def test_what_an_observer_raises_before_a_commit_rolls_it_back(engine: Engine) -> None:
    class Crash(BaseException):
        pass

    def crash(point: Point) -> None:
        raise Crash

    with pytest.raises(Crash):
        Boundary(crash).commit("step", engine, write("paid"))
    assert notes(engine) == []


@pytest.mark.parametrize("kind", ["effect", "publish", "ack"])
def test_the_other_crossings_are_seen_on_both_sides(kind: str) -> None:
    seen: list[object] = []
    value = getattr(Boundary(seen.append), kind)("charge", lambda: seen.append("here") or 42)
    assert value == 42
    assert seen == [Point(kind, "charge", "before"), "here", Point(kind, "charge", "after")]


def test_an_effect_that_raises_is_not_seen_from_the_other_side() -> None:
    seen: list[str] = []
    with pytest.raises(ZeroDivisionError):
        Boundary(lambda point: seen.append(point.moment)).effect("charge", lambda: 1 // 0)
    assert seen == ["before"]


def test_a_process_can_observe_all_its_new_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Point] = []
    monkeypatch.setattr(Boundary, "default_observer", seen.append)
    Boundary().ack("doorbell", lambda: None)
    assert len(seen) == 2


# -- locks --------------------------------------------------------------------------------------------------------------


def test_a_transaction_that_lost_a_race_is_run_again_as_a_whole(engine: Engine) -> None:
    tries: list[int] = []

    def work(connection: Connection) -> str:
        tries.append(len(tries))
        write(f"try {len(tries)}")(connection)
        if len(tries) < 3:
            busy(connection)
        return "written"

    seen: list[str] = []
    assert Boundary(lambda point: seen.append(point.moment)).commit("step", engine, work) == "written"
    assert notes(engine) == ["try 3"]
    assert seen == ["before", "after"]


def test_two_transactions_that_lock_each_other_out_are_both_carried_out(postgres_database: Callable[[], str]) -> None:
    engine = open_engine(postgres_database(), poolclass=NullPool)
    with engine.connect() as connection, connection.begin():
        connection.execute(text("CREATE TABLE notes (id INTEGER PRIMARY KEY, note VARCHAR(50))"))
        connection.execute(text("INSERT INTO notes VALUES (1, ''), (2, '')"))
    both_hold_one, tries = threading.Barrier(2), []

    def lock(order: tuple[int, int]) -> None:
        is_first = True

        def work(connection: Connection) -> None:
            nonlocal is_first
            tries.append(order)
            for identifier in order:
                connection.execute(
                    text("UPDATE notes SET note = note || :by WHERE id = :id"), {"id": identifier, "by": str(order[0])}
                )
                if is_first:
                    is_first = False
                    both_hold_one.wait(60)

        Boundary().commit("step", engine, work)

    threads = [threading.Thread(target=lock, args=(order,)) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sorted(note) for note in notes(engine)] == [["1", "2"], ["1", "2"]]
    assert len(tries) > 2  # at least one of the two was the victim, and was run again as a whole


def test_a_race_that_is_lost_again_and_again_says_that_nothing_was_written(engine: Engine) -> None:
    tries: list[None] = []

    def work(connection: Connection) -> None:
        tries.append(None)
        busy(connection)

    with pytest.raises(LedgerUnavailable, match=r"too busy at 'step': database is locked.*nothing was written") as said:
        Boundary().commit("step", engine, work)
    assert len(tries) == MAX_LOCK_RETRIES + 1
    assert not said.value.ambiguous


# -- the database's troubles --------------------------------------------------------------------------------------------


def cut(moment: str) -> Boundary:
    """Return a boundary whose commits lose their connection at this moment."""

    def observe(point: Point) -> None:
        if point.moment == moment:
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    return Boundary(observe)


def test_a_connection_that_breaks_before_the_commit_was_sent_wrote_nothing(engine: Engine) -> None:
    with pytest.raises(LedgerUnavailable, match="did not answer at 'step'") as said:
        cut("before").commit("step", engine, write("paid"))
    assert not said.value.ambiguous
    assert notes(engine) == []


def test_a_connection_that_breaks_at_the_commit_may_have_written_all_of_it(engine: Engine) -> None:
    with pytest.raises(LedgerUnavailable) as said:
        cut("after").commit("step", engine, write("paid"))
    assert said.value.ambiguous
    assert pickle.loads(pickle.dumps(said.value)).ambiguous
    assert notes(engine) == ["paid"]


def test_a_backend_that_is_ended_in_a_transaction_is_a_ledger_that_did_not_answer(
    postgres_database: Callable[[], str],
) -> None:
    engine = open_engine(postgres_database())

    def work(connection: Connection) -> None:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:backend)"), {"backend": backend})
        connection.execute(text("SELECT 1"))

    with pytest.raises(LedgerUnavailable, match="did not answer at 'step'") as said:
        Boundary().commit("step", engine, work)
    assert not said.value.ambiguous
    assert Boundary().read(engine, lambda connection: connection.execute(text("SELECT 1")).scalar_one()) == 1
    engine.dispose()


@pytest.mark.parametrize("statement", ["SELECT * FROM nowhere", "SELECT no_such FROM notes"])
def test_a_missing_table_or_column_says_how_to_migrate(engine: Engine, statement: str) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text(statement))

    with pytest.raises(SchemaMissing, match="agent db upgrade"):
        Boundary().commit("step", engine, work)
    with pytest.raises(SchemaMissing, match="agent db upgrade"):
        Boundary().read(engine, work)


def test_a_fault_of_the_caller_is_raised_as_it_is(engine: Engine) -> None:
    Boundary().commit("step", engine, write("paid"))
    with pytest.raises(IntegrityError):
        Boundary().commit("step", engine, write("paid again"))
    with pytest.raises(ZeroDivisionError):
        Boundary().commit("step", engine, lambda _connection: 1 // 0)


# -- reading ------------------------------------------------------------------------------------------------------------


def test_a_reader_does_not_wait_for_a_writer(engine: Engine) -> None:
    Boundary().commit("step", engine, write("before"))
    with engine.connect() as writer, writer.begin():
        write("meanwhile", 2)(writer)
        assert notes(engine) == ["before"]


class Struck(Exception):
    """What a time limit raises, from a signal's handler."""


@pytest.fixture
def strike(postgres_url: str) -> Iterator[Engine]:
    """An engine, and a signal that raises soon in whatever the main thread does."""

    def raise_it(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, raise_it)
    engine = open_engine(postgres_url)
    yield engine
    engine.dispose()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["read", "commit"])
def test_a_time_limit_in_the_middle_of_a_statement_is_heard_of_and_the_connection_is_not_used_again(
    strike: Engine, kind: str
) -> None:
    boundary = Boundary()

    def work(connection: Connection) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        connection.execute(text("SELECT pg_sleep(20)"))

    with pytest.raises(Struck):
        boundary.read(strike, work) if kind == "read" else boundary.commit("step", strike, work)
    assert boundary.commit("step", strike, lambda connection: connection.scalar(text("SELECT 1"))) == 1


# -- what SQLite and PostgreSQL refuse ----------------------------------------------------------------------------------


def test_an_sqlite_file_that_is_none_is_a_ledger_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "agent.db").write_bytes(b"no database at all" * 100)
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    with pytest.raises(LedgerUnavailable, match=r"file is not a database.*Nothing was read: put back a sound copy"):
        notes(engine)


def test_an_sqlite_file_that_takes_no_writes_says_so(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(
        LedgerUnavailable, match=r"readonly database\. Nothing was written: give this user the right"
    ) as said:
        Boundary().commit("step", engine, lambda own: own.exec_driver_sql("CREATE TABLE notes (id)"))
    assert not said.value.ambiguous


def test_statements_that_are_forgotten_at_each_try_are_given_up(postgres_database: Callable[[], str]) -> None:
    engine = open_engine(postgres_database())

    def work(connection: Connection) -> None:
        connection.execute(text("EXECUTE _pg3_1"))

    for carry_out in (Boundary().commit, lambda _name, *arguments: Boundary().read(*arguments)):
        with pytest.raises(LedgerUnavailable, match=r"through 11 tries.*add prepare_threshold=None to") as said:
            carry_out("step", engine, work)
        assert not said.value.ambiguous
    engine.dispose()
