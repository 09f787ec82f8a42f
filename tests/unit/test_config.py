"""Settings: where they come from, what they refuse, and which broker an SQLite ledger may have.

The refusals with their whole messages are rows of `test_bad_input`.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from agent_tasks import Agent, done
from agent_tasks.config import Settings, setting_names
from agent_tasks.errors import ConfigurationError, SingleHostOnly
from agent_tasks.variables import variables_of

SQLITE, POSTGRES = "sqlite:///agent.db", "postgresql+psycopg://host/agents"
NUMBERS = [field.name for field in fields(Settings) if field.type in ("int", "float")]


def app_with(**settings: Any) -> Celery:
    app = Celery("settings", set_as_current=False)
    app.conf.update({"broker_url": "memory://", "agent_database_url": SQLITE, **settings})
    return app


def test_only_the_database_has_to_be_given() -> None:
    assert Settings.of(app_with()) == Settings(SQLITE)


def test_every_setting_is_read_under_its_name_with_a_prefix() -> None:
    given = Settings(
        POSTGRES,
        table_prefix="shop_",
        lease_seconds=30.5,
        sweep_seconds=2,
        ring_again_seconds=7,
        queue_depth=10,
        max_crashes=5,
        max_steps=50,
        max_batch=20,
        step_timeout_seconds=60,
        retry_backoff_seconds=0.5,
        retry_backoff_max_seconds=30,
        publish_max_retries=1,
        retention_days=90,
        dedupe_days=120,
        single_host=True,
        mode="observe",
    )
    # Where Django keeps the ledger is in tests/integration/test_django_transactions.py: it says the URL itself.
    assert [field.name for field in fields(Settings) if getattr(given, field.name) == field.default] == [
        "django_database"
    ]
    assert Settings.of(app_with(**{f"agent_{name}": value for name, value in vars(given).items()})) == given


def test_settings_can_come_from_a_module() -> None:
    class Module:
        broker_url = "memory://"
        agent_database_url = SQLITE
        agent_lease_seconds = 30

    app = Celery("settings", set_as_current=False)
    app.config_from_object(Module)
    assert Settings.of(app).lease_seconds == 30


def test_settings_are_read_again_when_they_are_asked_for_again() -> None:
    app = app_with()
    Settings.of(app)
    app.conf.agent_lease_seconds = 30
    assert Settings.of(app).lease_seconds == 30


def test_a_setting_of_none_is_not_set() -> None:
    assert Settings.of(app_with(agent_lease_seconds=None)) == Settings(SQLITE)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, "5", True, math.nan, math.inf, [1]], ids=str)
def test_a_number_is_above_nothing_and_ends(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"agent_{name} must be a number above 0, got "):
        Settings(SQLITE, **{name: value})


@pytest.mark.parametrize("prefix", ["", "9_", "Agent_", "agent-", "a" * 31, 'a"; DROP TABLE x; --', None, 7])
def test_a_prefix_is_a_plain_beginning_of_a_name(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="agent_table_prefix must be 1 to 30 of the characters"):
        Settings(SQLITE, table_prefix=prefix)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("agent_lease_second", "lease_seconds"), ("agent_database", "database_url"), ("agent_max_crash", "max_crashes")],
)
def test_a_near_miss_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} is not a setting\. Did you mean 'agent_{meant}'\?"):
        Settings.of(app_with(**{name: 5}))


def test_settings_of_somebody_else_are_left_alone() -> None:
    assert Settings.of(app_with(agent_007="James", other_lease_second=5)) == Settings(SQLITE)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("AGENT_DATABASE_URI", "AGENT_DATABASE_URL"),
        ("AGENT_DATABSE_URL", "AGENT_DATABASE_URL"),
        ("AGENT_LEASE_SECOND", "AGENT_LEASE_SECONDS"),
        ("AGENT_MAX_STEP", "AGENT_MAX_STEPS"),
        ("AGENT_BROKER_URI", "AGENT_BROKER_URL"),
        ("AGENT_RESULTS_BACKEND", "AGENT_RESULT_BACKEND"),
        ("AGENT_DATADIR", "AGENT_DATA_DIR"),
        ("AGENT_QUUEE", "AGENT_QUEUE"),
        ("AGENT_MDOE", "AGENT_MODE"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_one_that_was_meant(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "7")
    with pytest.raises(
        ConfigurationError, match=rf"^{variable} in the environment is not read\. Did you mean {meant}\?$"
    ):
        Settings.of(app_with())


def test_neither_a_caller_nor_a_worker_begins_under_a_misspelt_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_DATABASE_URI", POSTGRES)
    app = app_with(agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}")
    order = Agent("order", app=app)
    order.step(lambda _state: done(), name="create")
    with pytest.raises(ConfigurationError, match="Did you mean AGENT_DATABASE_URL"):
        order.enqueue({})
    with pytest.raises(ConfigurationError, match="Did you mean AGENT_DATABASE_URL"):
        app.WorkController(pool="solo", hostname="celery@test")
    assert list(tmp_path.iterdir()) == []


#: Those of programs that also call theirs agents, and what people who write agents call their own.
OF_OTHERS = [
    "AGENT_MODEL",
    "AGENT_MODELS",
    "AGENT_MODEL_NAME",
    "AGENT_NAME",
    "AGENT_ID",
    "AGENT_OS",
    "AGENT_VERSION",
    "AGENT_WORKFOLDER",
    "AGENT_WORKDIR",
    "AGENT_JOBNAME",
    "AGENT_TEMPDIRECTORY",
    "AGENT_TOOLSDIRECTORY",
    "AGENT_HOMEDIRECTORY",
    "AGENT_MACHINENAME",
    "AGENT_PROXYURL",
    "AGENT_API_KEY",
    "AGENT_API_URL",
    "AGENT_BASE_URL",
    "AGENT_TIMEOUT",
    "AGENT_TIMEOUT_SECONDS",
    "AGENT_MAX_TOKENS",
    "AGENT_MAX_TURNS",
    "AGENT_MAX_RETRIES",
    "AGENT_MAX_ITERATIONS",
    "AGENT_DATABASE_USER",
    "AGENT_DATABASE_PASSWORD",
    "AGENT_LOG_LEVEL",
    "AGENT_TEST_DATABASE_URL",
    "AGENT_TEST_POSTGRES_URL",
    "agent_database_uri",
]


def test_variables_of_somebody_else_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_OTHERS:
        monkeypatch.setenv(name, "x")
    assert Settings.of(app_with()) == Settings(SQLITE)


def test_a_variable_of_nothing_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_DATABASE_URI", " ")
    assert Settings.of(app_with()) == Settings(SQLITE)


def test_a_variable_that_the_app_reads_under_a_name_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_DATABASE_URI", SQLITE)
    monkeypatch.setenv("AGENT_LEASE_SECOND", "5")
    assert Settings.of(app_with(agent_lease_seconds=5.0)).lease_seconds == 5


def test_the_variables_are_those_that_the_settings_file_reads() -> None:
    text = (Path(__file__).resolve().parents[2] / "celeryconfig.py").read_text()
    assert set(variables_of(setting_names())) == set(re.findall(r'\("(AGENT_[A-Z_]+)", ', text))


LOCAL = ["memory://", "filesystem://", "sqla+sqlite:///broker.db", "sqlalchemy+sqlite:///broker.db"]
SHARED = ["redis://host", "rediss://host", "redis+socket:///run/redis", "amqp://host", "pyamqp://host", "sqs://", None]


@pytest.mark.parametrize("url", [*LOCAL, LOCAL, ";".join(LOCAL)], ids=str)
def test_a_broker_on_this_host_goes_with_an_sqlite_ledger(url: Any) -> None:
    assert Settings.of(app_with(broker_url=url)) == Settings(SQLITE)


@pytest.mark.parametrize(
    "url", [*SHARED, ["memory://", "redis://host"], "memory://;redis://host", "redis://one;redis://two"], ids=str
)
def test_a_broker_that_hosts_share_does_not(url: Any) -> None:
    with pytest.raises(SingleHostOnly, match=r"the broker \(\w+\) can be reached by other hosts"):
        Settings.of(app_with(broker_url=url))
    assert Settings.of(app_with(broker_url=url, agent_single_host=True)).single_host
    assert Settings.of(app_with(broker_url=url, agent_database_url=POSTGRES)).database_url == POSTGRES


def test_the_pause_before_a_doubtful_request_doubles_up_to_a_limit() -> None:
    settings = Settings(SQLITE, retry_backoff_seconds=2, retry_backoff_max_seconds=15)
    assert [settings.backoff_seconds(tries) for tries in range(6)] == [2, 2, 4, 8, 15, 15]
