"""The settings file that users copy: works with nothing set, and the environment overrides every line of it."""

from __future__ import annotations

import dataclasses
import os
import runpy
from pathlib import Path
from typing import Any

import kombu
import pytest
import sqlalchemy
from celery import Celery
from celery.app.defaults import SETTING_KEYS

from agent_tasks.config import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the file with these variables and nothing of ours beside them."""

    def run(**variables: str) -> dict[str, Any]:
        for name in [name for name in os.environ if name.startswith("AGENT_")]:
            monkeypatch.delenv(name)
        for name, value in {"AGENT_DATA_DIR": str(tmp_path / "data"), **variables}.items():
            monkeypatch.setenv(name, value)
        names = runpy.run_path(str(ROOT / "celeryconfig.py"))
        return {name: value for name, value in names.items() if name.islower() and not name.startswith("_")}

    return run


def test_with_nothing_set_broker_and_ledger_are_in_the_data_folder(load: Any, tmp_path: Path) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.update(load())
    with app.connection_for_write() as connection:
        queue = connection.SimpleQueue("agents")
        queue.put({"run_id": "r1"})
        queue.close()
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("agents")
        assert queue.get(timeout=10).payload == {"run_id": "r1"}
        queue.close()
    engine = sqlalchemy.create_engine(app.conf.agent_database_url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE word (id INTEGER)"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data" / "agent.db").exists()


def test_the_results_of_plain_tasks_are_in_the_data_folder_unless_a_network_broker_is_set(
    load: Any, tmp_path: Path
) -> None:
    assert load()["result_backend"] == f"db+sqlite:///{tmp_path / 'data' / 'results.db'}"
    assert load(AGENT_BROKER_URL="redis://host:6379/0")["result_backend"] is None
    assert load(AGENT_RESULT_BACKEND="rpc://")["result_backend"] == "rpc://"


def test_the_data_folder_stands_beside_the_file_wherever_a_process_starts(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(AGENT_DATA_DIR="", AGENT_BROKER_URL="memory://", AGENT_DATABASE_URL="sqlite:///elsewhere.db")
    assert settings["agent_database_url"] == "sqlite:///elsewhere.db"
    assert list(tmp_path.iterdir()) == []


def test_a_relative_data_folder_is_made_absolute(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = load(AGENT_DATA_DIR="here")["broker_transport_options"]
    assert options["data_folder_in"] == str(tmp_path / "here" / "broker" / "queues")


def test_servers_from_the_environment_leave_no_folder(load: Any, tmp_path: Path) -> None:
    settings = load(AGENT_BROKER_URL="redis://broker/3", AGENT_DATABASE_URL="postgresql+psycopg://ledger/agents")
    assert settings["broker_url"] == "redis://broker/3"
    assert settings["agent_database_url"] == "postgresql+psycopg://ledger/agents"
    assert "visibility_timeout" not in settings["broker_transport_options"]
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_in_one_of_djangos_databases_needs_no_url_beside_it(load: Any, tmp_path: Path) -> None:
    settings = load(AGENT_DJANGO_DATABASE="default", AGENT_BROKER_URL="redis://broker/3")
    assert (settings["agent_django_database"], settings["agent_database_url"]) == ("default", "")
    assert list(tmp_path.iterdir()) == []


def test_every_setting_of_the_engine_is_listed_with_its_default(load: Any) -> None:
    listed = {name: value for name, value in load().items() if name.startswith("agent_")}
    defaults = {f"agent_{field.name}": field.default for field in dataclasses.fields(Settings)}
    defaults["agent_database_url"] = listed["agent_database_url"]
    assert listed == defaults


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_each_setting_of_the_engine_can_come_from_the_environment(field: Any, load: Any) -> None:
    value = {"str": "x", "float": 7.5, "int": 7, "bool": True}[field.type.removesuffix(" | None")]
    assert load(**{f"AGENT_{field.name.upper()}": str(value)})[f"agent_{field.name}"] == value


def test_nothing_global_is_said_about_acknowledging(load: Any) -> None:
    assert not {"task_acks_late", "task_reject_on_worker_lost"} & load().keys()


def test_celery_knows_every_setting_that_is_not_the_engines(load: Any) -> None:
    assert {name for name in load() if not name.startswith("agent_")} - SETTING_KEYS == {"os"}


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("AGENT_LEASE_SECONDS", "soon", "AGENT_LEASE_SECONDS must be a number of seconds, got 'soon'"),
        ("AGENT_QUEUE_DEPTH", "1.5", "AGENT_QUEUE_DEPTH must be a whole number, got '1.5'"),
        ("AGENT_SINGLE_HOST", "perhaps", "AGENT_SINGLE_HOST must be one of 1, true, .*, got 'perhaps'"),
    ],
)
def test_a_value_of_no_use_is_refused_with_its_variable(variable: str, value: str, expected: str, load: Any) -> None:
    with pytest.raises(ValueError, match=expected):
        load(**{variable: value})


def test_the_embedded_broker_is_the_transport_that_kombu_calls_filesystem(load: Any) -> None:
    assert kombu.Connection(load()["broker_url"]).transport_cls == "filesystem"
