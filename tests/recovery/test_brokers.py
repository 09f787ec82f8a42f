"""Brokers that lose messages, double them and give them out again, under real workers."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from agent_tasks.states import RunStatus
from tests.recovery.fleet import children_of
from tests.recovery.places import on, on_each
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

LIMIT_SECONDS = 100


@on("on_servers", "on_rabbitmq", "embedded")
def test_a_broker_that_is_emptied_while_runs_are_under_way_loses_none_of_them(placed: Stage) -> None:
    under_way, waiting = [f"under-way-{n}" for n in range(2)], [f"waiting-{n}" for n in range(6)]
    with placed.workers(2):
        for run_id in under_way:
            placed.enqueue(run_id, gated=True)
        wait_until(lambda: all(map(placed.bodies, under_way)), "two bodies ran", LIMIT_SECONDS)
        for run_id in waiting:
            placed.enqueue(run_id)
        placed.empty_broker()
        assert set(placed.statuses(waiting).values()) == {RunStatus.QUEUED}
        for run_id in under_way:
            placed.open_gate(run_id)
        wait_until(lambda: placed.all_ended(under_way + waiting), "all runs ended", LIMIT_SECONDS)
    assert placed.faults(under_way + waiting) == []
    assert [len(placed.bodies(run_id)) for run_id in under_way] == [1, 1]


@on("on_servers", "on_rabbitmq", "embedded")
def test_of_copies_of_a_doorbell_that_arrive_at_once_one_runs_the_body(placed: Stage) -> None:
    with placed.workers(2, concurrency=2):
        placed.enqueue("rung-twice", gated=True, rung=False)
        for _ in range(3):
            placed.ring_by_hand("rung-twice")
        wait_until(lambda: placed.claims("rung-twice") >= 3, "every copy was answered", LIMIT_SECONDS)
        placed.open_gate("rung-twice")
        wait_until(lambda: placed.all_ended(["rung-twice"]), "the run ended", LIMIT_SECONDS)
    assert len(placed.bodies("rung-twice")) == 1
    assert placed.faults(["rung-twice"]) == []


@pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")
def test_a_step_that_outlasts_the_visibility_timeout_runs_once(redelivering: Stage) -> None:
    stage = redelivering
    with stage.workers(2, concurrency=2):
        stage.enqueue("long", gated=True)
        # Once only: all copies share one delivery tag, so the ack of the copy that found nothing to do counts for both.
        wait_until(lambda: stage.claims("long") >= 2, "Redis gave the doorbell out again", LIMIT_SECONDS)
        stage.open_gate("long")
        wait_until(lambda: stage.all_ended(["long"]), "the run ended", LIMIT_SECONDS)
    assert len(stage.bodies("long")) == 1
    assert stage.faults(["long"]) == []


@on_each
def test_a_worker_whose_idle_children_are_killed_again_and_again_goes_on(placed: Stage) -> None:
    with placed.workers(1, concurrency=2) as fleet:
        for number in range(5):
            run_id = f"after-{number}-kills"
            placed.enqueue(run_id)
            wait_until(lambda run_id=run_id: placed.all_ended([run_id]), f"{run_id} ended", LIMIT_SECONDS)
            killed = children_of(fleet.workers[0].pid)
            assert killed
            for pid in killed:
                with suppress(ProcessLookupError):  # the pool may be replacing it this very moment
                    os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda killed=killed: len(set(children_of(fleet.workers[0].pid)) - set(killed)) == 2,
                "the pool has new processes",
                LIMIT_SECONDS,
            )
        placed.enqueue("last")
        wait_until(lambda: placed.all_ended(["last"]), "the last run ended", LIMIT_SECONDS)
    assert placed.faults(["last"]) == []


@on_each
def test_messages_that_anybody_may_send_stop_no_worker_and_touch_no_run_of_others(placed: Stage) -> None:
    first = placed.agent.first_step()
    with placed.workers(1):
        placed.enqueue("mine", gated=True)
        wait_until(lambda: placed.bodies("mine"), "the body runs", LIMIT_SECONDS)
        for arguments in (("x" + "é" * 400, 1), ("mine", 10**30), ("mine", True), (None, None), (), ({"run": 1}, [2])):
            placed.app.send_task(f"{placed.agent.name}.{first.name}", args=arguments)
        placed.open_gate("mine")
        wait_until(lambda: placed.all_ended(["mine"]), "the run ended", LIMIT_SECONDS)
    assert len(placed.bodies("mine")) == 1
    assert placed.faults(["mine"]) == []
