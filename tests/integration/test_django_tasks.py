"""Plain tasks of a Django project: its base class, and Celery's shortcuts for transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from celery import Celery
from django.db import connections, transaction

from agent_tasks.errors import RunNotFound
from agent_tasks.integration import AppState
from agent_tasks.integrations.django.task import AgentTask
from agent_tasks.states import RunStatus
from tests import djangos
from tests.integration.test_django_transactions import LEDGER, Shop, orders, place


class Greeting(Shop):
    """A plain task of a Django project."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.celery = Celery("greeting", broker="memory://", backend="cache+memory://", set_as_current=False)

        @self.celery.task(base=AgentTask, tools=[], shared=False)
        def greet(name: str) -> str:
            return f"hello {name}"

        self.greet: Any = greet
        AppState.of(self.celery).use_runtime(self.runtime)

    def close(self) -> None:
        super().close()
        self.celery.close()


@pytest.fixture
def here(database_url: str) -> Iterator[Greeting]:
    with djangos.databases(ledger=djangos.settings_of(database_url)), closing(Greeting(database_url)) as greeting:
        yield greeting


SHORTCUTS: dict[str, Callable[[Any], Any]] = {
    "delay_on_commit": lambda task: task.delay_on_commit("kim"),
    "apply_async_on_commit": lambda task: task.apply_async_on_commit(("kim",), priority=3),
}


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_a_call_is_written_in_the_transaction_and_rung_for_after_it(here: Greeting, shortcut: str) -> None:
    with transaction.atomic(using=LEDGER):
        place("a")
        result = SHORTCUTS[shortcut](here.greet)
        assert (here.runs(), here.rings()) == (0, [])
        with pytest.raises(RunNotFound):
            result.get(timeout=5)
    assert (orders(), here.rings()) == (["a"], [result.id])
    here.work(here.greet.job)
    assert here.greet.run_handle(result).status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_a_call_of_a_transaction_that_is_rolled_back_was_never_made(here: Greeting, shortcut: str) -> None:
    with suppress(ZeroDivisionError), transaction.atomic(using=LEDGER):
        SHORTCUTS[shortcut](here.greet)
        raise ZeroDivisionError
    assert (here.runs(), here.rings()) == (0, [])


def test_outside_of_a_transaction_the_call_is_made_at_once(here: Greeting) -> None:
    here.greet.delay_on_commit("kim")
    assert (here.runs(), len(here.rings())) == (1, 1)


def test_a_call_for_another_databases_commit_waits_for_that_one_in_memory(here: Greeting, tmp_path: Any) -> None:
    entry = djangos.settings_of(f"sqlite:///{tmp_path / 'other.db'}")
    with djangos.databases(default=entry):
        with transaction.atomic():
            assert here.greet.apply_async_on_commit(("kim",), using="default") is None
            assert here.runs() == 0
        assert here.runs() == 1


def test_in_eager_mode_the_call_is_made_by_the_commit(here: Greeting) -> None:
    here.celery.conf.task_always_eager = True
    with transaction.atomic(using=LEDGER):
        assert here.greet.apply_async_on_commit(("kim",), using=LEDGER) is None
        assert not connections[LEDGER].needs_rollback
    assert here.runs() == 0  # it ran to its end on a ledger of its own


def test_an_eager_call_ignores_in_whose_transaction_it_is(here: Greeting) -> None:
    here.celery.conf.task_always_eager = True
    with transaction.atomic(using=LEDGER):
        result = here.greet.apply_async(("kim",), ledger_connection=connections[LEDGER])
    assert result.get() == "hello kim"


def test_an_observed_task_keeps_celerys_own_shortcuts(here: Greeting) -> None:
    sent: list[Any] = []
    here.celery.conf.agent_mode = "observe"

    @here.celery.task(base=AgentTask, name="seen", shared=False)
    def seen(name: str) -> None:
        """Be sent."""

    seen.apply_async = lambda *args, **options: sent.append((args, options))
    with transaction.atomic(using=LEDGER):
        assert seen.apply_async_on_commit(("kim",), using=LEDGER) is None
        assert sent == []
    assert sent == [((("kim",),), {})]
