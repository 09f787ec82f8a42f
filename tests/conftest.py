"""Fixtures for every suite: databases, a broker, and the table of services at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from celery import _state

from tests import services
from tests.service_table import ServiceTable

# No deadline: a machine that is busy with real workers is no failure of the code under test.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.load_profile("here")

SHARED = pytest.StashKey[contextlib.ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ServiceTable(config), "service-table")
    if not hasattr(config, "workerinput"):
        config.stash[SHARED] = contextlib.ExitStack()
        config.stash[SHARED].enter_context(services.session_folder())
    # Remembered now: else a test that sets TMPDIR for a while would choose its own folder for all that follow.
    tempfile.gettempdir()


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        config.stash[SHARED].close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow tests, in their random order: at the end no process waits for another one's long test."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _no_task_is_shared_with_later_tests() -> Iterator[None]:
    """A task that a test declares with an app of its own would else become one of each later test's app, as Celery has it."""
    shared = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(shared)


def server(service: str) -> str:
    """Find a server; a missing one skips the test on a developer's machine and fails it in CI."""
    with _or_skipped():
        return services.find(service, Path(os.environ[services.SHARED_VARIABLE]))


@contextlib.contextmanager
def _or_skipped() -> Iterator[None]:
    try:
        yield
    except services.Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """URL of the PostgreSQL server's own database, to make others from."""
    return server("postgresql")


@pytest.fixture(scope="session")
def redis_server() -> str:
    """URL of the Redis or Valkey server, without a database number."""
    return server("redis")


@pytest.fixture(scope="session")
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of a PostgreSQL database that all tests of this process share; `postgres_database` makes fresh ones."""
    with services.databases(postgres_server) as create:
        yield create()


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Factory of fresh PostgreSQL databases: each call returns the URL of a new one, dropped after the test."""
    with services.databases(postgres_server) as create:
        yield create


@pytest.fixture(scope="session")
def mysql_server() -> str:
    """URL of the MariaDB or MySQL server's own database, to make others from."""
    return server("mysql")


@pytest.fixture(scope="session")
def mysql_url(mysql_server: str) -> Iterator[str]:
    """URL of a MariaDB database that all tests of this process share; `mysql_database` makes fresh ones."""
    with services.databases(mysql_server) as create:
        yield create()


@pytest.fixture
def mysql_database(mysql_server: str) -> Iterator[Callable[[], str]]:
    """Factory of fresh MariaDB databases: each call returns the URL of a new one, dropped after the test."""
    with services.databases(mysql_server) as create:
        yield create


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """URL of an empty database on the Redis or Valkey server."""
    with services.redis_database(redis_server) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_server() -> str:
    """URL of the RabbitMQ server."""
    return server("rabbitmq")


@pytest.fixture
def rabbitmq_queue(rabbitmq_server: str) -> Iterator[dict[str, str]]:
    """The broker and a queue of its own on the RabbitMQ server, by the names of the settings' variables."""
    with services.rabbitmq_queue(rabbitmq_server) as queue:
        yield {"AGENT_BROKER_URL": rabbitmq_server, "AGENT_QUEUE": queue}


@pytest.fixture(scope="session")
def gevent_installed() -> None:
    """gevent can be imported; it is missing on a developer's machine that has an older environment."""
    with _or_skipped():
        if importlib.util.find_spec("gevent") is None:
            raise services.Unavailable("no gevent for the tests: it is not installed. Run `make setup`.")


@pytest.fixture
def own_server() -> Iterator[Callable[[str], services.OwnServer]]:
    """Factory of servers that the test may stop and start again."""
    with contextlib.ExitStack() as started:

        def start(service: str) -> services.OwnServer:
            with _or_skipped():
                return started.enter_context(contextlib.closing(services.OwnServer(service)))

        yield start


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh database; a test that asks for it runs once on SQLite and once on PostgreSQL.

    With the mark ``mariadb`` it runs on MariaDB too: what it is about is done with other statements there.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'agent.db'}"
    make = "postgres_database" if request.param == "postgresql" else "mysql_database"
    return str(request.getfixturevalue(make)())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any("database_url" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "database_url" in metafunc.fixturenames and not chosen:
        everywhere = metafunc.definition.get_closest_marker("mariadb") is not None
        names = ["sqlite", "postgresql", *(["mysql"] if everywhere else [])]
        metafunc.parametrize("database_url", names, indirect=True)
