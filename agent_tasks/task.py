"""The Celery side of a step: its task, and its request in the worker's parent."""

from __future__ import annotations

import logging
import reprlib
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.worker.request import Request

from agent_tasks.boundary import Boundary
from agent_tasks.errors import AgentTasksError, LedgerUnavailable
from agent_tasks.schema import MAX_SEQ, is_id

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

    def apply_async(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse: doorbells are rung by name, and a message of anybody else names no run.

        Raises:
            AgentTasksError: always; it says how a run is started.
        """
        raise AgentTasksError(
            f"step task {self.name!r} cannot be called by delay() or apply_async(), since it works for a run of the "
            f"ledger. Nothing was sent; start a run with {self.agent.name}.enqueue(…)."
        )

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Answer a doorbell, whose arguments are the run's id and the seq of the checkpoint to be made.

        Raises:
            Ignore: there is nothing to do, or nothing can be done now; the ledger says when to try again. Or the
                message is no doorbell.
        """
        from agent_tasks.integration import AppState

        if kwargs or not _is_doorbell(args):
            logger.warning(
                "a message to %s was dropped: a doorbell has a run id and a seq, got args %s and kwargs %s; "
                "start a run with %s.enqueue(…)",
                self.name,
                reprlib.repr(args),
                reprlib.repr(kwargs),
                self.agent.name,
                extra={"action": "message_dropped"},
            )
            raise Ignore
        run_id, seq = args
        try:
            worked = AppState.of(self.app).coordinator.handle(self.agent, self.step.name, run_id, seq)
        except LedgerUnavailable as error:
            logger.warning(
                "doorbell of run %s: %s", run_id, error, extra={"action": "ledger_unavailable", "run_id": run_id}
            )
            worked = False
        except SoftTimeLimitExceeded:  # outside the step's own code; the lease expires, and the run goes on
            logger.warning(
                "doorbell of run %s: its soft time limit struck",
                run_id,
                extra={"action": "time_limit", "run_id": run_id},
            )
            worked = False
        if not worked:
            raise Ignore


def _is_doorbell(args: tuple[Any, ...]) -> bool:
    """Tell whether a message's arguments are a run id and a seq; anybody may send one."""
    return [type(argument) for argument in args] == [str, int] and is_id(args[0]) and 0 < args[1] < MAX_SEQ


def register_step(agent: Agent, step: Step, options: dict[str, Any]) -> None:
    """Register the Celery task of a step, so that routes, limits, annotations and Flower's filters work per step."""
    app = agent.app
    name = f"{agent.name}.{step.name}"
    own = {"name": name, "agent": agent, "step": step, "abstract": False, "ring_queue": options.get("queue")}
    others = {option: value for option, value in options.items() if option != "queue"}
    base = type(f"{step.name}_task", (AgentTask,), {**own, **others})
    app.register_task(base())
