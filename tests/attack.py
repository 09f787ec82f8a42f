"""Every schedule, where the tests draw some: `python -m tests.attack [pairs|zombies|bodies] [--full] [--seed N]`."""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agent_tasks.testing import explore_crashes
from agent_tasks.testing.exploration import by_boundary
from tests import services
from tests.agents import SHORT_AGENTS, World
from tests.bodies import BODIES, VENDORS, Shop
from tests.zombies import UNTIL, Graveyard


class Attack(NamedTuple):
    """One agent under one kind of attack, in a process of its own.

    Attributes:
        kind: ``pairs``, ``zombies`` or ``bodies``.
        subject: the agent; for bodies ``name, effect, vendor``.
        database: ``sqlite``, or URL of a PostgreSQL or MariaDB server.
        sample: schedules to draw, or None for all.
        seed: of the draw.
    """

    kind: str
    subject: str
    database: str
    sample: int | None
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


def carry_out(attack: Attack) -> dict[str, Any]:
    """Return what was found, in the form of ``Exploration.summary``."""
    logging.disable(logging.CRITICAL)
    with ledger(attack.database) as url:
        return {"pairs": pairs, "zombies": zombies, "bodies": bodies}[attack.kind](attack, url)


def pairs(attack: Attack, url: str) -> dict[str, Any]:
    with closing(World(url)) as world:
        agent = SHORT_AGENTS[attack.subject](world)
        options: dict[str, Any] = {"database_url": url, "sample": attack.sample, "seed": attack.seed}
        return explore_crashes(agent, {"what": "a"}, world, faults=2, **options).summary()


def zombies(attack: Attack, url: str) -> dict[str, Any]:
    with closing(World(url)) as world, closing(Graveyard(SHORT_AGENTS[attack.subject](world), world, url)) as graveyard:
        points = graveyard.crossings()
        places = [(index, until) for index in range(len(points)) for until in UNTIL]
        if attack.sample is not None:
            places = random.Random(attack.seed).sample(places, min(attack.sample, len(places)))
        frozen = [graveyard.freeze(index, until) for index, until in places]
    return {
        "ending": {"status": "succeeded"},  # else the run that nobody disturbed is a problem
        "crossings": len(points),
        "boundaries": len(set(points)),
        "schedules": len(frozen),
        "met_an_open_attempt": sum(freeze.open_attempt for freeze in frozen),
        "seed": None if attack.sample is None else attack.seed,
        "by_boundary": by_boundary((freeze.point, freeze.open_attempt) for freeze in frozen),
        "doubled_and_shown": [str(freeze) for freeze in frozen if freeze.doubled],
        "wrong": [str(freeze) for freeze in frozen if freeze.problems],
    }


def bodies(attack: Attack, url: str) -> dict[str, Any]:
    name, effect, vendor = attack.subject.split(", ")
    shop = Shop(vendor)
    wrong = next(body for body in BODIES if body.__name__ == name)(effect, shop)
    options: dict[str, Any] = {"database_url": url, "sample": attack.sample, "seed": attack.seed}
    releases: dict[str, Any] = {"one_ending": wrong.one_ending, "next_release": wrong.next_release}
    try:
        return explore_crashes(wrong.agent, {}, shop, **options, **releases).summary()
    finally:
        shop.join()


#: What is attacked, and how many schedules of each are drawn where not all are played.
KINDS = {
    "pairs": (tuple(SHORT_AGENTS), 16),
    "zombies": (tuple(SHORT_AGENTS), 12),
    "bodies": (
        tuple(
            f"{b.__name__}, {effect}, {v}" for b in BODIES for effect in ("probed", "keyed", "manual") for v in VENDORS
        ),
        4,
    ),
}


