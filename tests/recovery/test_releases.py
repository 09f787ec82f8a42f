"""Two releases of an app at work at once, on one broker, one queue and one ledger."""

from __future__ import annotations

import time

import pytest

from tests.recovery.app import OLD_VARIABLE
from tests.recovery.places import on
from tests.recovery.stage import Stage

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]


@on("on_rabbitmq")
def test_runs_whose_steps_an_older_worker_does_not_know_wait_for_a_newer_one(placed: Stage) -> None:
    """The older release knows the later steps of the shop but not its first, and nothing of the other agent."""
    stage = placed
    runs = {f"run-{number}": "shop" if number % 2 else "newer" for number in range(12)}
    began = time.monotonic()
    with stage.workers({OLD_VARIABLE: "1"}, {}, concurrency=3) as fleet:
        for run_id, agent in runs.items():
            stage.enqueue(run_id, agent=agent)
        stage.finish(runs)
        rings = 1 + (time.monotonic() - began) / float(stage.environ["AGENT_RING_AGAIN_SECONDS"])
        left = fleet.said("left to the sweeper")
        assert 0 < len(left) <= len(runs) * (rings + 1)  # no storm: each ring is heard by one worker, and not put back
        assert fleet.said("unregistered", "Traceback", "needs attention: step") == []
    assert {stage.row(run_id)["fence"] for run_id in runs} == {3}
    assert stage.faults(runs) == []
