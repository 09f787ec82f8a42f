"""Runs that are enqueued in Django's transactions, and transactional tools whose bodies use its ORM."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from celery import Celery
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from sqlalchemy import text

from agent_tasks import Agent, DedupeConflict, Operation, RunFailed, TransactionUnusable, done, tool
from agent_tasks.boundary import Point
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import ConfigurationError, RunNotFound
from agent_tasks.integration import AppState
from agent_tasks.integrations.django.databases import url_of
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing import VendorWorld, check_invariants, explore_crashes
from agent_tasks.testing import stage as stage_module
from agent_tasks.testing.faults import Crash
from tests import djangos
from tests.agents import new_app
from tests.one_process import OneProcess

djangos.set_up_django()

from tests.djangos_shop.models import Order  # noqa: E402 - a model needs settings

LEDGER = "ledger"


def place(number: str) -> None:
    Order.objects.using(LEDGER).create(number=number)


def orders() -> list[str]:
    return list(Order.objects.using(LEDGER).order_by("number").values_list("number", flat=True))


class Shop(OneProcess):
    """A ledger that is one of Django's databases, and a table of orders beside it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.runtime.engine.dispose()
        self.runtime = Runtime(Settings(url_of(LEDGER), django_database=LEDGER), InlineBell)
        AppState.of(self.app).use_runtime(self.runtime)
        self.order = self.agent(name="order", pay=lambda state: done(f"paid {state['cart']}"))
        with connections[LEDGER].schema_editor() as editor:
            editor.create_model(Order)

    def runs(self) -> int:
        statement = text("SELECT count(*) FROM agent_runs")
        return self.runtime.boundary.read(self.runtime.engine, lambda own: int(own.execute(statement).scalar_one()))

    def rings(self) -> list[str]:
        assert isinstance(self.runtime.bell, InlineBell)
        return [ring.run_id for ring in self.runtime.bell.rings]


@pytest.fixture
def alias(database_url: str) -> Iterator[str]:
    """URL of a fresh database that Django knows as `ledger`."""
    with djangos.databases(ledger=djangos.settings_of(database_url)):
        yield database_url


@pytest.fixture
def here(alias: str) -> Iterator[Shop]:
    with closing(Shop(alias)) as shop:
        yield shop
        with shop.runtime.engine.connect() as own:
            assert check_invariants(own) == []


# -- a run in a transaction -----------------------------------------------------------------------------------------------


def test_a_run_is_there_and_rung_for_when_the_block_is_committed_and_not_before(here: Shop) -> None:
    with transaction.atomic(using=LEDGER):
        place("a")
        run = here.order.enqueue({"cart": 1}, connection=connections[LEDGER])
        assert (here.runs(), here.rings()) == (0, [])
        with pytest.raises(RunNotFound, match="has not committed it yet"):
            run.get(timeout=5)
    assert (orders(), here.runs(), here.rings()) == (["a"], 1, [run.run_id])
    here.work(here.order)
    assert run.get(timeout=0) == "paid 1"


def test_nothing_is_left_when_the_block_is_rolled_back(here: Shop) -> None:
    with suppress(ZeroDivisionError), transaction.atomic(using=LEDGER):
        place("a")
        here.order.enqueue({"cart": 1}, connection=connections[LEDGER])
        raise ZeroDivisionError
    assert (orders(), here.runs(), here.rings()) == ([], 0, [])


def test_an_inner_block_that_is_rolled_back_takes_its_run_along(here: Shop) -> None:
    with transaction.atomic(using=LEDGER):
        place("a")
        kept = here.order.enqueue({"cart": 1}, connection=connections[LEDGER])
        with suppress(ZeroDivisionError), transaction.atomic(using=LEDGER):
            here.order.enqueue({"cart": 2}, connection=connections[LEDGER])
            raise ZeroDivisionError
    assert (orders(), here.runs(), here.rings()) == (["a"], 1, [kept.run_id])


def test_a_dedupe_key_that_exists_gives_its_run_and_leaves_the_block_usable(here: Shop) -> None:
    first = here.order.enqueue({"cart": 1}, dedupe_key="cart-1")
    with transaction.atomic(using=LEDGER):
        again = here.order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connections[LEDGER])
        with pytest.raises(DedupeConflict, match="cart-1"):
            here.order.enqueue({"cart": 2}, dedupe_key="cart-1", connection=connections[LEDGER])
        place("a")
    assert (again.run_id, orders(), here.runs()) == (first.run_id, ["a"], 1)


def test_djangos_connection_can_be_used_before_and_after_as_it_was(here: Shop) -> None:
    """SQLAlchemy neither ends its transaction nor closes it, nor changes how it reads times."""
    with transaction.atomic(using=LEDGER):
        here.order.enqueue({"cart": 1}, connection=connections[LEDGER])
        driver = connections[LEDGER].connection
        place("a")
    assert connections[LEDGER].connection is driver
    assert not connections[LEDGER].in_atomic_block
    place("b")
    assert orders() == ["a", "b"]


