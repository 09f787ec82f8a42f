"""Runs that are enqueued in the transaction of their caller: they are his to commit, and rung for after that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject
from sqlalchemy import Column, Engine, Integer, create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session, declarative_base, scoped_session, sessionmaker

from agent_tasks import (
    Agent,
    AgentTask,
    AgentTasksError,
    DedupeConflict,
    Operation,
    TransactionUnusable,
    done,
    inline,
    tool,
)
from agent_tasks.answering import answer
from agent_tasks.boundary import Point
from agent_tasks.database import open_engine
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import LedgerUnavailable, RunNotFound, SchemaMissing
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import Sweeper, end_lease
from agent_tasks.testing import VendorWorld, check_invariants, explore_crashes
from agent_tasks.testing.faults import Crash
from tests.agents import new_app, tool_of
from tests.apps import close
from tests.one_process import OneProcess
from tests.waiting import wait_until

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


class Shop(OneProcess):
    """An agent, and its caller, who has an engine and a table of orders of his own in the ledger's database."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.order = self.agent(name="order", pay=lambda state: done(f"paid {state['cart']}"))
        self.engine = create_engine(self.runtime.engine.url)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))

    def close(self) -> None:
        self.engine.dispose()
        super().close()

    def add_order(self, connection: Any, number: int = 1) -> None:
        connection.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})

    def orders(self) -> int:
        return self._count("orders")

    def runs(self) -> int:
        return self._count("agent_runs")

    def _count(self, table: str) -> int:
        statement = text(f"SELECT count(*) FROM {table}")
        return self.runtime.boundary.read(self.runtime.engine, lambda own: int(own.execute(statement).scalar_one()))

    def rings(self) -> list[str]:
        assert isinstance(self.runtime.bell, InlineBell)
        return [ring.run_id for ring in self.runtime.bell.rings]

    def sound(self) -> None:
        with self.runtime.engine.connect() as connection:
            assert check_invariants(connection) == []


@pytest.fixture
def here(database_url: str) -> Iterator[Shop]:
    with closing(Shop(database_url)) as shop:
        yield shop
        shop.sound()


@pytest.fixture
def on_postgresql(postgres_database: Callable[[], str]) -> Iterator[Shop]:
    with closing(Shop(postgres_database())) as shop:
        yield shop
        shop.sound()


# -- his commit -----------------------------------------------------------------------------------------------------------


def test_a_run_is_there_and_rung_for_when_its_caller_commits_and_not_before(here: Shop) -> None:
    with here.engine.begin() as connection:
        here.add_order(connection)
        run = here.order.enqueue({"cart": 1}, connection=connection)
        assert (here.orders(), here.runs(), here.rings()) == (0, 0, [])
    assert (here.orders(), here.runs(), here.rings()) == (1, 1, [run.run_id])
    here.work(here.order)
    assert run.get(timeout=0) == "paid 1"


def test_a_run_that_a_transactional_body_enqueues_is_rung_for_when_its_effect_is_committed(here: Shop) -> None:
    rung_in_the_body: list[str] = []

    @tool(effect="transactional", bind=True)
    def note(operation: Operation) -> None:
        here.order.enqueue({"cart": 7}, run_id="child", connection=operation.connection)
        rung_in_the_body.extend(here.rings())

    parent = here.agent(note, name="parent", send=lambda _state: done(note()))
    parent.enqueue({}, run_id="parent")
    inline.answer(here.runtime, parent, here.runtime.bell.rings.popleft())  # type: ignore[attr-defined]
    assert (rung_in_the_body, here.rings()) == ([], ["child"])
    here.work(here.order)
    assert here.order.run("child").get(timeout=0) == "paid 7"


def test_nothing_is_left_when_its_caller_rolls_back(here: Shop) -> None:
    with suppress(ZeroDivisionError), here.engine.begin() as connection:
        here.add_order(connection)
        here.order.enqueue({"cart": 1}, run_id="r", connection=connection)
        raise ZeroDivisionError
    assert (here.orders(), here.runs(), here.rings()) == (0, 0, [])
    assert here.counts()["agent_checkpoint_heads"] == 0
    run = here.order.enqueue({"cart": 2}, run_id="r")  # with another input, since the first was never there
    here.work(here.order)
    assert run.get(timeout=0) == "paid 2"


