"""The short proof that a version of Celery works as this package counts on: whatever can end a body, under real workers."""

from __future__ import annotations

import pytest

from agent_tasks.boundary import Point
from agent_tasks.testing.kills import Crossing, Kill
from tests.recovery.stage import Stage

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.versions, pytest.mark.timeout(300)]


@pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork")
def test_kills_crashes_and_time_limits_repeat_no_effect(embedded: Stage) -> None:
    charged, ordered = Point("effect", "charge", "after"), Point("effect", "create_order", "after")
    embedded.kills.plan([Kill("child", Crossing(2, charged), "child"), Kill("worker", Crossing(1, ordered), "worker")])
    busy = {"AGENT_MAX_CRASHES": "20"}  # on a busy machine a limit of two seconds strikes more than once
    with embedded.workers(busy, busy, concurrency=2) as workers:
        embedded.enqueue("child")
        embedded.enqueue("worker")
        embedded.finish(["child", "worker"])  # first: a killed worker ends the other hangs before their limits do
        embedded.enqueue("ends", misdeed=("after book", "MemoryError"))
        embedded.enqueue("hurried", agent="hurried", misdeed=("after note", "hang"))
        embedded.enqueue("limited", agent="limited", misdeed=("before create_order", "hang"))
        runs = ["child", "worker", "ends", "hurried", "limited"]
        embedded.finish(runs)
        assert workers.said("hard time limit")
    assert len(embedded.kills.carried_out()) == 2
    assert embedded.misdeeds_left() == []
    assert embedded.faults(runs) == []
