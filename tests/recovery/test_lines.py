"""Real workers meet a damaged checkpoint, and lose a child in a run that is recovered by hand."""

from __future__ import annotations

import os
import signal
from unittest.mock import patch

import pytest

from agent_tasks.coordinator import Coordinator
from agent_tasks.states import RunStatus
from tests.questions import turn_bits
from tests.recovery.places import on_each
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

LIMIT_SECONDS = 60


@on_each
def test_a_checkpoint_that_is_damaged_between_two_steps_is_left_and_no_effect_is_repeated(placed: Stage) -> None:
    stage = placed
    stage.enqueue("damaged", rung=False)
    # The first step is done here, so that nobody begins the second before its checkpoint is damaged.
    with patch.dict(os.environ, stage.environ), patch.object(stage.runtime.bell, "ring", lambda _: None):
        assert Coordinator(stage.runtime).handle(stage.agent, "order", "damaged", 1)
    turn_bits(stage.runtime, [1], "damaged")
    with stage.workers(1):
        wait_until(lambda: stage.all_ended(["damaged"]), "the run ended", LIMIT_SECONDS)
    assert stage.faults(["damaged"]) == []
    assert (stage.row("damaged")["line"], stage.row("damaged")["line_start_seq"]) == (1, 0)
    assert [entry.what for entry in stage.agent.run("damaged").audit()[:1]] == ["fall back to checkpoint 0"]


@on_each
def test_a_child_that_is_killed_in_a_run_recovered_by_hand_waits_for_a_person(placed: Stage) -> None:
    stage = placed
    with stage.workers(1):
        run = stage.enqueue("by-hand", gated=True, recovery="manual")
        wait_until(lambda: stage.bodies("by-hand"), "the body runs", LIMIT_SECONDS)
        os.kill(stage.bodies("by-hand")[0].pid, signal.SIGKILL)
        wait_until(lambda: run.status is RunStatus.NEEDS_ATTENTION, "a person is asked", LIMIT_SECONDS)
        (item,) = run.inbox()
        assert (item.question, item.detail["step"]) == ("crashes", "order")
        assert [made["seq"] for made in item.detail["checkpoints"]] == [0]
        stage.open_gate("by-hand")
        run.resume(from_seq=1, who="kim", why="it was the machine")
        wait_until(lambda: stage.all_ended(["by-hand"]), "the run ended", LIMIT_SECONDS)
    assert len(stage.bodies("by-hand")) == 1
    assert stage.faults(["by-hand"]) == []