def test_a_connection_that_begins_by_itself_is_committed_as_any_other(here: Shop) -> None:
    with here.engine.connect() as connection:
        first = here.order.enqueue({"cart": 1}, connection=connection)
        connection.commit()
        assert here.rings() == [first.run_id]
        here.order.enqueue({"cart": 2}, connection=connection)
        connection.rollback()
        second = here.order.enqueue({"cart": 3}, connection=connection)
        connection.commit()
        here.add_order(connection)
        connection.commit()
    assert here.rings() == [first.run_id, second.run_id]


def test_a_session_commits_its_objects_and_the_run_together(here: Shop) -> None:
    with Session(here.engine) as session:
        here.add_order(session)
        run = here.order.enqueue({"cart": 1}, connection=session)
        session.rollback()
        assert (here.orders(), here.runs(), here.rings()) == (0, 0, [])
        here.add_order(session)
        run = here.order.enqueue({"cart": 1}, connection=session)
        session.commit()
    assert (here.orders(), here.runs(), here.rings()) == (1, 1, [run.run_id])


def test_a_scoped_session_is_a_session(here: Shop) -> None:
    session = scoped_session(sessionmaker(here.engine))
    run = here.order.enqueue({"cart": 1}, connection=session)
    session.commit()
    session.remove()
    assert here.rings() == [run.run_id]


def test_a_session_that_joined_an_outer_transaction_rings_when_that_one_is_committed(on_postgresql: Shop) -> None:
    here = on_postgresql
    with here.engine.begin() as outer:
        with Session(outer, join_transaction_mode="create_savepoint") as session:
            run = here.order.enqueue({"cart": 1}, connection=session)
            session.commit()
        assert (here.runs(), here.rings()) == (0, [])
    assert (here.runs(), here.rings()) == (1, [run.run_id])


def test_several_runs_of_one_transaction_are_rung_for_each(here: Shop) -> None:
    with here.engine.begin() as connection:
        ids = [here.order.enqueue({"cart": cart}, connection=connection).run_id for cart in range(3)]
        again = here.order.enqueue({"cart": 0}, run_id=ids[0], connection=connection)
    assert again.run_id == ids[0]
    assert here.rings() == ids


@pytest.mark.parametrize("savepoint_ends", ["taken back", "kept"])
def test_a_savepoint_that_is_taken_back_takes_its_run_along(here: Shop, savepoint_ends: str) -> None:
    with here.engine.begin() as connection:
        here.add_order(connection)
        savepoint = connection.begin_nested() if connection.dialect.name == "postgresql" else None
        if savepoint is None:
            connection.exec_driver_sql("SAVEPOINT mine")
        run = here.order.enqueue({"cart": 1}, connection=connection)
        if savepoint_ends == "kept":
            _ = savepoint.commit() if savepoint else connection.exec_driver_sql("RELEASE SAVEPOINT mine")
        else:
            _ = savepoint.rollback() if savepoint else connection.exec_driver_sql("ROLLBACK TO mine")
    expected = ([run.run_id], 1) if savepoint_ends == "kept" else ([], 0)
    assert (here.rings(), here.runs()) == expected
    assert here.orders() == 1


def test_a_commit_that_fails_rings_nothing_and_is_raised_as_it_is(on_postgresql: Shop) -> None:
    here = on_postgresql
    with here.engine.begin() as connection:
        connection.execute(text("ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"))
        connection.execute(text("ALTER TABLE orders DROP CONSTRAINT orders_pkey"))
    with here.engine.connect() as connection:
        here.add_order(connection)
        here.add_order(connection)
        here.order.enqueue({"cart": 1}, connection=connection)
        with pytest.raises(IntegrityError):
            connection.commit()
    assert (here.orders(), here.runs(), here.rings()) == (0, 0, [])


