"""Ringing through Celery."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery

from agent_tasks.boundary import Boundary
from agent_tasks.config import Settings
from agent_tasks.doorbell import CeleryBell, Ring


@pytest.fixture
def bell() -> Iterator[CeleryBell]:
    app = Celery("rings", broker="memory://", set_as_current=False)
    yield CeleryBell(app, Boundary(), Settings("sqlite:///agent.db"))
    app.close()


@pytest.fixture
def queue() -> str:
    return f"agents-{uuid.uuid4()}"


def test_a_queue_that_is_not_there_holds_no_message(bell: CeleryBell, queue: str) -> None:
    assert bell.depth(queue) == 0


def test_a_queue_holds_the_doorbells_that_were_rung(bell: CeleryBell, queue: str) -> None:
    for run_id in ("run-1", "run-2"):
        bell.ring(Ring(run_id, 1, "shop", "order", queue))
    assert bell.depth(queue) == 2


def test_a_broker_that_is_away_cannot_count_and_fails_nobody(queue: str) -> None:
    app = Celery("rings", broker="redis://127.0.0.1:1/0", set_as_current=False)
    bell = CeleryBell(app, Boundary(), Settings("sqlite:///agent.db", single_host=True))
    assert bell.depth(queue) is None
    app.close()
