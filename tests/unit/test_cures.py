"""A ledger that does not answer: what is true of the call that met it, and what mends the database."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import AppConfig, apps
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from agent_tasks import Agent, AgentTask, done
from agent_tasks.boundary import Boundary, Point
from agent_tasks.cures import cure_of, migrate_first
from agent_tasks.database import open_engine
from agent_tasks.errors import LedgerUnavailable
from tests.djangos import set_up_django
from tests.one_process import OneProcess


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


def cut(here: OneProcess, moment: str, name: str = "enqueue") -> None:
    """Let the connection of each commit of this name break before it is sent, or before its answer comes."""

    def observe(point: Point) -> None:
        if (point.name, point.moment) == (name, moment):
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    here.runtime.boundary.observer = observe


@pytest.fixture
def order(here: OneProcess) -> Agent:
    return here.agent(create=lambda _state: done("made"))


def test_a_run_that_was_not_made_is_said_not_to_be(here: OneProcess, order: Agent) -> None:
    cut(here, "before")
    with pytest.raises(
        LedgerUnavailable, match=r"closed the .* No run was made: check .* the server, then call again\.$"
    ):
        order.enqueue({}, run_id="run-1")
    assert here.counts()["agent_runs"] == 0


def test_a_run_that_may_have_been_made_is_said_to_be_found_by_its_names(here: OneProcess, order: Agent) -> None:
    cut(here, "after")
    with pytest.raises(LedgerUnavailable) as said:
        order.enqueue({}, run_id="run-1", dedupe_key="cart-42")
    assert str(said.value).endswith(
        "The run may have been made, since only the answer is missing: check agent_database_url and the server, then call "
        "again with the same id ('run-1') or dedupe key ('cart-42'), which finds it."
    )
    assert here.counts()["agent_runs"] == 1
    here.runtime.boundary.observer = None
    assert order.enqueue({}, dedupe_key="cart-42").run_id == "run-1"


def test_a_call_of_a_plain_task_hears_the_same(here: OneProcess) -> None:
    @here.app.task(base=AgentTask, tools=[], shared=False, name="pay")
    def pay() -> None: ...

    cut(here, "before")
    with pytest.raises(LedgerUnavailable, match=r"No run was made: .*, then call again\.$"):
        pay.delay()
    cut(here, "after")
    with pytest.raises(
        LedgerUnavailable, match=r"may have been made, .* call again with the same id \('call-1'\), which"
    ):
        pay.apply_async(task_id="call-1")


@pytest.mark.parametrize("server", ["postgres", "mysql"])
@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"database": "nowhere"}, r"create the database \((createdb NAME, )?.*agent db upgrade`, then try again"),
        ({"username": "nobody", "password": "x"}, "mend the user (and the password )?in agent_database_url"),
        ({"host": "no-such-host.invalid"}, "mend the host's name in agent_database_url"),
        ({"port": 1}, "check agent_database_url and the server, then try again"),
    ],
)
def test_what_a_wrong_url_needs_is_named(
    server: str, change: dict[str, object], cure: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_database")()
    engine = open_engine(make_url(url).set(**change).render_as_string(hide_password=False))
    with pytest.raises(LedgerUnavailable, match=f"did not answer at 'read': .*Nothing was read: {cure}"):
        Boundary().read(engine, lambda connection: connection.exec_driver_sql("SELECT 1"))
    engine.dispose()


@pytest.mark.parametrize(
    "said",
    [
        "Access denied for user 'agents'@'localhost' (using password: YES)",
        "Access denied for user ''@'localhost' to database 'agents'",
    ],
)
def test_a_user_whom_an_anonymous_one_shadows_is_told_so(said: str) -> None:
    assert "DROP USER ''@'localhost', or create him @localhost" in cure_of(Exception(said))


def test_a_user_without_a_right_is_to_get_it() -> None:
    cure = cure_of(Exception("Access denied for user 'kim'@'%' to database 'agents'"))
    assert "grant him the database" in cure
    assert "DROP" not in cure


def test_an_sqlite_ledger_in_no_folder_says_to_make_it(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/nowhere/agent.db")
    with pytest.raises(
        LedgerUnavailable, match=r"unable to open database file.*make the folder that agent_database_url"
    ):
        Boundary().read(engine, lambda connection: connection.exec_driver_sql("SELECT 1"))


def test_in_a_django_project_missing_tables_are_made_by_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_django()
    import_module("agent_tasks.integrations.django.apps")  # which makes no project of this process
    assert "manage.py" not in migrate_first()
    installed = AppConfig("agent_tasks.integrations.django", import_module("agent_tasks.integrations.django"))
    monkeypatch.setitem(apps.app_configs, "agent_tasks", installed)
    assert migrate_first() == "Run `python manage.py migrate` (or `celery -A yourapp agent db upgrade`) once"
