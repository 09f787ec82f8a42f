"""Where the chains run: a database and a broker, and the app of a process there."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from celery import Celery

from benchmarks.machine import file_system
from tests import services

ROOT = Path(__file__).resolve().parents[1]

NOTES_VARIABLE, VARIANTS_VARIABLE = "AGENT_BENCH_NOTES", "AGENT_BENCH_VARIANTS"


@dataclass(frozen=True)
class Place:
    """A database and a broker.

    Attributes:
        name: of the kind of place.
        folder: of files that its processes share.
        environ: the settings of its processes, by the names of their variables.
        database: makes another empty database of the same kind, and returns its URL.
        versions: of database and broker.
        disk: what the database's files are on; on a tmpfs no commit waits for a disk.
    """

    name: str
    folder: Path
    environ: dict[str, str]
    database: Callable[[], str]
    versions: dict[str, str]
    disk: str

    def app(self, environ: dict[str, str]) -> Celery:
        """Make an app with the project's own settings under this environment."""
        return make_app({**self.environ, **environ})


def make_app(environ: dict[str, str]) -> Celery:
    """Make an app with the project's own settings, which the environment gives."""
    with patch.dict(os.environ, environ):
        settings = runpy.run_path(str(ROOT / "celeryconfig.py"))
    app = Celery("bench", set_as_current=False)
    app.conf.update({name: value for name, value in settings.items() if name.islower() and name[0] != "_"})
    return app


@contextmanager
def servers() -> Iterator[Place]:
    """PostgreSQL and Redis or Valkey, found as the tests find them.

    Raises:
        services.Unavailable: there is none.
    """
    import redis
    import sqlalchemy

    with ExitStack() as stack:
        session = stack.enter_context(services.session_folder())
        server = services.find("postgresql", session)
        database = stack.enter_context(services.databases(server))
        broker = stack.enter_context(services.redis_database(services.find("redis", session)))
        folder = stack.enter_context(_folder())
        engine = sqlalchemy.create_engine(server)
        with engine.connect() as connection:
            versions = {"PostgreSQL": str(connection.exec_driver_sql("SHOW server_version").scalar_one())}
        engine.dispose()
        with redis.Redis.from_url(broker) as client:
            said = client.info("server")
        versions |= {
            "Valkey" if "valkey_version" in said else "Redis": said.get("valkey_version", said["redis_version"])
        }
        environ = {"AGENT_BROKER_URL": broker, "AGENT_DATABASE_URL": database()}
        environ["AGENT_DATA_DIR"] = str(folder / "data")
        elsewhere = "whatever its server has" if services.URL_VARIABLES["postgresql"] in os.environ else None
        yield Place("servers", folder, environ, database, versions, elsewhere or file_system(session))


@contextmanager
def embedded() -> Iterator[Place]:
    """What needs no server: an SQLite file and a broker of files, as the settings have it by default."""
    import sqlite3

    with _folder() as folder:
        numbers = iter(range(1000))

        def database() -> str:
            return f"sqlite:///{folder}/ledger-{next(numbers)}.db"

        environ = {"AGENT_DATA_DIR": str(folder / "data"), "AGENT_BROKER_URL": "", "AGENT_DATABASE_URL": ""}
        versions = {"SQLite": sqlite3.sqlite_version}
        yield Place("embedded", folder, environ, database, versions, file_system(folder))


@contextmanager
def _folder() -> Iterator[Path]:
    # Workers that stop leave files behind for a moment.
    with TemporaryDirectory(prefix="agent-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {"servers": servers, "embedded": embedded}
