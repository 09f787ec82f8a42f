"""A storm: runs go through a fleet while everything around them is killed, frozen, restarted, emptied and cut off.

    python -m tests.storm --seed 1 --runs 200 --seconds 120

At the end everything may finish in peace, and the vendor's own ledger says whether an effect was lost or doubled. The report
tells how many faults of each kind there were, and how many of them *met an open attempt*: a run that was `running` in a
process that the fault hit. For killed and frozen processes that is exact, since they are stopped before the ledger is asked
whose leases they hold; for a broker, a database and connections it is what ran when the ledger was asked right before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from agent_tasks.errors import LedgerUnavailable
from agent_tasks.folders import HeldFolder
from agent_tasks.states import RunStatus
from tests.proxy import Fault, Proxy, proxied
from tests.recovery.app import CONF_VARIABLE, MISDEEDS
from tests.recovery.fleet import Fleet, children_of
from tests.recovery.stage import SHORT, Stage, stage
from tests.services import OwnServer

#: How long all may take to finish after the storm, in seconds.
CALM_SECONDS = 300

TOOLS = ("price", "note", "create_order", "charge", "book", "send_mail")
ENDS = ("MemoryError", "SystemExit", "KeyboardInterrupt", "os._exit")

#: What a transaction says whose answer may be cut off.
COMMITS = {
    "claim": b"agent_runs.fence + ",
    "intent": b"INSERT INTO agent_operations",
    "outcome": b"UPDATE agent_operations SET",
    "step": b"INSERT INTO agent_checkpoint_",
}


class Storm:
    """What happens to one fleet.

    Args:
        seed: of everything that is chosen by chance.
        stage: whose runs they are.
        fleet: that works on them.
        proxy: between the workers and the database.
        broker, database: the servers.
    """

    def __init__(
        self, seed: int, stage: Stage, fleet: Fleet, proxy: Proxy, broker: OwnServer, database: OwnServer
    ) -> None:
        self.chance = random.Random(seed)
        self.stage, self.fleet, self.proxy, self.broker, self.database = stage, fleet, proxy, broker, database
        self.injected, self.met = Counter[str](), Counter[str]()
        self._planned: list[tuple[str, Fault]] = []
        self._frozen: list[tuple[float, int]] = []
        self.kinds: dict[str, tuple[int, Callable[[str], bool]]] = {
            "child killed": (8, self._kill_child),
            "worker killed": (4, self._kill_worker),
            "worker frozen": (3, self._freeze),
            "broker emptied": (3, lambda kind: self._around(kind, self.stage.empty_broker)),
            "broker restarted": (1, lambda kind: self._around(kind, self._restart_broker)),
            "database restarted (fast)": (1, lambda kind: self._around(kind, lambda: self._restart_database("SIGINT"))),
            "database restarted (immediate)": (
                1,
                lambda kind: self._around(kind, lambda: self._restart_database("SIGQUIT")),
            ),
            "connections cut": (3, lambda kind: self._around(kind, self.proxy.cut_all)),
            **{f"answer of {name} cut off": (3, self._cut_answer) for name in COMMITS},
            "connection silent": (1, self._silence),
        }

    def strike(self) -> None:
        """Let one fault happen."""
        kinds = list(self.kinds)
        (kind,) = self.chance.choices(kinds, [self.kinds[kind][0] for kind in kinds])
        if self.kinds[kind][1](kind):
            self.injected[kind] += 1

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Wake up the workers whose time has come."""
        for due, pid in list(self._frozen):
            if all_of_them or time.monotonic() >= due:
                self._frozen.remove((due, pid))
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGCONT)

    def count_planned(self) -> None:
        """Count the faults that waited for a commit: those that struck did so in the middle of an attempt's."""
        for kind, fault in self._planned:
            self.met[kind] += fault.met.is_set()

    def owners(self) -> list[int]:
        """Return the processes that hold a lease now."""
        table = self.stage.runtime.tables.runs
        statement = table.select().where(table.c.status == str(RunStatus.RUNNING))
        with self.stage.runtime.engine.connect() as connection:
            return [int(row["lease_owner"].split("-")[1]) for row in connection.execute(statement).mappings()]

    # -- faults --------------------------------------------------------------------------------------------------------

    def _kill_child(self, kind: str) -> bool:
        children = [pid for worker in self.fleet.workers for pid in children_of(worker.pid)]
        if not children:
            return False
        pid = self.chance.choice(sorted(children))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                self.met[kind] += pid in self.owners()
            finally:
                os.kill(pid, signal.SIGKILL)
        return True

    def _kill_worker(self, kind: str) -> bool:
        return self._stop_worker(kind, lambda group: os.killpg(group, signal.SIGKILL))

    def _freeze(self, kind: str) -> bool:
        until = time.monotonic() + self.chance.uniform(1, 8)
        return self._stop_worker(kind, lambda group: self._frozen.append((until, group)))

    def _stop_worker(self, kind: str, then: Callable[[int], object]) -> bool:
        group = self.chance.choice(self.fleet.workers).pid
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGSTOP)
            try:
                self.met[kind] += bool({group, *children_of(group)} & set(self.owners()))
            finally:
                then(group)
        return True

    def _around(self, kind: str, fault: Callable[[], object]) -> bool:
        self.met[kind] += bool(self.owners())
        fault()
        return True

    def _restart_broker(self) -> None:
        if self.stage.app.conf.broker_url.startswith("amqp"):
            self.broker.ctl("stop_app")
            self.broker.ctl("start_app")
        else:
            self.broker.stop()
            time.sleep(self.chance.uniform(0, 3))
            self.broker.start()

    def _restart_database(self, how: str) -> None:
        self.database.stop(how)
        time.sleep(self.chance.uniform(0, 5))
        self.database.start()
        self.stage.runtime.engine.dispose()

    def _cut_answer(self, kind: str) -> bool:
        self._planned.append((kind, self.proxy.plan(Fault("cut", COMMITS[kind.split()[2]]))))
        return True

    def _silence(self, kind: str) -> bool:
        words = self.chance.choice(sorted(COMMITS.values()))
        self._planned.append((kind, self.proxy.plan(Fault("swallow", words))))
        return True


