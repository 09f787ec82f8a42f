"""Ringing through Celery: what a doorbell holds, where it goes, and what a broker's troubles come to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from agent_tasks import Agent, done
from agent_tasks.boundary import Boundary, Point
from agent_tasks.config import Settings
from agent_tasks.doorbell import RING_HEADER, CeleryBell, InlineBell, Ring
from tests.apps import close

pytestmark = pytest.mark.versions

SETTINGS = Settings("sqlite:///agent.db", publish_max_retries=1, single_host=True)


@pytest.fixture
def queue() -> str:
    return f"agents-{uuid.uuid4()}"


@pytest.fixture(params=["memory", "filesystem"])
def bell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CeleryBell]:
    app = Celery("rings", broker=f"{request.param}://", set_as_current=False)
    if request.param == "filesystem":
        folders = {name: tmp_path / name for name in ("messages", "control")}
        for folder in folders.values():
            folder.mkdir()
        app.conf.broker_transport = "agent_tasks.embedded:Transport"
        app.conf.broker_transport_options = {
            "data_folder_in": str(folders["messages"]),
            "data_folder_out": str(folders["messages"]),
            "control_folder": str(folders["control"]),
        }
    yield CeleryBell(app, Boundary(), SETTINGS)
    close(app)


def heard(bell: CeleryBell, queue: str) -> list[Any]:
    """Take all messages out of a queue."""
    messages = []
    with bell.app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple:
        while len(messages) < (bell.depth(queue) or 0) + len(messages):
            message = simple.get(timeout=5)
            message.ack()
            messages.append(message)
    return messages


# -- what it holds ------------------------------------------------------------------------------------------------------


def test_a_doorbell_is_a_message_to_the_steps_own_task_with_run_and_seq(bell: CeleryBell, queue: str) -> None:
    bell.ring(Ring("run-1", 3, "order", "pay", queue))
    (message,) = heard(bell, queue)
    arguments, keywords, _ = message.payload
    assert message.headers["task"] == "order.pay"
    assert (arguments, keywords) == (["run-1", 3], {})
    assert message.headers[RING_HEADER] == 1
    assert message.headers["ignore_result"] is True


def test_each_ring_has_an_id_of_its_own(bell: CeleryBell, queue: str) -> None:
    for _ in range(3):
        bell.ring(Ring("run-1", 3, "order", "pay", queue))
    assert len({message.headers["id"] for message in heard(bell, queue)}) == 3


def test_nothing_waits_in_the_broker(bell: CeleryBell, queue: str) -> None:
    bell.ring(Ring("run-1", 3, "order", "pay", queue))
    (message,) = heard(bell, queue)
    assert (message.headers["eta"], message.headers["expires"]) == (None, None)


@pytest.mark.parametrize(("priority", "expected"), [(0, 0), (7, 7)])
def test_a_doorbell_carries_the_priority_of_its_run(bell: CeleryBell, queue: str, priority: int, expected: int) -> None:
    bell.ring(Ring("run-1", 3, "order", "pay", queue, priority))
    (message,) = heard(bell, queue)
    assert message.properties["priority"] == expected


def test_a_ring_crosses_the_boundary(bell: CeleryBell, queue: str) -> None:
    seen: list[Point] = []
    bell.boundary.observer = seen.append
    bell.ring(Ring("run-1", 3, "order", "pay", queue))
    assert [str(point) for point in seen] == ["before publish doorbell", "after publish doorbell"]


# -- where it goes ------------------------------------------------------------------------------------------------------


def test_a_task_without_a_route_goes_to_the_default_queue(bell: CeleryBell) -> None:
    assert bell.queue_for("order.pay") == "celery"
    bell.app.conf.task_default_queue = "everything"
    assert CeleryBell(bell.app, Boundary(), SETTINGS).queue_for("order.pay") == "everything"


@pytest.mark.parametrize(
    "routes",
    [
        {"order.pay": {"queue": "money"}},
        {"order.*": "money"},
        [{"mail.*": "post"}, {"order.p*": {"queue": "money"}}],
        lambda name, *_args, **_options: {"queue": "money"} if name == "order.pay" else None,
    ],
    ids=["exact", "pattern", "list", "function"],
)
def test_a_task_goes_where_task_routes_says(routes: Any) -> None:
    app = Celery("rings", broker="memory://", set_as_current=False)
    app.conf.task_routes = routes
    bell = CeleryBell(app, Boundary(), SETTINGS)
    assert bell.queue_for("order.pay") == "money"
    assert bell.queue_for("order.create") == ("money" if routes == {"order.*": "money"} else "celery")


def test_a_step_that_names_its_queue_goes_there_whatever_task_routes_says() -> None:
    app = Celery("rings", broker="memory://", set_as_current=False)
    app.conf.task_routes = {"order.*": "orders"}
    agent = Agent("order", app=app)
    agent.step(queue="money", name="pay")(lambda _state: done())
    agent.step(name="send")(lambda _state: done())
    bell = CeleryBell(app, Boundary(), SETTINGS)
    assert (bell.queue_for("order.pay"), bell.queue_for("order.send")) == ("money", "orders")


def test_a_run_keeps_the_queue_that_was_written_into_it(queue: str, bell: CeleryBell) -> None:
    bell.app.conf.task_routes = {"order.pay": {"queue": "money"}}
    bell.ring(Ring("run-1", 1, "order", "pay", queue))
    assert bell.depth(queue) == 1


# -- counting -----------------------------------------------------------------------------------------------------------


ELSEWHERE = {"exchange": "media", "routing_key": "media.pay"}


def test_a_route_by_an_exchange_sends_no_doorbell_where_nobody_listens(bell: CeleryBell, queue: str) -> None:
    bell.app.conf.update(task_routes={"order.pay": ELSEWHERE}, task_default_queue=queue)
    bell.ring(Ring("run-1", 3, "order", "pay", bell.queue_for("order.pay")))
    assert len(heard(bell, queue)) == 1


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize("option", [ELSEWHERE, {"serializer": "pickle"}], ids=["exchange", "serializer"])
def test_options_of_a_step_about_its_messages_lose_no_doorbell(
    bell: CeleryBell, queue: str, option: dict[str, Any]
) -> None:
    Agent("order", app=bell.app).step(name="pay", **option)(lambda _state: done())
    bell.ring(Ring("run-1", 3, "order", "pay", queue))
    (message,) = heard(bell, queue)
    assert message.content_type == "application/json"


def test_a_doorbell_comes_to_a_queue_by_whatever_exchange_it_is_bound(queue: str) -> None:
    app = Celery("topics", broker="memory://", set_as_current=False)
    bound = Queue(queue, Exchange(f"topics-{queue}", type="topic"), routing_key="pay.#")
    app.conf.update(task_queues=[bound], task_routes={"order.pay": {"queue": queue, "routing_key": "pay.cards"}})
    bell = CeleryBell(app, Boundary(), SETTINGS)
    with app.connection_for_write() as connection:
        bound(connection.default_channel).declare()
    bell.ring(Ring("run-1", 3, "order", "pay", queue))
    assert bell.depth(queue) == 1
    close(app)


def test_a_queue_that_is_not_there_holds_no_message(bell: CeleryBell, queue: str) -> None:
    assert bell.depth(queue) == 0


def test_a_queue_holds_the_doorbells_that_were_rung(bell: CeleryBell, queue: str) -> None:
    for run_id in ("run-1", "run-2"):
        bell.ring(Ring(run_id, 1, "shop", "order", queue))
    assert bell.depth(queue) == 2


@pytest.mark.parametrize("priority", [0, 9])
def test_redis_counts_the_doorbells_of_every_priority(redis_url: str, queue: str, priority: int) -> None:
    app = Celery("rings", broker=redis_url, set_as_current=False)
    bell = CeleryBell(app, Boundary(), SETTINGS)
    assert bell.depth(queue) == 0
    for number in range(3):
        bell.ring(Ring(f"run-{number}", 1, "shop", "order", queue, priority))
    assert bell.depth(queue) == 3
    close(app)


# -- a broker that is away ----------------------------------------------------------------------------------------------


@pytest.fixture
def away() -> Iterator[CeleryBell]:
    """A bell whose broker nobody runs."""
    app = Celery("rings", broker="redis://127.0.0.1:1/0", set_as_current=False)
    yield CeleryBell(app, Boundary(), SETTINGS)
    close(app)


def test_a_broker_that_is_away_cannot_count_and_fails_nobody(away: CeleryBell, queue: str) -> None:
    assert away.depth(queue) is None


def test_a_doorbell_that_cannot_be_published_is_logged_and_left_to_the_sweeper(
    away: CeleryBell, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    away.ring(Ring("run-1", 3, "order", "pay", queue))
    (record,) = [record for record in caplog.records if getattr(record, "action", "") == "doorbell_lost"]
    assert "doorbell of run run-1 step pay was not published" in record.getMessage()
    assert (record.__dict__["run_id"], record.__dict__["seq"]) == ("run-1", 3)


def test_a_crash_in_the_middle_of_a_publish_is_no_trouble_of_the_broker(bell: CeleryBell, queue: str) -> None:
    class Crash(BaseException):
        pass

    def crash(_point: Point) -> None:
        raise Crash

    bell.boundary.observer = crash
    with pytest.raises(Crash):
        bell.ring(Ring("run-1", 3, "order", "pay", queue))
    assert bell.depth(queue) == 0


# -- in process ---------------------------------------------------------------------------------------------------------


def test_the_bell_in_process_keeps_its_doorbells_in_order() -> None:
    bell = InlineBell(Boundary())
    rings = [Ring(f"run-{number}", 1, "order", "pay", bell.queue_for("order.pay")) for number in range(3)]
    for ring in rings:
        bell.ring(ring)
    assert list(bell.rings) == rings
    assert (bell.depth("inline"), bell.depth("another")) == (3, 0)
