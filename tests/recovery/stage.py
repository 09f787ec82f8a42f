"""One ledger, one broker, one outside world and the person who is asked: what the tests of real kills stand on."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import redis
from kombu import Connection
from sqlalchemy import RowMapping

from agent_tasks import RunFailed, RunHandle, RunUnfinished
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.operator import Operator
from agent_tasks.demo.vendor import Vendor
from agent_tasks.inbox_client import open_inbox
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.states import FINISHED, RunStatus
from agent_tasks.testing import check_invariants
from agent_tasks.testing.kills import KILLS_VARIABLE, Kills
from tests.apps import close
from tests.recovery.app import FOLDER_VARIABLE, SHOP_VARIABLE, books, build
from tests.recovery.fleet import Fleet, fleet
from tests.shop import open_shop
from tests.waiting import wait_until

#: Short, so that many runs whose worker is killed take little time; the benchmark measures the default.
SHORT = {"AGENT_LEASE_SECONDS": "3", "AGENT_SWEEP_SECONDS": "0.5", "AGENT_RING_AGAIN_SECONDS": "2"}


class Body(NamedTuple):
    """A step's body that began: seconds since 1970, its process, and the worker that this is a child of."""

    at: float
    pid: int
    worker: int


class Stage:
    """The caller's side of the runs that workers work on.

    Args:
        folder: of everything that processes share.
        environ: of the workers, with the services in it.
        vendor: the outside world.
        pool: that workers have unless it is said otherwise.
    """

    def __init__(self, folder: Path, environ: dict[str, str], vendor: Vendor, pool: str = "prefork") -> None:
        self.folder, self.environ, self.vendor, self.pool = folder, environ, vendor, pool
        self.kills = Kills(environ[KILLS_VARIABLE])
        self.app, self.agent = build(environ)
        self.runtime = self.agent.runtime
        upgrade(self.runtime.engine)
        books.metadata.create_all(self.runtime.engine)
        self.operator = Operator(open_inbox(self.app), vendor.mail_log)
        self.fleet: Fleet | None = None
        self._gates, self._notes, self._misdeeds = folder / "gates", folder / "notes", folder / "misdeeds"
        for made in (self._gates, self._notes, self._misdeeds, folder / "ends"):
            made.mkdir()

    @contextlib.contextmanager
    def workers(self, *each: int | dict[str, str], **options: Any) -> Iterator[Fleet]:
        """Keep workers running: some number of them, or one for each of several environments besides the stage's own."""
        own: list[dict[str, str]] = []
        for one in each:
            own += [{}] * one if isinstance(one, int) else [one]
        environs = [{**self.environ, **environ} for environ in own]
        before = self.fleet
        with fleet(environs, self.folder / "logs", **{"pool": self.pool, **options}) as started:
            self.fleet = started
            yield started
        self.fleet = before

    # -- runs ----------------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        run_id: str,
        *,
        gated: bool = False,
        rung: bool = True,
        agent: str = "shop",
        misdeed: tuple[str, str] | None = None,
        end: str | None = None,
        recovery: str | None = None,
    ) -> RunHandle:
        """Start a run.

        Args:
            run_id: its id, and that of its cart.
            gated: it stays in its first body until the gate opens.
            rung: else it has no doorbell.
            agent: whose run it is.
            misdeed: where a body misbehaves (``after charge``), and what it does (see ``tests.recovery.app.MISDEEDS``).
            end: the misdeed that each try of its first step commits.
            recovery: its mode, if not its agent's.
        """
        if end is not None:
            (self.folder / "ends" / run_id).write_text(end)
        if gated:
            (self._gates / run_id).touch()
        if misdeed is not None:
            where, what = misdeed
            if what == "gate":
                (self._gates / f"{run_id} {where}").touch()
            (self._misdeeds / f"{run_id} {where}").write_text(what)
        cart = Cart(
            id=run_id,
            customer="Kim",
            email=f"{run_id}@example.com",
            currency="EUR",
            items=[{"name": "tea", "quantity": 2, "cents": 350}],
        )
        silent = contextlib.nullcontext() if rung else patch.object(self.runtime.bell, "ring", lambda _: None)
        with silent:
            return AppState.of(self.app).agents[agent].enqueue({"cart": cart}, run_id=run_id, recovery=recovery)

    def ring_by_hand(self, run_id: str) -> None:
        """Publish a doorbell of the run's first step, whatever the ledger says."""
        self.app.send_task("shop.order", args=(run_id, 1), queue=self.app.conf.task_default_queue)

    def empty_broker(self) -> None:
        """Delete everything in the broker: messages, and where it is easy the ones that were not acked, and bindings."""
        url = str(self.app.conf.broker_url)
        if url.startswith("redis:"):
            with redis.Redis.from_url(url) as database:
                database.flushdb()
        if url.startswith("amqp:"):
            with Connection(url) as connection:
                connection.default_channel.queue_purge(self.app.conf.task_default_queue)
        for path in Path(self.environ["AGENT_DATA_DIR"]).glob("broker/*/*"):
            path.unlink(missing_ok=True)  # a worker may have taken a message meanwhile

    def open_gate(self, run_id: str) -> None:
        """Let the body of a gated run go on, wherever its gate is."""
        gates = [gate for gate in self._gates.iterdir() if gate.name.split()[0] == run_id]
        assert gates, f"run {run_id} has no gate"
        for gate in gates:
            gate.unlink()

    def bodies(self, run_id: str) -> list[Body]:
        """When and where the body of a run came to its gate, each time."""
        path = self.folder / "bodies" / run_id
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [Body(float(at), int(pid), int(worker)) for at, pid, worker in map(str.split, lines)]

    def child_start(self, pid: int) -> tuple[float, float]:
        """When a worker's process was ready (seconds since 1970), and how long its start had taken in seconds."""
        at, seconds = (self.folder / "starts" / str(pid)).read_text().split()
        return float(at), float(seconds)

    def claims(self, run_id: str, seq: int = 1) -> int:
        """How many doorbells of a run's step were answered, the first one's unless it is said otherwise."""
        return sum(c.seq == seq and c.point == ("commit", "claim", "after") for c in self.kills.crossings(run_id))

    def all_ended(self, run_ids: Iterable[str]) -> bool:
        """Tell whether runs have ended; the person answers meanwhile what is asked about mails."""
        if self.fleet is not None:
            self.fleet.check()
        self.operator.answer_all()
        statuses = self.statuses(run_ids)
        if not all(status in FINISHED for status in statuses.values()):
            time.sleep(0.1)  # leave the two cores to the workers
            return False
        return True

    def finish(self, run_ids: Iterable[str], limit_seconds: float = 120) -> None:
        """Wait until runs have ended, and say of each one that did not what it waits for."""
        runs = list(run_ids)
        try:
            wait_until(lambda: self.all_ended(runs), "all runs ended", limit_seconds)
        except AssertionError as error:
            left = [self.row(run_id) for run_id, status in self.statuses(runs).items() if status not in FINISHED]
            facts = ("run_id", "status", "next_step", "attempts", "crashes", "fence", "due_at", "now", "waiting_for")
            said = [line for row in left for line in self._said_of(row["run_id"])]
            raise AssertionError(f"{error}: {[{fact: row[fact] for fact in facts} for row in left]}\n{said}") from error

    def _said_of(self, run_id: str) -> list[str]:
        """The workers' last words about a run."""
        return [] if self.fleet is None else sorted(self.fleet.said(f"run {run_id}"))[-5:]

    def statuses(self, run_ids: Iterable[str]) -> dict[str, RunStatus]:
        """Return where runs stand."""
        wanted = set(run_ids)
        table = self.runtime.tables.runs
        with self.runtime.engine.connect() as connection:
            rows = connection.execute(table.select().where(table.c.run_id.in_(wanted))).mappings().all()
        return {row["run_id"]: RunStatus(row["status"]) for row in rows}

    def row(self, run_id: str) -> RowMapping:
        """Return what the ledger says of a run."""
        with self.runtime.engine.connect() as connection:
            row = self.runtime.runs.find(connection, run_id)
        assert row is not None
        return row

    def misdeeds_left(self) -> list[str]:
        """What was planned and nobody did."""
        return [path.name for path in self._misdeeds.iterdir() if path.suffix != ".done"]

    # -- what became of them -------------------------------------------------------------------------------------------

    def faults(self, run_ids: Iterable[str]) -> list[str]:
        """Return everything that is not as it must be after the end of runs: none has happened twice, or not at all."""
        statuses = self.statuses(run_ids)
        found = [self._why(run_id) for run_id, status in statuses.items() if status is not RunStatus.SUCCEEDED]
        happened = self._happened()
        for run_id in statuses:
            for what, counts in happened.items():
                if counts[run_id] != 1:
                    found.append(f"run {run_id}: {counts[run_id]} × {what}")
        with self.runtime.engine.connect() as connection:
            found += [str(violation) for violation in check_invariants(connection)]
            if connection.dialect.name == "sqlite":
                found += set(connection.exec_driver_sql("PRAGMA integrity_check").scalars()) - {"ok"}
            found += [f"open question about {item.run_id}" for item in self.runtime.inbox.items(connection)]
        return found

    def _why(self, run_id: str) -> str:
        try:
            return f"run {run_id}: {RunHandle(self.runtime, run_id).get(timeout=0)!r}"
        except (RunFailed, RunUnfinished) as error:
            return str(error)

    def _happened(self) -> dict[str, Counter[str]]:
        effects = self.vendor.ledger()
        run_of = {effect["id"]: effect["body"]["cart"] for effect in effects if effect["kind"] == "order"}
        happened = {kind: Counter[str]() for kind in ("order", "charge", "mail", "booking", "note")}
        for effect in effects:
            happened[effect["kind"]][run_of[effect["body"].get("order", effect["id"])]] += 1
        with self.runtime.engine.connect() as connection:
            happened["booking"].update(row.run_id for row in connection.execute(books.select()))
        happened["note"].update(path.name for path in self._notes.iterdir())
        return happened


@contextlib.contextmanager
def stage(
    folder: Path, services: dict[str, str], settings: dict[str, str] = SHORT, pool: str = "prefork"
) -> Iterator[Stage]:
    """Set up a stage in an empty folder; services and settings go by the names of the settings' variables."""
    with open_shop(folder) as (url, vendor):
        environ = {
            "AGENT_DATA_DIR": str(folder / "data"),
            "TMPDIR": str(folder),
            KILLS_VARIABLE: str(folder / "kills"),
            SHOP_VARIABLE: url,
            FOLDER_VARIABLE: str(folder),
            **services,
            **settings,
        }
        made = Stage(folder, environ, vendor, pool)
        try:
            yield made
        finally:
            made.runtime.engine.dispose()
            close(made.app)
