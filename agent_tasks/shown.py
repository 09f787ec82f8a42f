"""The steps that follow in a message, as Celery's events show them: each as a task of its own name (Flower, `celery events`).

Whoever watches a worker sees messages. A step without one is shown as if it had one: received, started and succeeded, under
an id of its own whose parent is the message that carries it. Its events are sent by the process that runs it, and only where
the worker sends events at all.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from kombu.utils.uuid import uuid

if TYPE_CHECKING:
    from celery import Task

logger = logging.getLogger(__name__)

#: In the delivery info of a request, which this worker writes and no sender: its events are sent.
EVENTS_KEY = "agent_events"


class ShownSteps:
    """Counts the steps that one message carries, and shows those behind the first one.

    Args:
        task: that works on the message in this thread.
        agent: whose steps they are.
        run_id: of the run.

    Attributes:
        count: of the steps so far.
    """

    def __init__(self, task: Task, agent: str, run_id: str) -> None:
        self._app, self._request, self._agent, self._run_id = task.app, task.request, agent, run_id
        self._sends = bool((self._request.delivery_info or {}).get(EVENTS_KEY))
        self._id, self._began = "", 0.0
        self.count = 1

    def begun(self, step: str, seq: int) -> None:
        """See :class:`agent_tasks.coalescing.Show`."""
        self.count += 1
        self._id, self._began = uuid(), time.monotonic()
        request = self._request
        facts = {"args": repr([self._run_id, seq]), "kwargs": "{}", "retries": 0, "eta": None, "expires": None}
        kin = {"root_id": request.root_id or request.id, "parent_id": request.id}
        self._send(("task-received", {"name": f"{self._agent}.{step}", **facts, **kin}), ("task-started", {}))

    def ended(self) -> None:
        """See :class:`agent_tasks.coalescing.Show`; as a doorbell's task does, it succeeds whatever the step ends in."""
        self._send(("task-succeeded", {"result": "None", "runtime": time.monotonic() - self._began}))

    def _send(self, *events: tuple[str, dict[str, Any]]) -> None:
        if not self._sends:
            return
        try:
            with self._app.events.default_dispatcher(hostname=self._request.hostname) as dispatcher:
                for kind, fields in events:
                    dispatcher.send(kind, uuid=self._id, **fields)
        except Exception as error:  # noqa: BLE001 - whatever the transport raises; nobody waits for an event
            self._sends = False
            logger.warning(
                "run %s: the steps that follow in message %s are not shown (%s: %s)",
                self._run_id,
                self._request.id,
                type(error).__name__,
                error,
                extra={"action": "events_lost", "run_id": self._run_id},
            )
