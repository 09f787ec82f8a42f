"""Workers that are told to stop, as a deployment does."""

from __future__ import annotations

import json
import signal

import pytest

from tests.recovery.app import CONF_VARIABLE
from tests.recovery.places import PLACES, on
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow]

LIMIT_SECONDS = 60


@on("on_servers", "on_rabbitmq", "embedded")
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


#: How a worker is told to stop, and what is set for it: the body under way does not end by itself.
STOPS = {
    "cold": (signal.SIGQUIT, {}),
    "soft": (signal.SIGTERM, {"REMAP_SIGTERM": "SIGQUIT", CONF_VARIABLE: {"worker_soft_shutdown_timeout": 1}}),
}


@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param("on_servers", "soft", marks=PLACES["on_servers"]),
        pytest.param("on_rabbitmq", "cold", marks=PLACES["on_rabbitmq"]),
    ],
)
def test_a_body_that_a_stop_interrupts_goes_on_elsewhere(placed: Stage, how: str) -> None:
    stage, (kind, environ) = placed, STOPS[how]
    conf = {**json.loads(stage.environ.get(CONF_VARIABLE, "{}")), **environ.get(CONF_VARIABLE, {})}
    stopped = {f"in-{tool}": f"after {tool}" for tool in ("note", "create_order", "charge", "book", "send_mail")}
    with stage.workers(
        {**environ, CONF_VARIABLE: json.dumps(conf)}, concurrency=len(stopped), name="stopped"
    ) as workers:
        for run_id, where in stopped.items():
            stage.enqueue(run_id, misdeed=(where, "gate"))
        wait_until(lambda: all(map(stage.bodies, stopped)), "all bodies ran", LIMIT_SECONDS)
        workers.retire(workers.workers[0].pid, kind)
        with stage.workers(1, concurrency=2):
            stage.finish(stopped)
        for run_id in stopped:
            stage.open_gate(run_id)
    assert stage.faults(stopped) == []
