"""PgBouncer between the workers and PostgreSQL: many clients on few sessions, which know nothing of each other's statements."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from agent_tasks import Agent, Operation, done, tool
from agent_tasks.testing import check_invariants
from tests.keeper import Server, free_port, unprivileged_user
from tests.one_process import OneProcess

#: Workers, and the runs of each.
WORKERS, RUNS = 4, 8


@pytest.fixture
def pooled(postgres_database: Callable[[], str]) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Factory of a ledger behind a PgBouncer of its own: its URL there, and its own."""
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        missing = "no pgbouncer for the tests: install it (on Debian: apt install pgbouncer)."
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    servers: list[Server] = []
    folders = ExitStack()

    def start(mode: str) -> tuple[str, str]:
        url, port, user = make_url(postgres_database()), free_port(), unprivileged_user()
        # Folders of tests lie where another user may not enter.
        home = Path(folders.enter_context(TemporaryDirectory(prefix="agent-pgbouncer-", dir="/tmp")))
        if user is not None:
            shutil.chown(home, user)
        (home / "pgbouncer.ini").write_text(_settings(url, port, mode))
        through = url.set(port=port).render_as_string(hide_password=False)
        server = Server(through, [str(binary), str(home / "pgbouncer.ini")], home, lambda: _answers(through), user=user)
        servers.append(server)
        server.start()
        return through, url.render_as_string(hide_password=False)

    with folders:
        yield start
        for server in servers:
            server.stop()


def _settings(url: URL, port: int, mode: str) -> str:
    size, password = 2 if mode == "transaction" else 50, f" password={url.password}" if url.password else ""
    return (
        f"[databases]\n* = host={url.host} port={url.port} user={url.username}{password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {size}\n"
    )


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url.replace("+psycopg", "")).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize(
    ("mode", "options"), [("transaction", ""), ("transaction", "?prepare_threshold=None"), ("session", "")]
)
def test_behind_a_pooler_each_effect_happens_once_and_nobody_is_asked(
    pooled: Callable[[str], tuple[str, str]], mode: str, options: str, caplog: pytest.LogCaptureFixture
) -> None:
    through, direct = pooled(mode)
    own = create_engine(direct, poolclass=NullPool)
    with own.begin() as connection:
        connection.execute(text("CREATE TABLE effects (what text)"))
    OneProcess(through + options).close()  # brings the tables
    effects: Counter[str] = Counter()
    workers = [threading.Thread(target=_work, args=(through + options, f"worker-{n}", effects)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with own.connect() as connection:
        assert check_invariants(connection) == []
        statuses = connection.execute(text("SELECT status, fence, crashes FROM agent_runs")).all()
        assert [tuple(row) for row in statuses] == [("succeeded", 2, 0)] * WORKERS * RUNS
        assert connection.execute(text("SELECT count(*) FROM agent_inbox")).scalar_one() == 0
        assert connection.execute(text("SELECT count(*) FROM effects")).scalar_one() == WORKERS * RUNS
    assert effects == dict.fromkeys(effects, 1)
    assert len(effects) == 2 * WORKERS * RUNS
    forgotten = caplog.text.count("add prepare_threshold=None to agent_database_url")
    assert bool(forgotten) == (mode == "transaction" and not options)


def _work(url: str, name: str, effects: Counter[str]) -> None:
    """Be a worker, with connections of its own, that carries its runs out."""

    @tool(effect="manual", timeout=timedelta(seconds=60))
    def charge(what: str) -> str:
        effects[what] += 1
        return what

    @tool(effect="transactional", bind=True)
    def book(operation: Operation, what: str) -> None:
        assert operation.connection is not None
        operation.connection.execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})

    with closing(OneProcess(url, migrated=False)) as here:

        def pay(state: Any) -> Any:
            charge(f"{state['name']} hat")
            book(state["name"])
            return agent.steps["send"]

        def send(state: Any) -> Any:
            return done(charge(f"{state['name']} coat"))

        agent: Agent = here.agent(charge, book, name="shop", pay=pay, send=send)
        for number in range(RUNS):
            here.run(agent, f"{name}-{number}", name=f"{name}-{number}")