@contextmanager
def ledger(database: str) -> Iterator[str]:
    """Offer an empty ledger."""
    if database != "sqlite":
        with services.databases(database) as create:
            yield create()
    else:
        with tempfile.TemporaryDirectory(prefix="agent-attack-") as folder:
            yield f"sqlite:///{Path(folder) / 'ledger.db'}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--full", action="store_true", help="every schedule; else a drawn sample")
    parser.add_argument("--sample", type=int, metavar="N", help="schedules to draw for each subject")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the draw")
    parser.add_argument("--only", default="", metavar="TEXT", help="subjects whose name holds this")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--postgresql", action="store_true", help="on the PostgreSQL server of the tests; else on SQLite"
    )
    where.add_argument("--mariadb", action="store_true", help="on their MariaDB server")
    parser.add_argument("--jobs", type=int, default=2, help="processes at work")
    parser.add_argument("--report", type=Path, help="write REPORT.json and REPORT.md")
    chosen = parser.parse_args(arguments)
    with services.session_folder() as folder:
        service = "postgresql" if chosen.postgresql else "mysql" if chosen.mariadb else None
        database = services.find(service, folder) if service else "sqlite"
        attacks = [
            Attack(kind, subject, database, None if chosen.full else chosen.sample or sample, chosen.seed)
            for kind, (subjects, sample) in KINDS.items()
            for subject in subjects
            if chosen.kind in (kind, "all") and chosen.only in subject
        ]
        found = carry_all_out(attacks, chosen.jobs)
    said = {
        "kind": chosen.kind,
        "only": chosen.only,
        "database": "PostgreSQL" if chosen.postgresql else "MariaDB" if chosen.mariadb else "SQLite",
        "seed": None if chosen.full else chosen.seed,
        "sample": None if chosen.full else chosen.sample,
        "attacks": found,
        "total": {word: sum(summary[word] for summary in found.values()) for word in _NUMBERS},
        "wrong": [f"{name}: {text}" for name, summary in found.items() for text in summary["wrong"]],
    }
    if chosen.report:
        chosen.report.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        chosen.report.with_suffix(".md").write_text(as_markdown(said), encoding="utf-8")
    print(as_markdown(said))
    return 1 if said["wrong"] else 0


_NUMBERS = ("schedules", "met_an_open_attempt")


def as_markdown(said: dict[str, Any]) -> str:
    """Return the report as a page."""
    drawn = ["--full"] if said["seed"] is None else [f"--seed {said['seed']}"]
    drawn += [f"--sample {said['sample']}"] if said["sample"] else []
    drawn += [f"--only {said['only']}"] if said["only"] else []
    drawn += [f"--{said['database'].lower()}"] if said["database"] != "SQLite" else []
    rows = [
        f"| {name} | {found['ending']['status']} | {found['crossings']} | {found['schedules']} | {found['met_an_open_attempt']} | {len(found['wrong'])} |"
        for name, found in said["attacks"].items()
    ]
    total = said["total"]
    shown = [
        f"- {name}: {text}" for name, found in said["attacks"].items() for text in found.get("doubled_and_shown", [])
    ]
    return "\n".join(
        [
            f"# Attacks on {said['database']}",
            "",
            f"`python -m tests.attack {said['kind']} {' '.join(drawn)}`",
            "",
            "A fault met an open attempt when the run was `running` at that moment. Of a pair, one of the two is enough.",
            "",
            "| attack | ends without a fault | crossings then | schedules | met an open attempt | wrong |",
            "|---|---|---:|---:|---:|---:|",
            *rows,
            f"| **together** | | | **{total['schedules']}** | **{total['met_an_open_attempt']}** | **{len(said['wrong'])}** |",
            "",
            "## What went wrong",
            "",
            *(
                [f"- {text}" for text in said["wrong"]]
                or ["Nothing: no effect was lost or doubled, no run was stuck, no doubt was left."]
            ),
            "",
            *(["## Beyond any client, and shown to a person", "", *shown, ""] if shown else []),
        ]
    )


def carry_all_out(attacks: list[Attack], jobs: int) -> dict[str, dict[str, Any]]:
    """Carry attacks out, and say what each found as soon as it is known."""
    found = {}
    with ProcessPoolExecutor(jobs) as pool:
        for attack, summary in zip(attacks, pool.map(carry_out, attacks), strict=True):
            found[str(attack)] = summary
            opened = summary["met_an_open_attempt"]
            print(f"  {attack!s:<70} {summary['schedules']:>6} schedules {opened:>6} open", flush=True)
            for wrong in summary["wrong"]:
                print(f"    WRONG {wrong}", flush=True)
            for doubled in summary.get("doubled_and_shown", []):
                print(f"    beyond any client, shown to a person: {doubled}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
