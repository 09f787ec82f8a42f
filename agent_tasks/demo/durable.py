"""The durable side: the order agent buys all carts while its workers are killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent_tasks.demo.agent import app, order, settings, worker_command
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.journal import JOURNAL_VARIABLE, Journal
from agent_tasks.demo.kills import CarriedOut, Kill, KillPlan
from agent_tasks.demo.operator import Operator
from agent_tasks.demo.plain import environment
from agent_tasks.demo.progress import Progress
from agent_tasks.demo.supervisor import Fleet, open_shop
from agent_tasks.demo.tally import Tally, tally
from agent_tasks.demo.vendor import Vendor
from agent_tasks.handle import RunHandle
from agent_tasks.inbox_client import open_inbox
from agent_tasks.states import FINISHED, RunStatus

__all__ = ["Durable", "Unfinished", "buy_durably"]

#: How long all runs may take together, in seconds for each cart, and at least.
_SECONDS_A_CART, _SECONDS = 5.0, 120.0
#: Pause between two looks, in seconds.
_LOOK_SECONDS = 0.05
#: What runs wait for that say nothing about it themselves.
_AWAITED = {
    RunStatus.QUEUED: "for a worker that takes it",
    RunStatus.RUNNING: "for its worker, or for the end of the lease if that is dead",
}


class Unfinished(RuntimeError):
    """Runs had not ended in time; the message says what each waits for."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What came of it.

    Attributes:
        succeeded: number of runs.
        kills: that were carried out.
        recovery_seconds: from each kill to the next attempt's start of the step that was killed.
        world: what the shop's ledger says.
    """

    succeeded: int
    kills: list[CarriedOut]
    recovery_seconds: list[float]
    world: Tally


def buy_durably(carts: Sequence[Cart], kills: Sequence[Kill], folder: Path, progress: Progress) -> Durable:
    """Buy the carts with the order agent on a shop, a ledger and a broker of its own.

    Args:
        carts: What to buy; a run each.
        kills: What happens meanwhile.
        folder: Empty; gets everything.
        progress: Is told.

    Raises:
        Unfinished: Runs hang.
        ProcessEnded: The shop or a worker does not start.
    """
    plan = KillPlan.write(folder / "kills.json", kills)
    journal = Journal(folder / "journal.jsonl")
    with open_shop(folder) as (url, vendor):
        environ = environment(folder, url, kills=folder / "kills.json")
        environ[JOURNAL_VARIABLE] = str(folder / "journal.jsonl")
        app.conf.update(settings(environ))
        runs = {cart["id"]: order.enqueue({"cart": cart}) for cart in carts}
        progress.say(f"{len(runs)} runs are in the ledger; two workers start")
        with Fleet(worker_command, environ, folder) as fleet:
            _watch(runs, fleet, plan, journal, vendor, progress)
            progress.say("all runs have ended; the workers are stopped")
        carried_out = plan.carried_out()
        return Durable(
            succeeded=sum(run.status is RunStatus.SUCCEEDED for run in runs.values()),
            kills=carried_out,
            recovery_seconds=_recovery_seconds(carried_out, journal, runs),
            world=tally(vendor.ledger(), carts),
        )


def _watch(
    runs: dict[str, RunHandle],
    fleet: Fleet,
    plan: KillPlan,
    journal: Journal,
    vendor: Vendor,
    progress: Progress,
) -> None:
    """Play supervisor and operator until all runs have ended, and tell of it."""
    carts = {run.run_id: cart for cart, run in runs.items()}
    operator = Operator(open_inbox(app), vendor.mail_log)
    deadline = time.monotonic() + max(_SECONDS, _SECONDS_A_CART * len(runs))
    left = set(runs)
    while True:
        ended = {cart: status for cart in left if (status := runs[cart].status) in FINISHED}
        progress.steps(journal.new_entries(), carts, lambda run_id: _why(runs[carts[run_id]]))
        progress.kills(plan.carried_out())
        for cart, status in ended.items():
            progress.say(f"the run {status}", cart)
        left -= ended.keys()
        if not left:
            return
        for name in fleet.tend():
            progress.say(f"{name} is started again")
        progress.answers(operator.answer_all(), carts)
        progress.waits(partial(_awaited, [runs[cart] for cart in left]))
        if time.monotonic() > deadline:
            raise Unfinished(_what_hangs(runs))
        time.sleep(_LOOK_SECONDS)


def _recovery_seconds(kills: Sequence[CarriedOut], journal: Journal, runs: dict[str, RunHandle]) -> list[float]:
    resumed = [(done.at, journal.resumed_at(runs[done.cart].run_id, done.at)) for done in kills]
    return [round((at - killed_at) / 1e6, 2) for killed_at, at in resumed if at is not None]


def _why(run: RunHandle) -> str | None:
    """Why a step was left before its end; None if its run has gone on meanwhile."""
    status, reason = run.status, run.waiting_for  # two looks: the run may go on between them
    if reason is None:
        return None
    if status is RunStatus.NEEDS_ATTENTION:
        return f"asks the operator: {reason}"
    return f"waits for {reason}" if status is RunStatus.WAITING else None


def _awaited(left: Iterable[RunHandle]) -> str:
    """What the runs that have not ended wait for, in words."""
    reasons = Counter(_AWAITED.get(run.status) or f"for {run.waiting_for or 'a worker'}" for run in left)
    return "; ".join(f"{reason} ({count} run{'s'[: count > 1]})" for reason, count in reasons.items())


def _what_hangs(runs: dict[str, RunHandle]) -> str:
    hanging = [
        f"{cart}: run {run.run_id} is {status}" + (f"; it waits for {run.waiting_for}" if run.waiting_for else "")
        for cart, run in runs.items()
        if (status := run.status) not in FINISHED
    ]
    return "\n".join(["these runs did not end in time:", *hanging])
