"""Doorbells: the broker's messages, which hold (run_id, seq) and nothing else that matters (I1)."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from celery.utils import uuid
from kombu.exceptions import ChannelError

from agent_tasks.messages import headers_of
from agent_tasks.schema import MAX_SEQ, is_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from agent_tasks.boundary import Boundary
    from agent_tasks.config import Settings

logger = logging.getLogger(__name__)

#: Header of each doorbell. Somebody's own message may have it too, since headers are passed on.
RING_HEADER = "agent_ring"


def names_a_step(args: Any) -> bool:
    """Tell whether a message's arguments are a run id and a seq; anybody may send one.

    Example:
        >>> names_a_step(("run-1", 1)), names_a_step(("run-1",))
        (True, False)
    """
    return (
        isinstance(args, (tuple, list))
        and [type(argument) for argument in args] == [str, int]
        and is_id(args[0])
        and 0 < args[1] < MAX_SEQ
    )


def is_doorbell(headers: Mapping[str, Any], args: Any, kwargs: Any) -> bool:
    """Tell a doorbell from somebody's own message.

    Args:
        headers: of the message.
        args: positional arguments in it.
        kwargs: keyword arguments in it.
    """
    return bool(headers.get(RING_HEADER)) and names_a_step(args) and not kwargs


@dataclass(frozen=True)
class Ring:
    """A doorbell: which step of which run is claimable."""

    run_id: str
    seq: int
    agent: str
    step: str
    queue: str
    priority: int = 0
    plain_task: str | None = None  # of a run that is one plain Celery task
    message: bytes | None = None  # what goes with each doorbell of it; see agent_tasks.messages

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Ring:
        """Return the doorbell of a run as its row stands."""
        return cls(
            str(row["run_id"]),
            int(row["seq"]) + 1,
            row["agent"],
            row["next_step"],
            row["queue"],
            row["priority"],
            row["task"],
            row["message"],
        )

    @property
    def task(self) -> str:
        """Name of the Celery task that answers it."""
        return self.plain_task or f"{self.agent}.{self.step}"


class Bell(Protocol):
    """Whatever carries doorbells."""

    def ring(self, ring: Ring) -> None:
        """Publish a doorbell; a failure is logged and left to the sweeper."""
        ...

    def depth(self, queue: str) -> int | None:
        """Return how many messages a queue holds, or None where the transport cannot count."""
        ...

    def queue_for(self, task: str) -> str:
        """Return the queue that a task is routed to."""
        ...


class CeleryBell:
    """Rings through Celery, with kombu's pool of producers and a bounded number of publish retries."""

    def __init__(self, app: Celery, boundary: Boundary, settings: Settings) -> None:
        self.app, self.boundary, self.settings = app, boundary, settings

    def ring(self, ring: Ring) -> None:
        """See :class:`Bell`."""
        try:
            self.boundary.publish("doorbell", lambda: self._publish(ring))
        except Exception as error:  # noqa: BLE001 - whatever the transport raises: due_at stands, the sweeper rings
            logger.warning(
                "doorbell of run %s step %s was not published (%s: %s); the sweeper rings it again",
                ring.run_id,
                ring.step,
                type(error).__name__,
                error,
                extra={"action": "doorbell_lost", "run_id": ring.run_id, "seq": ring.seq},
            )

    def _publish(self, ring: Ring) -> None:
        retry = {
            "max_retries": self.settings.publish_max_retries,
            "interval_start": 0.1,
            "interval_step": 0.2,
            "interval_max": 1.0,
        }
        # A revoked id must not mute the run of a step; the run of a plain task is what its caller knows by the id.
        task_id = uuid() if ring.plain_task is None else ring.run_id
        with self.app.producer_pool.acquire(block=True, timeout=10) as producer:
            self.app.send_task(
                ring.task,
                args=[ring.run_id, ring.seq],
                task_id=task_id,
                producer=producer,
                queue=ring.queue,
                **self._way_to(ring.queue),
                ignore_result=True,
                add_to_parent=False,
                expires=None,
                headers={**headers_of(ring.message), RING_HEADER: 1},
                retry=True,
                retry_policy=retry,
                **({"priority": ring.priority} if ring.priority else {}),
            )

    def _way_to(self, queue: str) -> dict[str, Any]:
        """Return how to send to a queue by its name, and as the app encodes messages, whatever the task or its route says.

        Celery takes ``exchange=`` and ``routing_key=`` of both beside the queue, and sends elsewhere.
        """
        bound = self.app.amqp.queues[queue]
        if bound.exchange.type == "direct":
            return {"exchange": "", "routing_key": queue, "serializer": None}
        return {"exchange": bound.exchange.name, "routing_key": bound.routing_key, "serializer": None}

    def depth(self, queue: str) -> int | None:
        """See :class:`Bell`."""
        try:
            with self.app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=5)
                declared = self.app.amqp.queues[queue](connection.default_channel).queue_declare(passive=True)
                return int(declared.message_count)
        except ChannelError as error:
            if str(error.reply_code) == "404":  # to Redis a queue without messages is not there
                return 0
            logger.debug("queue %s cannot be counted: %s", queue, error)
            return None
        except Exception as error:  # noqa: BLE001 - a transport that cannot count, or a broker that is away
            logger.debug("queue %s cannot be counted: %s", queue, error)
            return None

    def queue_for(self, task: str) -> str:
        """See :class:`Bell`."""
        of_task = getattr(self.app.tasks.get(task), "ring_queue", None)  # as given to @agent.step(queue=…)
        route = self.app.amqp.router.route({"queue": of_task} if of_task else {}, task)
        queue = route.get("queue")
        return str(getattr(queue, "name", queue) or self.app.conf.task_default_queue)


class InlineBell:
    """Keeps doorbells in memory, for runs in process and for the crash explorer."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary
        self.rings: deque[Ring] = deque()

    def ring(self, ring: Ring) -> None:
        """See :class:`Bell`."""
        self.boundary.publish("doorbell", lambda: self.rings.append(ring))

    def depth(self, queue: str) -> int:
        """See :class:`Bell`."""
        return sum(ring.queue == queue for ring in self.rings)

    def queue_for(self, task: str) -> str:
        """See :class:`Bell`."""
        return "inline"
