"""Workers that are told to stop, as a deployment does."""

from __future__ import annotations

import pytest

from tests.recovery.places import on_each
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

LIMIT_SECONDS = 60


@on_each
def test_a_step_under_way_keeps_its_lease_while_its_worker_waits_for_it_to_stop(placed: Stage) -> None:
    stage = placed
    with stage.workers(2) as workers:
        stage.enqueue("long", gated=True)
        wait_until(lambda: stage.bodies("long"), "the step ran", LIMIT_SECONDS)
        workers.retire(stage.bodies("long")[0].worker)
        stopped_at = stage.row("long")
        lease = int(float(stage.environ["AGENT_LEASE_SECONDS"]) * 1e6)
        wait_until(
            lambda: stage.row("long")["due_at"] > stopped_at["due_at"] + lease, "it was renewed for long", LIMIT_SECONDS
        )
        assert stage.row("long")["fence"] == stopped_at["fence"]
        stage.open_gate("long")
        wait_until(lambda: stage.all_ended(["long"]), "the run ended", LIMIT_SECONDS)
    assert len(stage.bodies("long")) == 1
    assert stage.faults(["long"]) == []