def test_a_broker_that_is_away_does_not_disturb_the_commit(here: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def ring(_ring: Any) -> None:
        raise ConnectionError("no broker")

    here.runtime.bell.ring = ring  # type: ignore[method-assign]
    with here.engine.begin() as connection:
        run = here.order.enqueue({"cart": 1}, connection=connection)
    assert run.status is RunStatus.QUEUED
    assert "is committed and was not rung for (ConnectionError: no broker); the sweeper rings" in caplog.text


# -- the handle before the commit -----------------------------------------------------------------------------------------


def test_a_handle_says_before_the_commit_that_there_is_none_yet(here: Shop) -> None:
    with here.engine.begin() as connection:
        run = here.order.enqueue({"cart": 1}, connection=connection)
        for ask in (lambda: run.status, lambda: run.get(timeout=5), run.state):
            with pytest.raises(RunNotFound, match="has not committed it yet, or has rolled it back"):
                ask()
    assert run.status is RunStatus.QUEUED


# -- dedupe keys ----------------------------------------------------------------------------------------------------------


def test_a_dedupe_key_that_exists_gives_its_run_and_leaves_the_transaction_usable(here: Shop) -> None:
    first = here.order.enqueue({"cart": 1}, dedupe_key="cart-1")
    with here.engine.begin() as connection:
        again = here.order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connection)
        with pytest.raises(DedupeConflict, match="cart-1"):
            here.order.enqueue({"cart": 2}, dedupe_key="cart-1", connection=connection)
        here.add_order(connection)
    assert again.run_id == first.run_id
    assert (here.orders(), here.runs()) == (1, 1)