def misdeed_of(chance: random.Random) -> tuple[str, str] | None:
    """Choose what a run's body does by itself: most take a second somewhere, so that faults meet them there."""
    what = chance.choices(["dwell", *ENDS, None], [12, 1, 1, 1, 1, 4])[0]
    assert what is None or what in MISDEEDS
    return None if what is None else (f"{chance.choice(('before', 'after'))} {chance.choice(TOOLS)}", what)


def weather(storm: Storm, runs: list[str], seconds: float) -> dict[str, str | None]:
    """Enqueue the runs, and let faults happen, for so many seconds; return what each run's body was told to do."""
    told: dict[str, str | None] = {}
    chance = random.Random(storm.chance.random())
    began, left = time.monotonic(), list(runs)
    next_fault = began + 3
    while (now := time.monotonic()) < began + seconds or left:
        with suppress(LedgerUnavailable, SQLAlchemyError):  # it is away; the same run is enqueued again
            while left and now >= began + seconds * (len(runs) - len(left)) / len(runs) * 0.9:
                misdeed = None if left[0] in told else misdeed_of(chance)
                told.setdefault(left[0], None if misdeed is None else misdeed[1])
                storm.stage.enqueue(left[0], misdeed=misdeed)
                left.pop(0)
            if now >= next_fault and now < began + seconds:
                next_fault = now + storm.chance.uniform(0.2, 1.5)
                storm.strike()
            storm.stage.operator.answer_all()
        storm.thaw()
        storm.fleet.check()
        time.sleep(0.05)
    storm.thaw(all_of_them=True)
    return told