def test_a_serialization_failure_is_djangos_own_and_the_callers_to_retry(
    postgres_database: Callable[[], str],
) -> None:
    url = postgres_database()
    entry = djangos.settings_of(url)
    entry["OPTIONS"]["isolation_level"] = 4  # psycopg's SERIALIZABLE
    with djangos.databases(ledger=entry), closing(Shop(url)) as here:

        def place_order() -> None:
            with transaction.atomic(using=LEDGER):
                assert orders() == []  # takes the snapshot
                if here.runs() == 0:
                    here.order.enqueue({"cart": 1}, dedupe_key="cart-1")
                here.order.enqueue({"cart": 1}, dedupe_key="cart-1", connection=connections[LEDGER])

        with pytest.raises(OperationalError) as refused:
            place_order()
        assert getattr(refused.value.__cause__, "sqlstate", None) == "40001"
        place_order()
        assert here.runs() == 1


def refused(here: Shop, given: object, why: str) -> None:
    with pytest.raises(TransactionUnusable, match=why):
        here.order.enqueue({"cart": 1}, connection=given)
    assert (here.runs(), here.rings()) == (0, [])


def test_a_connection_outside_of_a_block_is_refused(here: Shop) -> None:
    refused(here, connections[LEDGER], r"autocommit mode.*with transaction.atomic\(using='ledger'\):")


def test_a_block_that_an_error_has_broken_is_refused(here: Shop) -> None:
    place("a")
    with transaction.atomic(using=LEDGER):
        with suppress(IntegrityError):
            place("a")
        transaction.set_rollback(True, using=LEDGER)
        refused(here, connections[LEDGER], "that an earlier error has broken")


