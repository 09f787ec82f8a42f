"""The other side: the same carts on plain Celery, set up to survive kills, under the same plan of kills."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_tasks.demo import plain
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.kills import CarriedOut, Kill, KillPlan
from agent_tasks.demo.progress import Progress
from agent_tasks.demo.supervisor import Fleet, ProcessEnded, open_shop
from agent_tasks.demo.tally import Tally, tally

__all__ = ["Compared", "buy_plainly"]

#: Pause between two looks, in seconds.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of it.

    Attributes:
        kills: that were carried out; a cart whose message is gone cannot be killed again.
        world: what this side's shop has in its ledger.
    """

    kills: list[CarriedOut]
    world: Tally


def buy_plainly(carts: Sequence[Cart], kills: Sequence[Kill], folder: Path, progress: Progress) -> Compared:
    """Buy the carts with plain Celery tasks on a shop, a result backend and a broker of its own.

    Args:
        carts: What to buy; a chain of tasks each.
        kills: What happens meanwhile.
        folder: Empty; gets everything.
        progress: Is told.

    Raises:
        ProcessEnded: The shop, a worker or the process that waits for the orders ended by itself.
    """
    plan = KillPlan.write(folder / "kills.json", kills)
    (folder / "carts.json").write_text(json.dumps(carts), encoding="utf-8")
    with open_shop(folder) as (url, vendor):
        environ = plain.environment(folder, url, kills=folder / "kills.json")
        progress.say(f"{len(carts)} chains of tasks are placed; two workers start")
        with Fleet(lambda name: plain.worker_command(name=name), environ, folder) as fleet:

            def tell() -> None:
                carried_out = plan.carried_out()  # read first: what was killed in a call is in the ledger then
                progress.effects(vendor.ledger())
                progress.kills(carried_out)
                for name in fleet.tend():
                    progress.say(f"{name} is started again")
                progress.waits(lambda: _awaited(tally(vendor.ledger(), carts), len(carts)))

            unfinished = _place_and_wait(environ, folder, tell)
            progress.say("the queue is empty and no worker holds a task; the workers are stopped")
        effects = vendor.ledger()
        for cart in carts:
            if cart["id"] in unfinished:
                progress.say(f"never came to its end: {_missing(tally(effects, [cart]))}", cart["id"])
        return Compared(plan.carried_out(), tally(effects, carts))


def _place_and_wait(environ: dict[str, str], folder: Path, tell: Callable[[], None]) -> list[str]:
    """Place the orders and tell what happens until nothing is left to run; the carts that did not come to their end."""
    command = [sys.executable, "-m", "agent_tasks.demo.plain", str(folder / "carts.json")]
    log = folder / "placing.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        ) as placing,
    ):
        try:
            while placing.poll() is None:
                tell()
                time.sleep(_LOOK_SECONDS)
        finally:
            placing.kill()
        tell()
        assert placing.stdout is not None
        said = placing.stdout.read()
    if placing.returncode != 0:
        raise ProcessEnded(f"placing the orders ended with exit code {placing.returncode}:\n{log.read_text()[-2000:]}")
    unfinished: list[str] = json.loads(said)["unfinished"]
    return unfinished


def _awaited(world: Tally, carts: int) -> str:
    return (
        "until the queue is empty and no worker holds a task; so far "
        f"{carts - world.orders.none} carts are ordered, {carts - world.charges.none} charged, "
        f"{carts - world.emails.none} mailed, of {carts}"
    )


def _missing(world: Tally) -> str:
    """What one cart lacks, in words."""
    lacks = {"order": world.orders, "charge": world.charges, "e-mail": world.emails}
    missing = [f"no {name}" for name, share in lacks.items() if share.none]
    return ", ".join(missing) or "all of it happened, and nobody recorded the e-mail"
