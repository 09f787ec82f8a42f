"""What MariaDB and MySQL do otherwise than the rest, and what the ledger does about it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InvalidRequestError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from agent_tasks import Operation, RunFailed, done, tool
from agent_tasks import boundary as module
from agent_tasks.boundary import MAX_LOCK_RETRIES, Boundary
from agent_tasks.clock import MICROSECONDS
from agent_tasks.database import open_engine
from agent_tasks.errors import ConfigurationError, LedgerUnavailable
from agent_tasks.migrate import newest, revision, upgrade
from agent_tasks.states import OperationStatus, RunStatus
from checkpoint import mysql
from tests.duel import RUN, Duel, duel
from tests.waiting import wait_until


@pytest.fixture
def here(mysql_database: Callable[[], str]) -> Iterator[Duel]:
    with duel(mysql_database()) as both:
        with both.runtime.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (what VARCHAR(40) PRIMARY KEY)"))
        yield both


@pytest.fixture(params=["mysql", "mariadb"])
def caller(here: Duel, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A caller's own engine, by either of SQLAlchemy's names, and as he gets it: REPEATABLE READ."""
    engine = create_engine(here.runtime.engine.url.set(drivername=f"{request.param}+pymysql"))
    yield engine
    engine.dispose()


def write(connection: Connection | None, what: str) -> None:
    assert connection is not None
    connection.execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})


def written(here: Duel) -> list[str]:
    statement = text("SELECT what FROM effects ORDER BY what")
    return here.runtime.boundary.read(here.runtime.engine, lambda own: list(own.execute(statement).scalars()))


def waits(here: Duel) -> bool:
    """Tell whether a connection to this ledger waits for a row's lock."""
    # The tables of information_schema are a copy, which stays as it is while it is asked for often.
    with here.runtime.engine.connect() as connection:
        said = connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()[2]
    database = f"`{here.runtime.engine.url.database}`"
    return any("LOCK WAIT" in one and database in one for one in said.split("---TRANSACTION"))


# -- connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("ssl_disabled",)], ids=["as the tests connect", "as PyMySQL does by itself"])
def test_a_connection_is_what_the_protocol_counts_on_whatever_the_server_says(
    here: Duel, without: tuple[str, ...]
) -> None:
    url = make_url(here.url).difference_update_query(without).render_as_string(hide_password=False)
    with open_engine(url, poolclass=NullPool).connect() as connection:
        options = dict(tuple(row) for row in connection.exec_driver_sql("SHOW SESSION VARIABLES"))
        its = connection.connection.dbapi_connection._sock  # type: ignore[union-attr]
        assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        assert its.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert options["tx_isolation"] == "READ-COMMITTED"
    assert options["character_set_client"] == "utf8mb4"
    assert options["innodb_lock_wait_timeout"] == "3"
    assert options["idle_transaction_timeout"] == "30"
    assert "STRICT_ALL_TABLES" in options["sql_mode"]


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        ("5.5.5-10.5.29-MariaDB-0+deb11u1", "MariaDB 10.6 is the oldest that will do"),
        ("8.0.16", r"MySQL 8\.0\.17 is the oldest that will do"),
        ("5.7.44-log", r"MySQL 8\.0\.17 is the oldest that will do"),
        ("something else", "oldest that will do"),
    ],
)
def test_a_server_that_is_too_old_is_refused(greeting: str, why: str) -> None:
    with pytest.raises(mysql.UnsuitableServer, match=why):
        mysql.product_of(greeting)


@pytest.mark.parametrize(
    ("greeting", "product"),
    [
        ("5.5.5-10.6.0-MariaDB", "MariaDB"),
        ("11.8.2-MariaDB-ubu2404", "MariaDB"),
        ("8.0.17", "MySQL"),
        ("9.4.0", "MySQL"),
    ],
)
def test_a_server_that_is_new_enough_is_known(greeting: str, product: str) -> None:
    assert mysql.product_of(greeting) == product


def test_a_binary_log_of_statements_is_refused_and_any_other_is_not() -> None:
    with pytest.raises(mysql.UnsuitableServer, match="binlog_format=ROW"):
        mysql.check_options({"log_bin": "ON", "binlog_format": "STATEMENT"})
    mysql.check_options({"log_bin": "ON", "binlog_format": "MIXED"})
    mysql.check_options({"log_bin": "OFF", "binlog_format": "STATEMENT"})


