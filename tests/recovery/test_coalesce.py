"""Steps that share a message, in real workers: killed between checkpoints, told to stop, and watched (I2, I4, I5, I7)."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from celery.events.state import State

from agent_tasks.heartbeat import is_alive
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.testing import check_invariants
from tests.apps import close
from tests.recovery.fleet import Fleet
from tests.recovery.places import on, on_each
from tests.recovery.stage import SHORT
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 120
STEPS = ["think", "order", "weigh", "choose", "pay"]


class Place:
    """One ledger, one broker and one folder, with the module that workers load."""

    def __init__(self, folder: Path, environ: dict[str, str], module: Any, pool: str) -> None:
        self.folder, self.environ, self.module, self.pool = folder, environ, module, pool
        self.runtime = AppState.of(module.app).runtime

    def workers(self, count: int = 1, **options: Any) -> Fleet:
        options = {"pool": self.pool, "app": "tests.recovery.coalesce_app", **options}
        return Fleet([self.environ] * count, self.folder / "logs", **options)

    def bodies(self) -> list[tuple[str, str, int, int]]:
        """Return run, step, seq and process of each body that began."""
        found = [line.split() for line in (self.folder / "bodies").read_text().split("\n")[:-1]]
        return [(run, step, int(seq), int(pid)) for run, step, seq, pid in found]

    def row(self, run_id: str) -> Any:
        with self.runtime.engine.connect() as connection:
            return self.runtime.runs.find(connection, run_id)

    def wait(self, condition: Callable[[], object], what: str, fleet: Fleet | None = None) -> None:
        """Wait for something, and say where the runs stand if it does not happen."""
        try:
            wait_until(lambda: (fleet is None or fleet.check()) and condition(), what, LIMIT)
        except AssertionError as error:
            with self.runtime.engine.connect() as connection:
                rows = connection.execute(self.runtime.runs.table.select()).mappings().all()
            facts = ("run_id", "status", "seq", "next_step", "attempts", "crashes", "fence", "due_at")
            stand = [{fact: row[fact] for fact in facts} for row in rows]
            raise AssertionError(f"{error}: {stand}; bodies {self.bodies()}") from error

    def gate(self, run_id: str, step: str) -> Path:
        path = self.folder / f"gate {run_id} {step}"
        path.touch()
        return path


@contextmanager
def at(folder: Path, services: dict[str, str], pool: str = "prefork") -> Iterator[Place]:
    environ = {
        "AGENT_DATA_DIR": str(folder / "data"),
        "TMPDIR": str(folder),
        "AGENT_COALESCE_FOLDER": str(folder),
        **services,
        **SHORT,
    }
    for name in ("world", "bodies"):
        (folder / name).touch()
    with patch.dict(os.environ, environ):
        module = importlib.import_module("tests.recovery.coalesce_app")
        runtime = AppState.of(module.app).runtime
        upgrade(runtime.engine)
        try:
            yield Place(folder, environ, module, pool)
        finally:
            runtime.engine.dispose()
            close(module.app)
            del sys.modules["tests.recovery.coalesce_app"]


@pytest.fixture
def on_servers(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Place]:
    with at(tmp_path, {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}) as place:
        yield place


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Place]:
    with at(tmp_path, {}) as place:
        yield place


@pytest.fixture
def in_threads(postgres_database: Callable[[], str], redis_url: str, tmp_path: Path) -> Iterator[Place]:
    with at(tmp_path, {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}, "threads") as place:
        yield place


@pytest.fixture
def in_greenlets(
    gevent_installed: None, postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> Iterator[Place]:
    with at(tmp_path, {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": redis_url}, "gevent") as place:
        yield place


@pytest.fixture
def in_solo(tmp_path: Path) -> Iterator[Place]:
    with at(tmp_path, {}, "solo") as place:
        yield place


@pytest.fixture
def placed(where: str, request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(where)
    return found


@on_each
@pytest.mark.parametrize("checkpoints", ["each", "boundaries"])
@pytest.mark.parametrize("killed", ["child", "worker"])
def test_a_kill_between_checkpoints_goes_on_from_the_last_one_and_repeats_no_effect(
    placed: Place, checkpoints: str, killed: str
) -> None:
    with placed.workers() as fleet:
        gate = placed.gate("killed", "choose")
        run = getattr(placed.module, checkpoints).enqueue({}, run_id="killed")
        wait_until(lambda: "choose" in (step for _, step, _, _ in placed.bodies()), "it came to the gate", LIMIT)
        # `order` called a tool; `weigh`, behind it, is committed or held.
        assert placed.row("killed")["seq"] == (3 if checkpoints == "each" else 2)
        child, worker = placed.bodies()[-1][3], fleet.workers[0].pid
        os.kill(child if killed == "child" else worker, signal.SIGKILL)
        placed.wait(lambda: not is_alive(child), "it is dead", fleet)  # the kernel takes a dead worker's children along
        gate.unlink()
        placed.wait(lambda: run.status in FINISHED, "the run ended", fleet)

    assert run.get(timeout=0) == [*STEPS, "ORDER", "PAY"]
    began = Counter(step for _, step, _, _ in placed.bodies())
    assert began == {
        step: 2 if step == "choose" or (step, checkpoints) == ("weigh", "boundaries") else 1 for step in STEPS
    }
    assert {(step, seq) for _, step, seq, _ in placed.bodies()} == {(step, n) for n, step in enumerate(STEPS, 1)}
    happened = Counter((placed.folder / "world").read_text().split())
    assert sorted(happened.values()) == [1, 1]
    assert happened.keys() == {operation.operation_id for operation in run.operations()}
    with placed.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


@on("on_servers", "embedded", "in_threads", "in_greenlets", "in_solo")
def test_a_worker_that_is_told_to_stop_leaves_the_next_step_to_others(placed: Place) -> None:
    """Without being told, it would go on for ten minutes."""
    with placed.workers() as fleet:
        run = placed.module.restless.enqueue({}, run_id="restless")
        wait_until(lambda: len(placed.bodies()) > 3, "steps follow each other", LIMIT)
        (worker,) = (each.pid for each in fleet.workers)
        fleet.retire(worker)
        wait_until(lambda: not is_alive(worker), "the worker has stopped", LIMIT)
        left = placed.row("restless")
        assert (left["status"], left["crashes"], left["lease_token"]) == (RunStatus.QUEUED, 0, None)
    (placed.folder / "enough").touch()
    with placed.workers(name="next"):
        wait_until(lambda: run.status in FINISHED, "the run ended", LIMIT)
    assert run.get(timeout=0) == left["seq"] + 1


@pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")
@pytest.mark.parametrize("checkpoints", ["each", "boundaries"])
def test_those_who_watch_a_worker_see_each_step_under_its_own_name(on_servers: Place, checkpoints: str) -> None:
    """As Flower does, by Celery's events: it turns them on in the worker and keeps them in Celery's own state."""
    app, state = on_servers.module.app, State()
    with on_servers.workers(), app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        thread = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=None), daemon=True)
        thread.start()
        wait_until(lambda: app.control.enable_events(reply=True, timeout=1), "events are sent", LIMIT)
        run = getattr(on_servers.module, checkpoints).enqueue({}, run_id="watched")
        wait_until(lambda: run.status in FINISHED, "the run ended", LIMIT)

        def shown() -> list[Any]:
            return sorted((each for each in list(state.tasks.values()) if each.ready), key=lambda each: each.args)

        wait_until(lambda: len(shown()) == len(STEPS), "all steps are shown", LIMIT)
        receiver.should_stop = True
    assert [each.name for each in shown()] == [f"{checkpoints}.{step}" for step in STEPS]
    assert {each.state for each in shown()} == {"SUCCESS"}
    assert [each.args for each in shown()] == [f"['watched', {seq}]" for seq in range(1, 6)]
    first, *others = shown()
    assert (first.result, first.parent_id) == ("'5 steps'", None)
    assert {each.parent_id for each in others} == {first.uuid}
    assert len({each.uuid for each in shown()}) == len(STEPS)
    assert {each.worker.hostname for each in shown()} == {first.worker.hostname}
    assert all(each.received <= each.started <= each.succeeded for each in others)
