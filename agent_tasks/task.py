"""The Celery side of a step: its task, and its request in the worker's parent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore
from celery.worker.request import Request

from agent_tasks.boundary import Boundary
from agent_tasks.errors import LedgerUnavailable

if TYPE_CHECKING:
    from agent_tasks.agent import Agent
    from agent_tasks.steps import Step

logger = logging.getLogger(__name__)


class AgentRequest(Request):
    """A step's message in the worker's parent; its ack passes the boundary."""

    _boundary = Boundary()

    def acknowledge(self) -> None:
        """Tell the broker that the message is done with."""
        if self.acknowledged:
            return
        AgentRequest._boundary.observer = Boundary.default_observer
        AgentRequest._boundary.ack("doorbell", super().acknowledge)


class AgentTask(Task):
    """Base class of step tasks: acked after the work, requeued when its process dies, results ignored.

    These are set on the task itself; no global setting is changed.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    ignore_result = True
    Request = "agent_tasks.task:AgentRequest"

    agent: Agent
    step: Step
    ring_queue: str | None = None  # of @agent.step(queue=…); Celery warns of a task that has a `queue`

    def run(self, run_id: str, seq: int) -> None:
        """Answer a doorbell.

        Raises:
            Ignore: there is nothing to do, or nothing can be done now; the ledger says when to try again.
        """
        from agent_tasks.integration import AppState

        try:
            worked = AppState.of(self.app).coordinator.handle(self.agent, self.step.name, run_id, seq)
        except LedgerUnavailable as error:
            logger.warning(
                "doorbell of run %s: %s", run_id, error, extra={"action": "ledger_unavailable", "run_id": run_id}
            )
            worked = False
        if not worked:
            raise Ignore


def register_step(agent: Agent, step: Step, options: dict[str, Any]) -> None:
    """Register the Celery task of a step, so that routes, limits, annotations and Flower's filters work per step."""
    app = agent.app
    name = f"{agent.name}.{step.name}"
    own = {"name": name, "agent": agent, "step": step, "abstract": False, "ring_queue": options.get("queue")}
    others = {option: value for option, value in options.items() if option != "queue"}
    base = type(f"{step.name}_task", (AgentTask,), {**own, **others})
    app.register_task(base())
