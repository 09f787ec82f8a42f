"""Brokers and databases that are stopped and started again under real workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tasks.states import RunStatus
from tests.recovery.app import CONF_VARIABLE
from tests.recovery.conftest import QUORUM
from tests.recovery.stage import Stage, stage
from tests.services import OwnServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_SECONDS = 100


@pytest.fixture
def broken_broker(
    broker: str, postgres_database: Callable[[], str], own_server: Callable[[str], OwnServer], tmp_path: Path
) -> Iterator[tuple[Stage, OwnServer]]:
    """A stage whose broker is its own."""
    server = own_server(broker)
    services = {"AGENT_DATABASE_URL": postgres_database(), "AGENT_BROKER_URL": server.url}
    if broker == "rabbitmq":
        services[CONF_VARIABLE] = json.dumps(QUORUM)
    with stage(tmp_path, services) as made:
        yield made, server


@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("redis", marks=pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")),
        pytest.param("rabbitmq", marks=pytest.mark.serves(ledger="postgresql", broker="rabbitmq", pool="prefork")),
    ],
)
def test_while_the_broker_is_away_runs_are_taken_and_steps_commit_and_all_goes_on_afterwards(
    broken_broker: tuple[Stage, OwnServer], caplog: pytest.LogCaptureFixture
) -> None:
    stage, server = broken_broker
    under_way, meanwhile = [f"under-way-{n}" for n in range(4)], [f"meanwhile-{n}" for n in range(4)]
    with stage.workers(2, concurrency=2):
        for run_id in under_way:
            stage.enqueue(run_id, gated=True)
        wait_until(lambda: all(map(stage.bodies, under_way)), "all bodies ran", LIMIT_SECONDS)
        if stage.app.conf.broker_url.startswith("amqp"):
            server.ctl("stop_app")
        else:
            server.stop()
        for run_id in meanwhile:
            stage.enqueue(run_id)
        for run_id in under_way:
            stage.open_gate(run_id)
        wait_until(
            lambda: {stage.row(run_id)["seq"] for run_id in under_way} == {1}, "the steps committed", LIMIT_SECONDS
        )
        assert set(stage.statuses(meanwhile).values()) == {RunStatus.QUEUED}
        if stage.app.conf.broker_url.startswith("amqp"):
            server.ctl("start_app")
        else:
            server.start()
        stage.finish([*under_way, *meanwhile])
    assert [line for line in caplog.messages if "was not published" in line]
    assert [len(stage.bodies(run_id)) for run_id in under_way] == [1] * len(under_way)
    assert stage.faults([*under_way, *meanwhile]) == []


@pytest.mark.serves(ledger="postgresql", broker="rabbitmq", pool="prefork")
@pytest.mark.parametrize("broker", ["rabbitmq"])
def test_a_step_that_outlasts_the_consumer_timeout_of_rabbitmq_runs_once(
    broken_broker: tuple[Stage, OwnServer],
) -> None:
    """RabbitMQ takes the message back and closes the channel, which ends the worker of today's Celery when it is idle."""
    stage, server = broken_broker
    for setting, milliseconds in (("consumer_timeout", 3000), ("channel_tick_interval", 500)):
        server.ctl("eval", f"application:set_env(rabbit, {setting}, {milliseconds}).")
    with stage.workers(2, concurrency=2, always_restart=True) as fleet:
        stage.enqueue("long", gated=True)
        wait_until(lambda: stage.bodies("long"), "the body runs", LIMIT_SECONDS)
        claims = stage.claims("long")
        wait_until(lambda: fleet.said("PRECONDITION_FAILED"), "RabbitMQ took the doorbell back", LIMIT_SECONDS)
        wait_until(lambda: stage.claims("long") > claims, "it gave the doorbell out again", LIMIT_SECONDS)
        stage.open_gate("long")
        stage.finish(["long"])
    assert len(stage.bodies("long")) == 1
    assert stage.row("long")["fence"] == 3
    assert stage.faults(["long"]) == []


@pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")
def test_a_database_that_is_restarted_under_load_and_down_for_longer_than_a_lease_parks_nothing(
    own_server: Callable[[str], OwnServer], redis_url: str, tmp_path: Path
) -> None:
    server = own_server("postgresql")
    long, load = ["long"], [f"load-{n}" for n in range(24)]
    with stage(tmp_path, {"AGENT_DATABASE_URL": server.url, "AGENT_BROKER_URL": redis_url}) as there:
        with there.workers(2, concurrency=3) as fleet:
            there.enqueue("long", gated=True)
            for run_id in load:
                there.enqueue(run_id)
            wait_until(lambda: there.bodies("long"), "a body runs", LIMIT_SECONDS)
            for how in ("SIGINT", "SIGQUIT"):  # PostgreSQL's words for these are fast and immediate
                crossed = len(there.kills.crossings("long"))
                server.stop(how)
                server.start()
                there.runtime.engine.dispose()
                wait_until(lambda: set(there.statuses(load).values()) & {RunStatus.RUNNING, RunStatus.SUCCEEDED})
                assert crossed
            before = there.row("long")
            server.stop("SIGINT")
            back_at = time.monotonic() + 2 * float(there.environ["AGENT_LEASE_SECONDS"])
            wait_until(lambda: time.monotonic() > back_at, "a lease went by", LIMIT_SECONDS)
            server.start()
            there.runtime.engine.dispose()
            wait_until(lambda: there.row("long")["due_at"] > before["due_at"] + 3_000_000, "its lease is renewed")
            there.open_gate("long")
            there.finish([*long, *load])
            assert fleet.said("lost its worker") == []
        assert len(there.bodies("long")) == 1
        assert there.faults([*long, *load]) == []
