"""Stages on real services."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recovery.app import CONF_VARIABLE, VISIBILITY_VARIABLE
from tests.recovery.stage import Stage, stage

#: RabbitMQ's replicated queues, the ones that it recommends.
QUORUM = {"task_default_queue_type": "quorum"}


@pytest.fixture
def on_servers(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage on PostgreSQL and Redis or Valkey."""
    with stage(tmp_path, {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}) as made:
        yield made


@pytest.fixture
def on_rabbitmq(
    postgres_database: Callable[[], str], rabbitmq_queue: dict[str, str], tmp_path: Path
) -> Iterator[Stage]:
    """A stage on PostgreSQL and RabbitMQ, with a quorum queue of its own."""
    services = {"AGENT_DATABASE_URL": postgres_database(), **rabbitmq_queue, CONF_VARIABLE: json.dumps(QUORUM)}
    with stage(tmp_path, services) as made:
        yield made


@pytest.fixture
def on_mysql(mysql_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage on MariaDB and Redis or Valkey."""
    with stage(tmp_path, {"AGENT_DATABASE_URL": mysql_database(), "AGENT_BROKER_URL": redis_url}) as made:
        yield made


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Stage]:
    """A stage on SQLite and files, which is the default."""
    with stage(tmp_path, {}) as made:
        yield made


@pytest.fixture
def redelivering(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose Redis gives out a message again that was not acked for two seconds."""
    services = {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}
    with stage(tmp_path, {**services, VISIBILITY_VARIABLE: "2"}) as made:
        yield made


@pytest.fixture
def in_threads(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage on PostgreSQL and Redis or Valkey, whose workers run steps in threads."""
    services = {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}
    with stage(tmp_path, services, pool="threads") as made:
        yield made


@pytest.fixture
def in_greenlets(
    gevent_installed: None, postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> Iterator[Stage]:
    """A stage on PostgreSQL and Redis or Valkey, whose workers run steps in greenlets."""
    services = {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}
    with stage(tmp_path, services, pool="gevent") as made:
        yield made


@pytest.fixture
def in_solo(tmp_path: Path) -> Iterator[Stage]:
    """A stage on SQLite and files, whose workers run one step at a time, where they listen."""
    with stage(tmp_path, {}, pool="solo") as made:
        yield made


@pytest.fixture
def placed(where: str, request: pytest.FixtureRequest) -> Stage:
    """The stage that `on_each` names."""
    found: Stage = request.getfixturevalue(where)
    return found


@pytest.fixture(autouse=True)
def _rubbish() -> Iterator[None]:
    """Collect garbage at the end of each test, so that what it left open is its own failure and not a later test's."""
    yield
    gc.collect()