@contextmanager
def set_up(seed: int, broker_name: str, folder: Path) -> Iterator[Storm]:
    """Start the servers, the proxy and the fleet."""
    with ExitStack() as started:
        broker, database = (started.enter_context(closing(OwnServer(name))) for name in (broker_name, "postgresql"))
        services = {"AGENT_DATABASE_URL": database.url, "AGENT_BROKER_URL": broker.url}
        if broker_name == "rabbitmq":
            services[CONF_VARIABLE] = json.dumps({"task_default_queue_type": "quorum"})
        # Crashes are what is asked for here, and none of them is a step's own fault.
        settings = {**SHORT, "AGENT_MAX_CRASHES": "100", "AGENT_RETRY_BACKOFF_MAX_SECONDS": "5"}
        here = started.enter_context(stage(folder, services, settings))
        proxy, url = started.enter_context(proxied(database.url))
        environs = 3 * [{"AGENT_DATABASE_URL": url}]
        fleet = started.enter_context(here.workers(*environs, concurrency=2, always_restart=True))
        yield Storm(seed, here, fleet, proxy, broker, database)


def report(storm: Storm, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is written down."""
    faults = {kind: {"injected": storm.injected[kind], "met": storm.met[kind]} for kind in storm.kinds}
    total = {word: sum(fault[word] for fault in faults.values()) for word in ("injected", "met")}
    return {**facts, "faults": faults, "total": total}


def as_markdown(said: dict[str, Any]) -> str:
    """Return the report as a page."""
    command = "python -m tests.storm --broker {broker} --seed {seed} --runs {runs} --seconds {seconds:g}".format(**said)
    rows = [f"| {kind} | {fault['injected']} | {fault['met']} |" for kind, fault in said["faults"].items()]
    told = [f"| body: {what} | {number} | {number} |" for what, number in said["bodies"].items()]
    problems = [f"- {problem}" for problem in said["problems"]] or ["None: every effect happened once."]
    return "\n".join(
        [
            f"# A storm on PostgreSQL and {said['broker']}",
            "",
            f"`{command}`, with {', '.join(f'{name} {number}' for name, number in said['versions'].items())}.",
            "",
            f"{said['succeeded']} of {said['runs']} runs succeeded, in {said['attempts']} attempts of {3 * said['runs']} steps.",
            f"The outside world's own ledger: {', '.join(f'{n} × {what}' for what, n in said['world'].items())}.",
            "A fault met an open attempt when it hit a process, server or connection while a run was `running` there.",
            "",
            "| fault | injected | met an open attempt |",
            "|---|---:|---:|",
            *rows,
            f"| **together** | **{said['total']['injected']}** | **{said['total']['met']}** |",
            *told,
            "",
            "## What went wrong",
            "",
            *problems,
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a storm; 0 if nothing was lost, doubled or stuck."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--report", type=Path, help="write REPORT.json and REPORT.md")
    given = parser.parse_args(arguments)
    runs = [f"storm-{number}" for number in range(given.runs)]
    with (
        HeldFolder() as folder,
        set_up(given.seed, given.broker, folder) as storm,
    ):
        told = weather(storm, runs, given.seconds)
        print(
            f"the storm is over after {sum(storm.injected.values())} faults; everything may finish now", file=sys.stderr
        )
        problems: list[str] = []
        try:
            storm.stage.finish(runs, CALM_SECONDS)
        except AssertionError as error:
            problems.append(str(error))
        storm.count_planned()
        problems += storm.stage.faults(runs) + storm.fleet.errors()
        statuses = Counter(storm.stage.statuses(runs).values())
        world = Counter(effect["kind"] for effect in storm.stage.vendor.ledger())
        facts = {
            "versions": {name: version(name) for name in ("celery", "kombu", "psycopg", "sqlalchemy")},
            "seed": given.seed,
            "runs": given.runs,
            "seconds": given.seconds,
            "broker": given.broker,
            "succeeded": statuses[RunStatus.SUCCEEDED],
            "attempts": sum(storm.stage.row(run_id)["fence"] for run_id in runs),
            "world": dict(world),
            "bodies": dict(Counter(what for what in told.values() if what in ENDS)),
            "problems": problems,
        }
        said = report(storm, facts)
        if given.report is not None:
            given.report.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
            given.report.with_suffix(".md").write_text(as_markdown(said), encoding="utf-8")
        print(as_markdown(said))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