def test_whoever_enqueues_the_same_key_waits_for_the_transaction_that_has_it_and_gets_its_run(
    on_postgresql: Shop,
) -> None:
    here, found = on_postgresql, []
    with here.engine.begin() as connection:
        run = here.order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connection)
        other = threading.Thread(
            target=lambda: found.append(here.order.enqueue({"cart": 1}, dedupe_key="cart-1").run_id)
        )
        other.start()
        wait_until(lambda: waiting(here.runtime.engine) == 1, "the other one waits")
        assert found == []
    other.join()
    assert found == [run.run_id]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait for another transaction is as short as its database allows, and is tried once."""
    monkeypatch.setattr("agent_tasks.enqueue._LOCK_TIMEOUT_MS", 1)
    monkeypatch.setattr("agent_tasks.enqueue.WORKERS_LOCK_TIMEOUT_MS", 1)
    monkeypatch.setattr("agent_tasks.database.SQLITE_BUSY_MS", 1)
    monkeypatch.setattr("checkpoint.mysql.LOCK_WAIT_SECONDS", 1)
    monkeypatch.setattr("agent_tasks.boundary.MAX_LOCK_RETRIES", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("known_by", [{"dedupe_key": "cart-1"}, {"run_id": "cart-1"}], ids=["a key", "an id"])
def test_whoever_waits_for_a_transaction_that_nobody_ends_is_told_so(
    database_url: str, known_by: dict[str, Any]
) -> None:
    with closing(Shop(database_url)) as here:
        with here.engine.begin() as connection:
            run = here.order.enqueue({"cart": 1}, connection=connection, **known_by)
            with pytest.raises(LedgerUnavailable, match=r"'cart-1'.* in a transaction that he has not ended"):
                here.order.enqueue({"cart": 1}, **known_by)
        assert here.order.enqueue({"cart": 1}, **known_by).run_id == run.run_id
        assert here.runs() == 1


def waiting(engine: Engine) -> int:
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one())


# -- what the database refuses --------------------------------------------------------------------------------------------


def test_a_serialization_failure_is_raised_as_it_is_and_the_callers_to_retry(on_postgresql: Shop) -> None:
    here = on_postgresql
    serializable = here.engine.execution_options(isolation_level="SERIALIZABLE")

    def place_order() -> str:
        with serializable.begin() as connection:
            connection.execute(text("SELECT count(*) FROM orders"))  # takes the snapshot
            if not meanwhile:
                meanwhile.append(here.order.enqueue({"cart": 1}, dedupe_key="cart-1").run_id)
            return here.order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connection).run_id

    meanwhile: list[str] = []
    with pytest.raises(OperationalError) as refused:
        place_order()
    assert getattr(refused.value.orig, "sqlstate", None) == "40001"
    assert place_order() == meanwhile[0]


def test_a_serialization_failure_at_the_commit_is_raised_as_it_is(on_postgresql: Shop) -> None:
    here = on_postgresql
    serializable = here.engine.execution_options(isolation_level="SERIALIZABLE")
    count = text("SELECT count(*) FROM orders")
    with serializable.connect() as mine, serializable.connect() as other:
        for number, connection in enumerate((mine, other)):  # each reads what the other one writes
            connection.execute(count)
            here.add_order(connection, number)
        here.order.enqueue({"cart": 1}, connection=mine)
        other.commit()
        with pytest.raises(OperationalError) as refused:
            mine.commit()
        mine.rollback()
    assert getattr(refused.value.orig, "sqlstate", None) == "40001"
    assert (here.runs(), here.rings()) == (0, [])


def test_a_run_that_could_not_be_written_whole_is_not_there_at_all(here: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("INSERT …", {}, Exception("disk full"))

    monkeypatch.setattr(here.runtime.store, "save", refuse)
    with here.engine.begin() as connection:
        with pytest.raises(OperationalError, match="disk full"):
            here.order.enqueue({"cart": 1}, connection=connection)
        here.add_order(connection)
    assert (here.orders(), here.runs(), here.rings()) == (1, 0, [])


# -- connections that cannot be used --------------------------------------------------------------------------------------


def refused(here: Shop, connection: object, why: str) -> None:
    with pytest.raises(TransactionUnusable, match=why):
        here.order.enqueue({"cart": 1}, connection=connection)
    assert (here.runs(), here.rings()) == (0, [])


def test_a_closed_connection_is_refused(here: Shop) -> None:
    with here.engine.connect() as connection:
        pass
    refused(here, connection, "the connection is closed")


def test_an_engine_and_whatever_else_is_no_connection_is_refused(here: Shop) -> None:
    refused(here, here.engine, r"An engine has no transaction: use `with engine.begin\(\) as connection:`")
    refused(
        here, "default", "must be a SQLAlchemy Connection or Session, or one of Django's connections, got 'default'"
    )
    refused(here, type("AsyncConnection", (), {"__module__": "sqlalchemy.ext.asyncio.engine"})(), "run_sync")


def test_a_connection_in_autocommit_mode_is_refused(here: Shop) -> None:
    with here.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        refused(here, connection, "autocommit mode")


def test_a_transaction_that_has_failed_is_refused(on_postgresql: Shop) -> None:
    here = on_postgresql
    with here.engine.connect() as connection:
        with suppress(ProgrammingError):
            connection.execute(text("SELECT * FROM nowhere"))
        refused(here, connection, "an earlier statement of this transaction failed")


def test_a_session_whose_flush_failed_is_refused(here: Shop) -> None:
    class Order(declarative_base()):  # type: ignore[misc]
        __tablename__ = "orders"
        id = Column(Integer, primary_key=True)

    with here.engine.begin() as connection:
        here.add_order(connection)
    with Session(here.engine) as session:
        session.add(Order(id=1))
        with suppress(IntegrityError):
            session.flush()
        refused(here, session, r"(?s)no connection that a run can be written on.*Roll it back if a flush failed")


def test_a_transaction_that_was_ended_in_its_own_block_is_refused(here: Shop) -> None:
    with here.engine.begin() as connection:
        connection.rollback()
        refused(here, connection, "no run can be written in this transaction: Can't operate on closed transaction")


def test_another_database_is_refused(here: Shop, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    if here.engine.dialect.name == "sqlite":
        url = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        kind = "postgres" if here.engine.dialect.name == "postgresql" else "mysql"
        url = request.getfixturevalue(f"{kind}_database")()
    upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        refused(here, connection, "leads to another database, and the ledger is at")
    engine.dispose()


def test_another_kind_of_database_is_refused(on_postgresql: Shop, tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with engine.begin() as connection:
        refused(on_postgresql, connection, "leads to sqlite, and the ledger is on postgresql")
    engine.dispose()


def test_a_connection_whose_search_path_does_not_find_the_ledger_is_refused(on_postgresql: Shop) -> None:
    with on_postgresql.engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("SET LOCAL search_path = tenant"))
        refused(on_postgresql, connection, "has no table 'agent_runs' on its search_path")


def test_a_savepoint_that_sqlite_would_commit_by_itself_is_refused(tmp_path: Any) -> None:
    with closing(Shop(f"sqlite:///{tmp_path / 'agent.db'}")) as here:
        with here.engine.begin() as connection, connection.begin_nested():
            refused(here, connection, "in a savepoint, which SQLite commits by itself")
        with open_engine(str(here.engine.url)).begin() as connection, connection.begin_nested():
            run = here.order.enqueue({"cart": 1}, connection=connection)
        assert here.rings() == [run.run_id]


def test_missing_tables_are_named(here: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with here.runtime.engine.begin() as connection:
        connection.execute(text("ALTER TABLE agent_checkpoint_heads RENAME TO gone"))
    with here.engine.begin() as connection:
        with pytest.raises(SchemaMissing, match=r"^[^\n]*agent db upgrade[^\n]*$"):
            here.order.enqueue({"cart": 1}, connection=connection)
        here.add_order(connection)
    assert (here.orders(), here.runs()) == (1, 0)
    with here.runtime.engine.begin() as connection:
        connection.execute(text("ALTER TABLE gone RENAME TO agent_checkpoint_heads"))


# -- plain tasks ----------------------------------------------------------------------------------------------------------


def greeting(here: Shop, *, failing: bool = False) -> Any:
    """Return a plain task whose job a name names."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(base=AgentTask, tools=[], dedupe_on=("name",), shared=False)
    def greet(name: str) -> str:
        if failing:
            raise ValueError(name)
        return f"hello {name}"

    AppState.of(app).use_runtime(here.runtime)
    return greet