def test_a_server_that_will_not_do_is_said_to_whoever_set_its_url(
    mysql_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mysql.OLDEST, "MariaDB", (99, 0))
    monkeypatch.setitem(mysql.OLDEST, "MySQL", (99, 0))
    with pytest.raises(ConfigurationError, match=r"agent_database_url leads to a server that will not do: .* 99\.0"):
        upgrade(mysql_database())


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://kim@host/agents?sslmode=require", r"an option that PyMySQL does not know: sslmode\. Leave it out"),
        ("mysql://kim@host", "must name a database, got one of a server alone"),
        (
            "mysql+mysqldb://kim:secret@host/agents",
            r"must begin with mysql\+pymysql:.*Write mysql\+pymysql://kim:\*\*\*@host",
        ),
        ("mariadb+mysqldb://kim@host/agents", r"must begin with mariadb\+pymysql:"),
        ("mysq://kim@host/agents", r"got 'mysq'\. Write mysql\+pymysql://kim@host/agents"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_to_write(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        open_engine(url)


def test_a_server_that_takes_no_writes_has_refused_and_leaves_no_doubt(here: Duel) -> None:
    engine = open_engine(here.url)
    event.listen(engine, "connect", lambda own, _record: own.cursor().execute("SET SESSION TRANSACTION READ ONLY"))
    with (
        closing_pool(engine),
        pytest.raises(LedgerUnavailable, match=r"refused 'step': .*\(1792\).*lead to the server that") as said,
    ):
        Boundary().commit("step", engine, lambda own: write(own, "hat"))
    assert not said.value.ambiguous
    assert written(here) == []


def test_a_user_who_may_not_write_is_told_what_to_grant(here: Duel) -> None:
    name = f"reader_{uuid4().hex[:12]}"
    with here.runtime.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE USER {name}")
        connection.exec_driver_sql(f"GRANT SELECT ON {here.runtime.engine.url.database}.* TO {name}")
    url = here.runtime.engine.url.set(username=name, password=None)
    engine = open_engine(url.render_as_string(hide_password=False))
    try:
        with (
            closing_pool(engine),
            pytest.raises(LedgerUnavailable, match=r"refused 'step': .*command denied.*: grant the user"),
        ):
            Boundary().commit("step", engine, lambda own: write(own, "hat"))
    finally:
        with here.runtime.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP USER {name}")


@contextmanager
def closing_pool(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


def test_tables_of_an_engine_without_transactions_are_refused(here: Duel) -> None:
    with here.runtime.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE agent_operations ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match=r"agent_operations is kept by MyISAM.*ENGINE=InnoDB"):
        upgrade(here.url)


def test_a_connection_that_was_killed_is_a_ledger_that_did_not_answer(here: Duel) -> None:
    engine = here.runtime.engine

    def kill(connection: Connection) -> None:
        number = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        with engine.connect() as other:
            other.exec_driver_sql(f"KILL {number}")
        write(connection, "a")

    with pytest.raises(LedgerUnavailable, match="Nothing was written") as raised:
        Boundary().commit("step", engine, kill)
    assert not raised.value.ambiguous
    Boundary().commit("step", engine, lambda connection: write(connection, "b"))
    assert written(here) == ["b"]


def test_a_lost_wait_for_a_lock_undoes_the_whole_transaction_and_not_its_last_statement(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL itself undoes that statement alone, and a commit after it would keep the half."""
    monkeypatch.setattr(module, "MAX_LOCK_RETRIES", 1)
    engine, tries = here.runtime.engine, []

    def work(connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
        tries.append(written(here))
        write(connection, "mine")
        write(connection, "held")

    with engine.connect() as other, other.begin():
        write(other, "held")
        with pytest.raises(LedgerUnavailable, match="too busy at 'step': Lock wait timeout"):
            Boundary().commit("step", engine, work)
    assert (tries, written(here)) == ([[], []], ["held"])
    assert MAX_LOCK_RETRIES > 1


def test_two_transactions_that_lock_each_other_out_are_both_carried_out(here: Duel) -> None:
    engine = here.runtime.engine
    with engine.begin() as connection:
        write(connection, "a")
        write(connection, "b")
    both_hold_one, tries = threading.Barrier(2), []

    def update(first: str, second: str) -> None:
        def work(connection: Connection) -> None:
            tries.append(first)
            statement = text("UPDATE effects SET what = concat(what, '+') WHERE what LIKE :what")
            connection.execute(statement, {"what": f"{first}%"})
            if tries.count(first) == 1:
                both_hold_one.wait(10)
            connection.execute(statement, {"what": f"{second}%"})

        Boundary().commit("step", engine, work)

    threads = [threading.Thread(target=update, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (written(here), len(tries)) == (["a++", "b++"], 3)


def test_a_claim_that_waited_for_the_row_has_all_of_its_lease(here: Duel) -> None:
    """The clock is read when a statement begins there, so it must not be the one that waits."""
    order = here.agent(pay=lambda _state: done())
    order.enqueue({}, run_id=RUN)
    runtime, runs, claimed = here.runtime, here.runtime.runs, []

    def claim(connection: Connection) -> None:
        claimed.append(runs.claim(connection, RUN, 1, agent="order", step="pay", owner="me", token="t"))

    thread = threading.Thread(target=lambda: runtime.boundary.commit("claim", runtime.engine, claim))
    with runtime.engine.connect() as other, other.begin():
        runs.find(other, RUN, lock=True)
        thread.start()
        wait_until(lambda: waits(here), "the claim waits for the row", 10)
        let_go_at = other.execute(text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")).scalar_one()
    thread.join(10)
    (row,) = claimed
    assert row["due_at"] >= let_go_at + runtime.settings.lease_seconds * MICROSECONDS


# -- ids ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["CART", "cart ", "çart", "cart\t"])
def test_ids_that_differ_in_anything_are_different(here: Duel, other: str) -> None:
    order = here.agent(pay=lambda _state: done())
    keyed = [order.enqueue({}, dedupe_key=key).run_id for key in ("cart", other, "cart", other)]
    assert keyed[:2] == keyed[2:]
    assert keyed[0] != keyed[1]
    runs = [order.enqueue({}, run_id=run_id) for run_id in ("cart", other)]
    here.work(order)
    assert [run.status for run in runs] == [RunStatus.SUCCEEDED] * 2


def test_an_id_of_characters_beyond_the_basic_plane_is_kept(here: Duel) -> None:
    order = here.agent(pay=lambda _state: done("🦊"))
    run = order.enqueue({"cart": "🦊"}, run_id="🦊" * 200, dedupe_key="🦊")
    here.work(order)
    assert run.get(timeout=0) == "🦊"


# -- migrations -----------------------------------------------------------------------------------------------------------


def test_an_upgrade_that_is_cut_off_at_each_change_of_a_table_goes_on(mysql_database: Callable[[], str]) -> None:
    """Each is a commit of its own there, so that no rollback takes a half of them back."""
    whole, engine = open_engine(mysql_database()), open_engine(mysql_database())
    upgrade(whole)
    cuts = 0
    while _cut_off_after_one_change(engine):
        cuts += 1
        assert cuts < 100
    assert cuts > 20
    assert revision(engine) == newest()
    assert shape(engine) == shape(whole)
    assert upgrade(engine) == newest()
    for one in (whole, engine):
        one.dispose()


def _cut_off_after_one_change(engine: Engine) -> bool:
    """Upgrade, and fail before the second change of a table; False if there is none."""
    changed = False

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        nonlocal changed
        if statement.lstrip().startswith(("CREATE", "ALTER")):
            if changed:
                raise ZeroDivisionError
            changed = True

    event.listen(engine, "before_cursor_execute", note)
    try:
        upgrade(engine)
    except ZeroDivisionError:
        return True
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return False


def shape(engine: Engine) -> dict[str, Any]:
    looker = inspect(engine)
    return {
        name: (
            [str(column) for column in looker.get_columns(name)],
            sorted(map(str, looker.get_indexes(name))),
            sorted(map(str, looker.get_unique_constraints(name))),
        )
        for name in looker.get_table_names()
    }


# -- a caller's transaction -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)  # who does not see it asks for ever
def test_a_caller_who_reads_a_snapshot_finds_the_run_that_was_made_since(here: Duel, caller: Engine) -> None:
    order = here.agent(pay=lambda _state: done())
    with caller.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM agent_runs")).scalar_one() == 0
        first = order.enqueue({"cart": 1}, dedupe_key="cart-1")
        named = order.enqueue({"cart": 2}, run_id="mine")
        again = order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connection)
        order.enqueue({"cart": 2}, run_id="mine", connection=connection)
    assert again.run_id == first.run_id
    here.work(order)
    assert (first.status, named.status) == (RunStatus.SUCCEEDED, RunStatus.SUCCEEDED)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("by", ["dedupe_key", "run_id"])
def test_a_run_is_worked_on_while_a_caller_who_found_it_keeps_his_transaction_open(
    here: Duel, caller: Engine, by: str
) -> None:
    order = here.agent(pay=lambda _state: done("paid"))
    named: dict[str, Any] = {by: "cart-1"}
    with caller.begin() as connection:
        connection.execute(text("SELECT count(*) FROM agent_runs")).scalar_one()
        first = order.enqueue({}, **named)
        assert order.enqueue({}, connection=connection, **named).run_id == first.run_id
        here.work(order)
        assert first.status is RunStatus.SUCCEEDED


@pytest.mark.timeout(60)
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
@pytest.mark.parametrize("whose", ["committed", "his own"])
def test_a_caller_who_finds_a_run_keeps_nobody_from_keys_beside_its_own(
    here: Duel, caller: Engine, isolation: Any, whose: str
) -> None:
    order = here.agent(pay=lambda _state: done())
    for key in ("k1", "k5", "k9"):
        order.enqueue({}, dedupe_key=key)
    key = "k5" if whose == "committed" else "k7"
    with caller.connect().execution_options(isolation_level=isolation) as connection, connection.begin():
        connection.execute(text("SELECT count(*) FROM agent_runs")).scalar_one()
        runs = [order.enqueue({}, dedupe_key=key, connection=connection).run_id for _ in range(2)]
        beside = [order.enqueue({}, dedupe_key=other).status for other in ("a", "k4", "k45", "k55", "k65", "k75", "z")]
    assert runs[0] == runs[1]
    assert beside == [RunStatus.QUEUED] * 7


def test_who_waits_for_a_key_of_an_open_transaction_is_told_what_may_hold_it(
    here: Duel, caller: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOCK_RETRIES", 0)
    order = here.agent(pay=lambda _state: done())
    with caller.begin() as connection:
        order.enqueue({}, dedupe_key="cart-1", connection=connection)
        with pytest.raises(
            LedgerUnavailable, match=r"No run was made. Perhaps .*'cart-1' or id .*, or a key beside it, in a"
        ):
            order.enqueue({}, dedupe_key="cart-1")


def test_a_run_that_was_deleted_since_a_callers_snapshot_is_made_anew(here: Duel, caller: Engine) -> None:
    order = here.agent(pay=lambda _state: done())
    order.enqueue({}, run_id=RUN, dedupe_key="cart-1")
    with caller.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM agent_runs")).scalar_one() == 1
        with here.runtime.engine.begin() as own:
            own.execute(text("DELETE FROM agent_runs"))
            here.runtime.store.delete(RUN, connection=own)
        again = order.enqueue({}, dedupe_key="cart-1", connection=connection)
        assert again.run_id != RUN
    here.work(order)
    assert again.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_deadlock_in_a_callers_transaction_ends_all_of_it(here: Duel, caller: Engine, kind: str) -> None:
    """The server takes all of it back, and what he did after that would be committed alone."""
    order = here.agent(pay=lambda _state: done())
    with caller.begin() as connection:
        for what in "abcdef":
            write(connection, what)
    locked = text("UPDATE effects SET what = concat(what, '+') WHERE what = :what")
    with closing(caller.connect() if kind == "connection" else Session(caller)) as given, caller.connect() as rival:
        given.begin()
        given.execute(locked, {"what": "a"})
        with rival.begin():
            for what in "bcdef":  # it has written more, so that the other one is chosen to lose
                rival.execute(locked, {"what": what})
            order.enqueue({}, dedupe_key="cart", connection=rival)
            thread = threading.Thread(target=lambda: rival.execute(locked, {"what": "a"}))
            thread.start()
            wait_until(lambda: waits(here), "the rival waits for the row of the caller", 10)
            with pytest.raises(OperationalError, match="Deadlock"):
                order.enqueue({}, dedupe_key="cart", connection=given)
            thread.join(10)
        for go_on in (lambda: given.execute(text("INSERT INTO effects VALUES ('half')")), given.commit):
            with pytest.raises(InvalidRequestError, match="rolled back"):
                go_on()
        given.rollback()
        given.execute(text("INSERT INTO effects VALUES ('anew')"))
        given.rollback()
    assert written(here) == [f"{what}+" for what in "abcdef"]  # each of them once, by the rival


# -- transactional bodies -------------------------------------------------------------------------------------------------


def running(here: Duel, body: Callable[[Connection], Any]) -> Any:
    @tool(effect="transactional", bind=True, timeout=timedelta(seconds=60), name="put")
    def put(operation: Operation) -> Any:
        here.requests.append("put")
        assert operation.connection is not None
        return body(operation.connection)

    return here.run(here.agent(put, pay=lambda _state: done(put())))


class Rival:
    """Another transaction on two rows, which lets whoever locks them the other way round lose."""

    def __init__(self, here: Duel) -> None:
        self.here = here
        self.connection = here.runtime.engine.connect()
        with self.connection.begin():
            for what in "abcdef":
                write(self.connection, what)

    def lose_to(self, connection: Connection) -> None:
        """Let this connection's transaction lose a deadlock."""
        lock = "UPDATE effects SET what = concat(what, '+') WHERE what LIKE '{}%'"
        self.connection.begin()
        for what in "bcdef":
            self.connection.execute(text(lock.format(what)))
        connection.execute(text(lock.format("a")))
        thread = threading.Thread(target=lambda: self.connection.execute(text(lock.format("a"))))
        thread.start()
        wait_until(lambda: waits(self.here), "the rival waits", 10)
        try:
            connection.execute(text(lock.format("b")))
        finally:
            thread.join(10)
            self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "in a savepoint"])
def test_a_body_that_loses_a_deadlock_is_run_again_as_a_whole(here: Duel, nested: bool) -> None:
    with closing(Rival(here)) as rival:

        def body(connection: Connection) -> str:
            write(connection, "mine")
            if len(here.requests) == 1:
                if nested:
                    with connection.begin_nested():
                        rival.lose_to(connection)
                else:
                    rival.lose_to(connection)
            return "written"

        assert running(here, body).get(timeout=0) == "written"
    assert here.requests == ["put", "put"]
    assert written(here).count("mine") == 1
    here.sound()


def test_a_body_that_catches_a_deadlock_and_goes_on_fails_as_a_whole(here: Duel) -> None:
    with closing(Rival(here)) as rival:

        def body(connection: Connection) -> None:
            write(connection, "first")
            with suppress(DBAPIError):
                rival.lose_to(connection)
            write(connection, "second")

        with pytest.raises(RunFailed, match="went on after its transaction had ended"):
            running(here, body).get(timeout=0)
    assert here.operation().status is OperationStatus.FAILED
    assert not {"first", "second"} & set(written(here))
    here.sound()


def test_a_body_that_changes_a_table_is_told_that_it_commits(here: Duel) -> None:
    def body(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE another (id INTEGER)")

    with pytest.raises(RunFailed, match="or it changed a table, which MySQL commits"):
        running(here, body).get(timeout=0)
    assert here.operation().status is OperationStatus.FAILED


def test_a_body_with_a_longer_timeout_may_leave_its_transaction_idle_and_others_may_not(here: Duel) -> None:
    def idle(connection: Connection) -> int:
        return int(connection.exec_driver_sql("SELECT @@idle_transaction_timeout").scalar_one())

    assert running(here, idle).get(timeout=0) == 65
    engine = here.runtime.engine
    connections = [engine.connect() for _ in range(engine.pool.checkedin() + 1)]  # type: ignore[attr-defined]
    assert {idle(connection) for connection in connections} == {mysql.IDLE_SECONDS}
    for connection in connections:
        connection.close()
