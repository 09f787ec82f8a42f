"""The Celery side of a run: what its tasks have in common, their requests in the worker's parent, and the task of a step."""

from __future__ import annotations

import logging
import reprlib
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TimeLimitExceeded
from celery.worker.request import Request, task_ready
from sqlalchemy.exc import SQLAlchemyError

from agent_tasks.boundary import Boundary
from agent_tasks.doorbell import RING_HEADER, is_doorbell, names_a_step
from agent_tasks.errors import AgentTasksError, ConfigurationError, LedgerUnavailable
from agent_tasks.reception import countable, readable, rejecting
from agent_tasks.revokes import HeardRevokes
from agent_tasks.shown import EVENTS_KEY, ShownSteps
from agent_tasks.troubles import first_line

if TYPE_CHECKING:
    from agent_tasks.agent import Agent
    from agent_tasks.steps import Step

logger = logging.getLogger(__name__)


#: In the delivery info of a request, which this worker writes and no sender: why its id was revoked.
REVOKED_KEY = "agent_revoked"

#: There too: when this worker heard the command that revoked its id, in seconds of its host's clock.
HEARD_KEY = "agent_revoke_heard"

#: What Celery puts beside the arguments in a message; the worker would take anything else for a fact about its request.
_EMBEDDED = ("callbacks", "errbacks", "chain", "chord")


class AgentRequest(Request):
    """A doorbell in the worker's parent; its ack passes the boundary.

    Nothing that happens to a doorbell says how its run ends, so nothing of it is stored as a result here: only a run that
    ended has one. All this runs on the worker's event loop, where no SQL may be waited for.
    """

    _boundary = Boundary()

    def __init__(self, message: Any, **options: Any) -> None:
        given = options.pop("headers", None)
        with rejecting():
            super().__init__(message, headers=countable(message.headers if given is None else given), **options)
        args, kwargs, embedded = readable(self.id, self._payload)
        if is_doorbell(self._request_dict, args, kwargs):
            self._delivery_info[RING_HEADER] = 1
        # Headers are passed on and forged. What the engine says about a request is said where no sender writes.
        for name in [name for name in self._request_dict if str(name).startswith("agent_")]:
            del self._request_dict[name]
        if self._eventer is not None and self._eventer.enabled and self.task.send_events:
            self._delivery_info[EVENTS_KEY] = 1
        embedded = embedded if isinstance(embedded, dict) else {}
        if not embedded.keys() <= set(_EMBEDDED):
            kept = {name: embedded.get(name) for name in _EMBEDDED}
            self._body = self.__dict__["_payload"] = (args, kwargs, kept)  # the latter is what Celery's parent reads
            self._content_type = self._content_encoding = None  # decoded

    def acknowledge(self) -> None:
        """Tell the broker that the message is done with."""
        if self.acknowledged:
            return
        AgentRequest._boundary.observer = Boundary.default_observer
        AgentRequest._boundary.ack("doorbell", super().acknowledge)

    def maybe_expire(self) -> bool:
        """Tell whether the message came too late. That of a plain task never does: its run may have been begun before.

        Celery would also remember its id as revoked, and so end the run at a later doorbell.
        """
        return not self.task.hears_of_revokes and bool(super().maybe_expire())

    def revoked(self) -> bool:
        """Tell whether the message is dropped. That of a plain task is not: its run must not be muted, but asked to end."""
        return bool(super().revoked()) and not (self.task.hears_of_revokes and not self._already_revoked)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """The process is killed, or the greenlet ended, for its hard time limit; its lease is given back, and the run goes on."""
        if soft:
            super().on_timeout(soft, timeout)
            return
        task_ready(self)
        logger.error(
            "%s[%s]: hard time limit (%s s) exceeded; its run goes on",
            self.name,
            self.id,
            timeout,
            extra={"action": "time_limit", "task": self.name},
        )
        self.acknowledge()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """What a doorbell's task raised; a killed process is no end of its run."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # the pool may have wrapped it
        if isinstance(error, TimeLimitExceeded):
            task_ready(self)
            self.acknowledge()
            return
        # Celery would store a final reject as the failure of whoever has the id.
        if isinstance(error, Reject) and not error.requeue:
            task_ready(self)
            AgentRequest._boundary.ack("reject", partial(self.reject, requeue=False))
            return
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if not self.task.hears_of_revokes:
            super()._announce_revoked(reason, terminated, signum, expired)
            return
        self._delivery_info[REVOKED_KEY] = reason
        self._delivery_info[HEARD_KEY] = HeardRevokes.of_this_process.get(self.id)
        self.send_event("task-revoked", terminated=terminated, signum=signum, expired=expired)
        if terminated:  # the process is dead, and its run is rung for
            task_ready(self)
            self.acknowledge()
            self._already_revoked = True


class LedgerTask(Task):
    """What tasks that work for a run have in common: acked after the work, requeued when their process dies.

    These are set on the task itself; no global setting is changed.
    """

    abstract = True
    acks_late = True
    acks_on_failure_or_timeout = True
    acks_on_failure = True
    acks_on_timeout = True
    reject_on_worker_lost = True
    retry_on_worker_lost = False
    Request = "agent_tasks.task:AgentRequest"
    Strategy = "agent_tasks.reception:strategy"

    #: The process that gets a doorbell is told that its id was revoked, and asks for the end of the run.
    hears_of_revokes = False

    def doorbell(self) -> tuple[str, int] | None:
        """Return run and seq of the doorbell that this process answers."""
        raise NotImplementedError


class StepTask(LedgerTask):
    """The task of a step; its results are ignored."""

    abstract = True
    ignore_result = True

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

    def doorbell(self) -> tuple[str, int] | None:
        """See :class:`LedgerTask`."""
        args = tuple(self.request.args or ())
        return (args[0], args[1]) if names_a_step(args) else None

    def run(self, *args: Any, **kwargs: Any) -> str | None:
        """Answer a doorbell, whose arguments are the run's id and the seq of the checkpoint to be made.

        Returns:
            How many steps the message has carried, for those who watch it; None where it was one.

        Raises:
            Ignore: there is nothing to do, or nothing can be done now; the ledger says when to try again. Or the
                message is no doorbell.
        """
        from agent_tasks.integration import AppState

        if kwargs or not names_a_step(args):
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
        shown = ShownSteps(self, self.agent.name, run_id)
        try:
            worked = AppState.of(self.app).coordinator.handle(self.agent, self.step.name, run_id, seq, shown)
        except (LedgerUnavailable, ConfigurationError, SQLAlchemyError) as error:
            # Whatever was refused did not happen; what was claimed goes on when its lease has ended.
            extra = {"action": "ledger_unavailable", "run_id": run_id}
            logger.warning("doorbell of run %s: %s", run_id, first_line(error), extra=extra)
            worked = False
        except (
            KeyboardInterrupt
        ):  # of the step's own, and logged; Celery would end the worker, or lose one of its threads
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
        return None if shown.count == 1 else f"{shown.count} steps"


def register_step(agent: Agent, step: Step, options: dict[str, Any]) -> None:
    """Register the Celery task of a step, so that routes, limits, annotations and Flower's filters work per step."""
    app = agent.app
    name = f"{agent.name}.{step.name}"
    own = {"name": name, "agent": agent, "step": step, "abstract": False, "ring_queue": options.get("queue")}
    others = {option: value for option, value in options.items() if option != "queue"}
    base = type(f"{step.name}_task", (StepTask,), {**own, **others})
    app.register_task(base())