@pytest.fixture
def greet(here: Shop) -> Iterator[Any]:
    made = greeting(here)
    yield made
    close(made.app)


def test_a_plain_task_is_called_in_its_callers_transaction(here: Shop, greet: Any) -> None:
    with here.engine.begin() as connection:
        here.add_order(connection)
        result = greet.apply_async(("kim",), ledger_connection=connection)
        again = greet.apply_async(("kim",), ledger_connection=connection)
        named = greet.apply_async(("kim",), task_id="mine", ledger_connection=connection)
        assert (here.runs(), here.rings()) == (0, [])
        with pytest.raises(RunNotFound, match="has not committed it yet"):
            result.get(timeout=5)
    assert again.id == result.id
    assert here.rings() == [result.id, named.id]
    here.work(greet.job)
    assert (greet.run_handle(result).status, greet.run_handle(named).status) == (
        RunStatus.SUCCEEDED,
        RunStatus.SUCCEEDED,
    )


def test_a_plain_task_that_is_rolled_back_was_never_called(here: Shop, greet: Any) -> None:
    with suppress(ZeroDivisionError), here.engine.begin() as connection:
        result = greet.apply_async(("kim",), ledger_connection=connection)
        raise ZeroDivisionError
    assert (here.runs(), here.rings()) == (0, [])
    with pytest.raises(RunNotFound, match="or has rolled it back"):
        result.get(timeout=5)


@pytest.mark.usefixtures("impatient")
def test_an_id_of_a_plain_task_that_an_open_transaction_has_holds_up_neither_caller_nor_worker(
    database_url: str,
) -> None:
    with closing(Shop(database_url)) as here:
        greet = greeting(here)
        with here.engine.begin() as connection:
            greet.apply_async(("kim",), task_id="mine", ledger_connection=connection)
            with pytest.raises(LedgerUnavailable, match=r"'mine'.* in a transaction that he has not ended"):
                greet.apply_async(("kim",), task_id="mine")
            with pytest.raises(Reject) as put_back:
                sent_by_name(greet, "mine", "kim")
            assert put_back.value.requeue
        sent_by_name(greet, "mine", "kim")
        assert greet.run_handle("mine").get(timeout=0) == "hello kim"
        assert here.runs() == 1


def sent_by_name(task: Any, task_id: str, *args: Any) -> None:
    """Let a worker have a message that is no doorbell."""
    task.push_request(id=task_id, args=args, kwargs={}, delivery_info={}, called_directly=False)
    try:
        answer(task, task.job)
    finally:
        task.pop_request()


def test_who_works_on_a_run_does_not_wait_for_an_open_transaction_with_a_call_of_the_same_job(
    on_postgresql: Shop,
) -> None:
    here = on_postgresql
    greet = greeting(here)
    first = greet.apply_async(("kim",))
    with here.engine.begin() as connection:
        greet.apply_async(("kim",), task_id="again", ledger_connection=connection)
        with giving_up_on_locks(here):
            here.work(greet.job)
            assert greet.run_handle(first).status is RunStatus.SUCCEEDED
    here.work(greet.job)
    assert greet.run_handle("again").get(timeout=0) == "hello kim"


