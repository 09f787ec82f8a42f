"""Workers whose steps share one process: threads, greenlets of gevent, and solo."""

from __future__ import annotations

import os
import signal

import pytest

from agent_tasks.boundary import Point
from agent_tasks.states import RunStatus
from agent_tasks.testing.kills import Crossing, Kill
from tests.recovery.places import in_each_pool, on
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_SECONDS = 100

#: What ends a process in prefork, and what Celery makes a lost worker of in other pools, whose message comes again at once.
ENDS = ("MemoryError", "SystemExit", "KeyboardInterrupt")


@in_each_pool
def test_a_worker_that_is_killed_in_an_effect_is_taken_over_from_and_repeats_none(placed: Stage) -> None:
    stage = placed
    kills = {
        f"{moment}-{tool}": Kill("worker", Crossing(seq, Point("effect", tool, moment)), f"{moment}-{tool}")
        for seq, tool, moment in ((1, "create_order", "after"), (2, "charge", "after"), (2, "book", "before"))
    }
    stage.kills.plan(kills.values())
    with stage.workers(2, concurrency=2):
        for run_id in kills:
            stage.enqueue(run_id)
        stage.finish(kills, LIMIT_SECONDS)
    assert {one.kill.run_id for one in stage.kills.carried_out()} == set(kills)
    assert stage.faults(kills) == []


@in_each_pool
def test_a_body_that_ends_in_what_ends_a_process_or_in_a_doubt_is_not_tried_again_at_once_and_for_ever(
    placed: Stage,
) -> None:
    stage = placed
    with stage.workers(1, concurrency=2):
        for end in ENDS:
            stage.enqueue(end, end=end)
        stage.enqueue("doubtful", misdeed=("after charge", "ConnectionError"))
        stage.finish(["doubtful"], LIMIT_SECONDS)
        wait_until(
            lambda: set(stage.statuses(ENDS).values()) == {RunStatus.NEEDS_ATTENTION},
            "a person is asked",
            LIMIT_SECONDS,
        )
        stage.enqueue("after-them")
        stage.finish(["after-them"], LIMIT_SECONDS)
    assert {end: stage.row(end)["crashes"] for end in ENDS} == dict.fromkeys(ENDS, 3)
    assert {end: stage.row(end)["fence"] for end in ENDS} == dict.fromkeys(ENDS, 3)
    assert stage.row("doubtful")["fence"] <= 5
    # Each was rung for a few times, and some came again from the broker; one that came again at once would be here by the hundred.
    assert [run_id for run_id in (*ENDS, "doubtful") if max(stage.claims(run_id, seq) for seq in (1, 2)) > 20] == []


@in_each_pool
def test_a_step_that_lets_nothing_else_run_in_its_thread_keeps_its_lease(placed: Stage) -> None:
    """Neither the worker's own loop runs meanwhile in solo, nor any other greenlet in gevent."""
    stage = placed
    with stage.workers(2, concurrency=2):
        stage.enqueue("stands", misdeed=("before create_order", "hold the thread"))
        stage.finish(["stands"], LIMIT_SECONDS)
    assert stage.misdeeds_left() == []
    assert stage.row("stands")["fence"] == 3  # one attempt a step
    assert stage.faults(["stands"]) == []


@on("in_threads", "in_solo")
def test_a_step_that_holds_the_interpreter_past_its_lease_repeats_no_effect(placed: Stage) -> None:
    stage = placed
    with stage.workers(2, concurrency=2):
        stage.enqueue("held", misdeed=("before charge", "hold the interpreter"))
        stage.finish(["held"], LIMIT_SECONDS)
    assert stage.misdeeds_left() == []
    assert stage.faults(["held"]) == []


@on("in_greenlets")
def test_a_hard_time_limit_ends_a_greenlet_that_waits_and_repeats_no_effect(placed: Stage) -> None:
    stage = placed
    with stage.workers(1, concurrency=2) as workers:
        stage.enqueue("limited", agent="limited", misdeed=("after charge", "hang"))
        stage.finish(["limited"], LIMIT_SECONDS)
        assert workers.said("ConnectionError", "Timeout: 2")
    assert stage.misdeeds_left() == []
    assert stage.faults(["limited"]) == []


@in_each_pool
def test_a_worker_that_is_frozen_past_its_lease_changes_nothing_when_it_wakes_up(placed: Stage) -> None:
    stage = placed
    frozen = {"frozen-charge": "before charge"}
    if stage.pool != "solo":
        frozen |= {"frozen-book": "after book", "frozen-mail": "before send_mail"}
    with stage.workers(1, concurrency=len(frozen), name="sleeper") as sleepers:
        for run_id, where in frozen.items():
            stage.enqueue(run_id, misdeed=(where, "gate"))
        wait_until(lambda: all(map(stage.bodies, frozen)), "all bodies ran", LIMIT_SECONDS)
        os.killpg(sleepers.workers[0].pid, signal.SIGSTOP)
        with stage.workers(1, concurrency=2):
            for run_id in frozen:
                stage.open_gate(run_id)
            stage.finish(frozen, LIMIT_SECONDS)
        os.killpg(sleepers.workers[0].pid, signal.SIGCONT)
        wait_until(
            lambda: all(any(run_id in line for line in sleepers.said("lease was lost")) for run_id in frozen),
            "every sleeping body ended",
            LIMIT_SECONDS,
        )
    assert stage.faults(frozen) == []


@in_each_pool
def test_a_step_under_way_is_finished_under_its_lease_when_its_worker_is_told_to_stop(placed: Stage) -> None:
    stage = placed
    with stage.workers(2) as workers:
        stage.enqueue("long", gated=True)
        wait_until(lambda: stage.bodies("long"), "the step ran", LIMIT_SECONDS)
        workers.retire(stage.bodies("long")[0].worker)
        stopped_at = stage.row("long")
        lease = int(float(stage.environ["AGENT_LEASE_SECONDS"]) * 1e6)
        wait_until(lambda: stage.row("long")["due_at"] > stopped_at["due_at"] + lease, "it was renewed", LIMIT_SECONDS)
        assert stage.row("long")["fence"] == stopped_at["fence"]
        stage.open_gate("long")
        stage.finish(["long"], LIMIT_SECONDS)
    assert len(stage.bodies("long")) == 1
    assert stage.faults(["long"]) == []
