"""Whole workers that stand still for longer than a lease, and wake up when others have taken over."""

from __future__ import annotations

import os
import signal

import pytest

from tests.recovery.places import on_brokers
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_SECONDS = 100

TOOLS = ("price", "note", "create_order", "charge", "book", "send_mail")


@on_brokers
def test_a_worker_that_is_frozen_past_its_lease_in_a_body_of_each_effect_changes_nothing_when_it_wakes_up(
    placed: Stage,
) -> None:
    stage = placed
    frozen = {f"frozen-{when}-{tool}": f"{when} {tool}" for tool in TOOLS for when in ("before", "after")}
    # The vendor has not heard of these yet; whoever takes over finds that out, and the sleeper must not send them late.
    with stage.workers(1, concurrency=len(frozen), name="sleeper") as sleepers:
        for run_id, where in frozen.items():
            stage.enqueue(run_id, misdeed=(where, "gate"))
        wait_until(lambda: all(map(stage.bodies, frozen)), "all bodies ran", LIMIT_SECONDS)
        sleeper = sleepers.workers[0].pid
        os.killpg(sleeper, signal.SIGSTOP)
        with stage.workers(1, concurrency=2) as others:
            for run_id in frozen:
                stage.open_gate(run_id)
            stage.finish(frozen)
            others.check()
        os.killpg(sleeper, signal.SIGCONT)
        stage.enqueue("after-the-sleep")
        stage.finish(["after-the-sleep"])

        def woken() -> bool:
            lines = sleepers.said("lease was lost", "is past its deadline")
            return all(any(run_id in line for line in lines) for run_id in frozen)

        wait_until(woken, "every sleeping body ended", LIMIT_SECONDS)
    assert stage.faults([*frozen, "after-the-sleep"]) == []