@pytest.mark.parametrize("word", ["cancel", "resume", "answer"])
def test_a_person_does_not_wait_for_an_open_transaction_with_a_call_of_the_same_job(
    on_postgresql: Shop, word: str
) -> None:
    here = on_postgresql
    greet = greeting(here, failing=True)
    first = greet.apply_async(("kim",))
    run = greet.run_handle(first)
    if word == "resume":
        here.work(greet.job)
        assert run.status is RunStatus.FAILED
    if word == "answer":
        park(here, run.run_id)
    with here.engine.begin() as connection:
        greet.apply_async(("kim",), task_id="again", ledger_connection=connection)
        with giving_up_on_locks(here):
            if word == "cancel":
                assert run.cancel(who="kim", why="a test")
            elif word == "resume":
                run.resume(who="kim", why="a test")
            else:
                assert run.resolve(run.inbox()[0].item_id, "retry", who="kim", why="a test")


@contextmanager
def giving_up_on_locks(here: Shop) -> Iterator[None]:
    """Let whoever of the ledger's own would wait for a lock of PostgreSQL's fail."""

    def give_up(connection: Any, _record: object, _proxy: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1ms'")
        connection.commit()

    event.listen(here.runtime.engine, "checkout", give_up)
    try:
        yield
    finally:
        event.remove(here.runtime.engine, "checkout", give_up)
        here.runtime.engine.dispose()


def park(here: Shop, run_id: str) -> None:
    """Let a run lose its worker until a person is asked."""
    for _ in range(here.runtime.settings.max_crashes):
        with here.runtime.engine.begin() as connection:
            row = here.runtime.runs.find(connection, run_id)
            assert row is not None
            job = {"agent": row["agent"], "step": row["next_step"], "owner": "a worker that dies", "token": "t"}
            assert here.runtime.runs.claim(connection, run_id, row["seq"] + 1, **job) is not None
        assert end_lease(here.runtime, run_id, "t")


def test_a_database_given_as_celerys_own_connection_is_refused(here: Shop, greet: Any) -> None:
    with (
        here.engine.begin() as connection,
        pytest.raises(AgentTasksError, match=r"with ledger_connection=\. Nothing was"),
    ):
        greet.apply_async(("kim",), connection=connection)
    assert here.runs() == 0


# -- crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crash", "expected"),
    [
        ("before commit caller", (0, 0)),
        ("after commit caller", (1, 1)),
        ("before publish doorbell", (1, 1)),
        ("after publish doorbell", (1, 1)),
    ],
)
def test_a_caller_who_dies_leaves_order_and_run_or_neither_and_what_is_left_is_rung_for(
    here: Shop, crash: str, expected: tuple[int, int]
) -> None:
    def observe(point: Point) -> None:
        if str(point) == crash:
            raise Crash

    here.runtime.boundary.observer = observe
    with suppress(Crash), here.engine.connect() as connection:
        transaction = connection.begin()
        here.add_order(connection)
        here.order.enqueue({"cart": 1}, run_id="r", connection=connection)
        transaction.commit()
    here.runtime.boundary.observer = None
    assert (here.orders(), here.runs()) == expected

    assert isinstance(here.runtime.bell, InlineBell)
    here.runtime.bell.rings.clear()  # whatever was published, the broker lost it
    here.runtime.clock.advance(60)
    Sweeper(here.runtime).sweep()
    assert here.rings() == ["r"] * expected[1]


@pytest.mark.parametrize("effect", ["keyed", "manual"])
def test_a_run_of_a_callers_transaction_survives_a_crash_anywhere(effect: str, database_url: str) -> None:
    world = VendorWorld()
    act = tool_of(effect, world)
    agent = Agent("buyer", app=new_app(), tools=[act])

    @agent.step
    def only(state: Any) -> Any:
        return done(act(state["what"]))

    found = explore_crashes(
        agent, {"what": "a"}, world, database_url=database_url, in_transaction=True, cancels=True, brokers=("emptied",)
    )
    names = [str(point) for point in found.points[:4]]
    assert names == ["before commit caller", "after commit caller", "before publish doorbell", "after publish doorbell"]
    assert found.failures == []
