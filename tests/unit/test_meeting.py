"""Settings that work in each process, and with which a worker and its callers may miss each other, are warned of once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from agent_tasks import meeting
from agent_tasks.config import Settings
from agent_tasks.meeting import warn_if_missed
from agent_tasks.runtime import Runtime
from tests.apps import close
from tests.pages import worker_of

SERVER = "postgresql+psycopg://host/agents"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting, "_said", set())
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("meeting", broker="memory://", set_as_current=False)
    app.conf.agent_database_url = "sqlite:///data/../agent.db"
    yield app
    close(app)


def said(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if getattr(record, "action", "") == "may_be_missed"]


def test_a_relative_path_is_warned_of_once_with_the_ledger_that_it_means(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for _ in range(2):
        warn_if_missed(Settings("sqlite:///agent.db"), "memory://")
    (one,) = said(caplog)
    assert one.startswith("agent_database_url='sqlite:///agent.db' is relative to the current folder")
    assert f"so it means {tmp_path}/agent.db here" in one
    assert one.endswith(f"Write 'sqlite:///{tmp_path}/agent.db'")


def test_a_relative_name_among_djangos_databases_is_called_what_its_user_calls_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    warn_if_missed(Settings("sqlite:///db.sqlite3", django_database="default"), "memory://")
    (one,) = said(caplog)
    assert one.startswith("NAME of DATABASES['default'] is relative")
    assert one.endswith(f"Write '{tmp_path}/db.sqlite3'")


def test_a_caller_is_warned(caplog: pytest.LogCaptureFixture, app: Celery, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    runtime = Runtime.of(app, Settings.of(app))
    runtime.engine.dispose()
    assert len(said(caplog)) == 1


def test_a_worker_is_warned(caplog: pytest.LogCaptureFixture, app: Celery, tmp_path: Path) -> None:
    from agent_tasks import Agent, done

    (tmp_path / "data").mkdir()
    agent = Agent("missed", app=app)
    agent.step(lambda _state: done(None), name="only")
    with worker_of(app):
        pass
    assert len(said(caplog)) == 1


@pytest.mark.parametrize("broker", ["filesystem://", ["redis://host", "filesystem://"], "redis://host;filesystem://"])
def test_a_folder_as_the_broker_of_a_server_s_ledger_is_warned_of(
    caplog: pytest.LogCaptureFixture, broker: Any
) -> None:
    warn_if_missed(Settings(SERVER), broker)
    (one,) = said(caplog)
    assert "the ledger is a postgresql server, and the broker a folder of this host" in one
    assert "AGENT_BROKER_URL" in one


@pytest.mark.parametrize(
    ("settings", "broker"),
    [
        (Settings("sqlite:////var/lib/agent.db"), "filesystem://"),
        (Settings("sqlite:///file:/var/lib/agent.db?uri=true"), "memory://"),
        (Settings(SERVER), "redis://host"),
        (Settings(SERVER), "memory://"),
        (Settings(SERVER), None),
        (Settings(SERVER, single_host=True), "filesystem://"),
    ],
)
def test_nothing_is_said_where_all_meet(caplog: pytest.LogCaptureFixture, settings: Settings, broker: Any) -> None:
    warn_if_missed(settings, broker)
    assert said(caplog) == []