def test_another_database_of_django_is_refused(here: Shop, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    upgrade(url)
    with djangos.databases(default=djangos.settings_of(url)), transaction.atomic():
        refused(here, connection, "leads to another database|leads to sqlite, and the ledger is on postgresql")


def test_the_connection_of_another_thread_is_refused(here: Shop) -> None:
    others: list[Any] = []

    def look() -> None:
        others.append(connections[LEDGER])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    refused(here, others[0], "is another thread's")


@pytest.mark.parametrize(("crash", "expected"), [("after commit caller", 1), ("after publish doorbell", 1)])
def test_a_caller_who_dies_after_the_commit_is_rung_for_by_the_sweeper(here: Shop, crash: str, expected: int) -> None:
    def observe(point: Point) -> None:
        if str(point) == crash:
            raise Crash

    here.runtime.boundary.observer = observe
    with suppress(Crash), transaction.atomic(using=LEDGER):
        place("a")
        here.order.enqueue({"cart": 1}, run_id="r", connection=connections[LEDGER])
    here.runtime.boundary.observer = None
    assert (orders(), here.runs()) == (["a"], expected)
    assert isinstance(here.runtime.bell, InlineBell)
    here.runtime.bell.rings.clear()
    here.runtime.clock.advance(60)
    Sweeper(here.runtime).sweep()
    assert here.rings() == ["r"]


# -- transactional bodies that use the ORM --------------------------------------------------------------------------------


def placing(here: Shop, body: Callable[[Operation], Any]) -> Agent:
    @tool(effect="transactional", bind=True, name="put")
    def put(operation: Operation) -> Any:
        return body(operation)

    return here.agent(put, name="placing", only=lambda _state: done(put()))


def test_what_the_orm_writes_in_a_body_is_committed_with_its_record(here: Shop) -> None:
    def body(operation: Operation) -> str:
        place("a")
        assert operation.connection is not None
        return str(operation.connection.execute(text("SELECT number FROM djangos_shop_order")).scalar_one())

    run = here.run(placing(here, body))
    assert (run.get(timeout=0), orders()) == ("a", ["a"])
    assert [operation.status for operation in run.operations()] == [OperationStatus.SUCCEEDED]


def test_an_exception_of_a_body_takes_back_what_the_orm_wrote(here: Shop) -> None:
    def body(_operation: Operation) -> None:
        place("a")
        place("a")

    run = here.run(placing(here, body))
    with pytest.raises(RunFailed, match="IntegrityError"):
        run.get(timeout=0)
    assert orders() == []
    assert [operation.status for operation in run.operations()] == [OperationStatus.FAILED]


def test_an_error_that_a_body_swallows_in_a_block_of_its_own_is_no_error(here: Shop) -> None:
    def body(_operation: Operation) -> None:
        place("a")
        with suppress(IntegrityError), transaction.atomic(using=LEDGER):
            place("a")

    assert here.run(placing(here, body)).status is RunStatus.SUCCEEDED
    assert orders() == ["a"]


def test_a_body_that_asks_django_to_roll_back_has_failed_and_is_no_success_without_an_effect(here: Shop) -> None:
    def body(_operation: Operation) -> None:
        place("a")
        transaction.set_rollback(True, using=LEDGER)

    run = here.run(placing(here, body))
    with pytest.raises(RunFailed, match=r"can only be rolled back since. Catch it outside of an inner"):
        run.get(timeout=0)
    assert orders() == []


def test_a_call_inside_of_a_block_is_refused_since_its_record_would_be_that_blocks(here: Shop) -> None:
    @tool(effect="transactional", bind=True, name="put")
    def put(_operation: Operation) -> None:
        place("a")

    def step(_state: Any) -> Any:
        with transaction.atomic(using=LEDGER):
            return done(put())

    run = here.run(here.agent(put, name="placing", only=step))
    with pytest.raises(RunFailed, match="Call it outside of the block; its body is a transaction already"):
        run.get(timeout=0)
    assert (orders(), run.operations()) == ([], [])


class Orders(VendorWorld):
    """The outside world is the table of orders: one for each operation."""

    def reset(self) -> None:
        super().reset()
        Order.objects.using(LEDGER).all().delete()

    def effects(self) -> Counter[str]:
        return Counter(orders())


def test_a_crash_between_body_and_commit_leaves_neither_order_nor_record(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each boundary: what the explorer compares is the table of orders with the recorded outcomes."""

    @tool(effect="transactional", bind=True)
    def put(operation: Operation) -> str:
        place(operation.operation_id)
        return "placed"

    agent = Agent("placing", app=new_app(), tools=[put])

    @agent.step
    def only(_state: Any) -> Any:
        return done(put())

    upgrade(alias)
    with connections[LEDGER].schema_editor() as editor:
        editor.create_model(Order)
    monkeypatch.setattr(stage_module, "Settings", partial(Settings, django_database=LEDGER))
    found = explore_crashes(agent, {}, Orders(), database_url=alias, brokers=("emptied",))
    assert "before commit effect and outcome" in {str(point) for point in found.points}
    assert found.failures == []


# -- settings -------------------------------------------------------------------------------------------------------------


def settings(**given: Any) -> Settings:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(given)
    return Settings.of(app)


def test_the_ledger_can_be_one_of_djangos_databases(alias: str) -> None:
    found = settings(agent_django_database=LEDGER)
    upgrade(found.database_url)
    assert connections[LEDGER].introspection.table_names(connections[LEDGER].cursor())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"agent_django_database": "ledgre"}, r"\('default', 'ledger'\). Did you mean 'ledger'\?|one of the names"),
        ({"agent_django_database": 3}, "must be a name in DATABASES, got 3"),
        ({"agent_django_database": LEDGER, "agent_database_url": "sqlite:///a.db"}, "both say where the ledger is"),
    ],
)
def test_a_setting_that_names_no_database_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        settings(**given)


POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        (
            {**POSTGRESQL, "USER": "kim", "PASSWORD": "a/b@c", "HOST": "db", "PORT": "5433"},
            "postgresql+psycopg://kim:a%2Fb%40c@db:5433/shop",
        ),
        (
            {**POSTGRESQL, "HOST": "/run/pg", "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3}},
            "postgresql+psycopg:///shop?host=%2Frun%2Fpg&sslmode=require",
        ),
        (
            {**POSTGRESQL, "OPTIONS": {"prepare_threshold": None}},
            "postgresql+psycopg:///shop?prepare_threshold=None",
        ),
        (
            {"ENGINE": POSTGRESQL["ENGINE"], "OPTIONS": {"service": "shop"}},
            "postgresql+psycopg://?service=shop",
        ),
        ({**SQLITE, "NAME": "/data/shop.db", "OPTIONS": {"timeout": 5}}, "sqlite:////data/shop.db"),
    ],
)
def test_a_url_says_what_django_says(entry: dict[str, Any], url: str) -> None:
    with djangos.databases(ledger=entry):
        assert url_of(LEDGER) == url


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"ENGINE": "django.db.backends.dummy"}, "the ledger needs PostgreSQL or SQLite"),
        ({**SQLITE, "NAME": ":memory:"}, "in memory, which no other process sees"),
        ({**SQLITE, "NAME": "file:memorydb_default?mode=memory&cache=shared"}, "in memory"),
        ({**SQLITE, "AUTOCOMMIT": False}, "AUTOCOMMIT=False"),
        ({**POSTGRESQL, "OPTIONS": {"assume_role": "app"}}, "cannot take over: assume_role"),
        ({"ENGINE": POSTGRESQL["ENGINE"]}, "neither a NAME nor"),
    ],
)
def test_a_database_that_cannot_be_the_ledger_is_refused(entry: dict[str, Any], why: str) -> None:
    with djangos.databases(ledger=entry), pytest.raises(ConfigurationError, match=why):
        url_of(LEDGER)
