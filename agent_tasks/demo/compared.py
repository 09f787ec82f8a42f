"""The other side: the same carts on plain Celery at its best settings, under the same plan of kills."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
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
        with Fleet(lambda name: plain.worker_command(name=name), environ, folder) as fleet:
            unfinished = _place_and_wait(environ, folder, fleet, plan, progress)
        for cart in unfinished:
            progress.say("never came to its end", cart)
        return Compared(plan.carried_out(), tally(vendor.ledger(), carts))


def _place_and_wait(
    environ: dict[str, str], folder: Path, fleet: Fleet, plan: KillPlan, progress: Progress
) -> list[str]:
    """Place the orders and tend the workers until nothing is left to run; the carts that did not come to their end."""
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
                progress.kills(plan.carried_out())
                for name in fleet.tend():
                    progress.say(f"{name} is started again")
                time.sleep(_LOOK_SECONDS)
        finally:
            placing.kill()
        progress.kills(plan.carried_out())
        assert placing.stdout is not None
        said = placing.stdout.read()
    if placing.returncode != 0:
        raise ProcessEnded(f"placing the orders ended with exit code {placing.returncode}:\n{log.read_text()[-2000:]}")
    unfinished: list[str] = json.loads(said)["unfinished"]
    return unfinished
