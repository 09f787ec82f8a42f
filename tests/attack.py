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
        database: ``sqlite``, or URL of a PostgreSQL server.
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
        options = {"database_url": url, "sample": attack.sample, "seed": attack.seed}
        return explore_crashes(agent, {"what": "a"}, world, faults=2, **options).summary()


def zombies(attack: Attack, url: str) -> dict[str, Any]:
    with closing(World(url)) as world, closing(Graveyard(SHORT_AGENTS[attack.subject](world), world, url)) as graveyard:
        points = graveyard.crossings()
        places = [(index, until) for index in range(len(points)) for until in UNTIL]
        if attack.sample is not None:
            places = random.Random(attack.seed).sample(places, min(attack.sample, len(places)))
        frozen = [graveyard.freeze(index, until) for index, until in places]
    return {
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
    options = {"database_url": url, "sample": attack.sample, "seed": attack.seed}
    releases = {"one_ending": wrong.one_ending, "next_release": wrong.next_release}
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
        with services.postgres_databases(database) as create:
            yield create()
    else:
        with tempfile.TemporaryDirectory(prefix="agent-attack-") as folder:
            yield f"sqlite:///{Path(folder) / 'ledger.db'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--full", action="store_true", help="every schedule; else a drawn sample")
    parser.add_argument("--sample", type=int, metavar="N", help="schedules to draw for each subject")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the draw")
    parser.add_argument("--only", default="", metavar="TEXT", help="subjects whose name holds this")
    parser.add_argument(
        "--postgresql", action="store_true", help="on the PostgreSQL server of the tests; else on SQLite"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    chosen = parser.parse_args()
    with services.session_folder() as folder:
        database = services.find("postgresql", folder) if chosen.postgresql else "sqlite"
        attacks = [
            Attack(kind, subject, database, None if chosen.full else chosen.sample or sample, chosen.seed)
            for kind, (subjects, sample) in KINDS.items()
            for subject in subjects
            if chosen.kind in (kind, "all") and chosen.only in subject
        ]
        found = report(attacks, chosen.jobs)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    wrong = [text for summary in found.values() for text in summary["wrong"]]
    schedules = sum(summary["schedules"] for summary in found.values())
    opened = sum(summary["met_an_open_attempt"] for summary in found.values())
    drawn = "" if chosen.full else f", drawn with seed {chosen.seed}"
    print(f"{schedules} schedules{drawn}; {opened} met an open attempt; {len(wrong)} wrong")
    return 1 if wrong else 0


def report(attacks: list[Attack], jobs: int) -> dict[str, dict[str, Any]]:
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
