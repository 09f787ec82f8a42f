"""The worker's side: a bootstep that owns the threads of the heartbeat and of the sweeper.

In prefork they run in the worker's parent, in other pools beside the steps.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals

from agent_tasks import forks
from agent_tasks.boundary import Boundary
from agent_tasks.clock import Clock
from agent_tasks.complaints import Complaints, Seldom
from agent_tasks.config import Settings
from agent_tasks.declarations import is_async
from agent_tasks.doorbell import is_doorbell
from agent_tasks.errors import ConfigurationError, LedgerUnavailable
from agent_tasks.folders import remove_left_behind
from agent_tasks.greenlets import Flag, RealThread, check_pool
from agent_tasks.heartbeat import Heartbeat
from agent_tasks.integration import AppState
from agent_tasks.meeting import warn_if_missed
from agent_tasks.migrate import prepare
from agent_tasks.pool import use_surviving_pool
from agent_tasks.revokes import HeardRevokes
from agent_tasks.runtime import Runtime
from agent_tasks.slots import LOOK_SECONDS, MAX_SLOTS, Slots
from agent_tasks.sweeper import Sweeper
from agent_tasks.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery import Celery

    from agent_tasks.agent import Agent

logger = logging.getLogger(__name__)

#: How long a stop waits for a thread, in seconds.
_STOP_SECONDS = 5.0


class Looper:
    """Calls a function again and again in a thread; an exception is logged, rarely if it stays, and the next turn comes all the same.

    Forks of the process wait for a turn's end (see :mod:`agent_tasks.forks`).

    Args:
        name: of the thread.
        turn: the function.
        pause_seconds: between two turns.
        may_end: once it was stopped, it goes on until this says so.
        real: the thread is one of the operating system, also where gevent has made greenlets of threads.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        pause_seconds: float,
        may_end: Callable[[], bool] = lambda: True,
        *,
        real: bool = False,
    ) -> None:
        self._turn, self._pause_seconds, self._may_end = turn, pause_seconds, may_end
        self._stopped: threading.Event | Flag = Flag() if real else threading.Event()
        self._around = nullcontext if real else forks.turn  # gevent's pool does not fork
        self._thread = (RealThread if real else threading.Thread)(target=self._loop, name=name, daemon=True)
        self._complaints = Complaints(name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end as soon as it may, and wait for the turn under way if that is now."""
        self._stopped.set()
        if self._may_end():
            self._thread.join(_STOP_SECONDS)

    def _loop(self) -> None:
        while not self._ended():
            try:
                with self._around():
                    self._turn()
            except Exception as error:  # noqa: BLE001 - one bad row, or an outage, never ends the thread
                self._complaints.failed(error)
            else:
                self._complaints.succeeded()

    def _ended(self) -> bool:
        if not self._stopped.wait(self._pause_seconds):
            return False
        if self._may_end():
            return True
        if not isinstance(
            self._stopped, Flag
        ):  # which always waits; an event is set for good, and makes no pause any more
            time.sleep(self._pause_seconds)
        return False


class AgentWorkerStep(bootsteps.StartStopStep):
    """Keeps the leases of the worker's processes, and sweeps."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._loopers: list[Looper] = []
        self._runtime: Runtime | None = None

    def create(self, worker: Any) -> None:
        """Make the table of slots before the pool makes its processes, which inherit it.

        Raises:
            ConfigurationError: the settings cannot keep the promise, or the ledger was never migrated; the worker does
                not start.
        """
        # Before any thread works with the ledger: statements of others fail by a part of SQLAlchemy's ORM, while a result backend
        # or a body imports the rest of it.
        import_module("sqlalchemy.orm")
        settings = Settings.of(worker.app)
        for agent in AppState.of(worker.app).agents.values():
            agent.check_ready()
        if worker.concurrency > MAX_SLOTS:
            raise ConfigurationError(
                f"worker_concurrency must be at most {MAX_SLOTS} where agents run, got {worker.concurrency}: start several workers."
            )
        self._is_green = check_pool(worker.pool)
        if self._is_green:
            _refuse_async(AppState.of(worker.app).agents.values())
        _say_what_the_pool_ignores(worker)
        try:
            prepare(settings.database_url, settings.table_prefix)
        except LedgerUnavailable as error:  # it may come back; nothing is claimed before
            logger.warning("%s", error, extra={"action": "ledger_unavailable"})
        # Before the pool's processes are made, which would each say it again.
        warn_if_missed(settings, worker.app.conf.broker_url or worker.app.conf.broker_read_url)
        remove_left_behind()
        self._slots = Slots.of_new_worker()
        use_surviving_pool(worker.pool)

    def start(self, worker: Any) -> None:
        """Start the threads; after the pool's processes, which would not inherit them."""
        settings = Settings.of(worker.app)
        self._runtime = Runtime.of(worker.app, settings)
        self._runtime.slots = self._slots
        heartbeat = Heartbeat(self._runtime, _replacer(worker))
        self._loopers = [
            *self._renewing(worker, settings),
            Looper("agent-heartbeat", heartbeat.beat, LOOK_SECONDS, self._nothing_under_way),
            # In a thread of its own, since a database that does not answer must not keep an overdue body alive.
            Looper("agent-deadlines", heartbeat.kill_overdue, LOOK_SECONDS, self._nothing_under_way),
            Looper("agent-sweeper", Sweeper(self._runtime).sweep, settings.sweep_seconds),
        ]
        for looper in self._loopers:
            looper.start()
        signals.worker_shutting_down.connect(self._is_told_to_stop, sender=worker.hostname)

    def _is_told_to_stop(self, **_more: Any) -> None:
        """Say it to the processes that run steps, before the worker waits for them."""
        self._slots.stop()

    def _renewing(self, worker: Any, settings: Settings) -> list[Looper]:
        """Return what renews leases while a greenlet does not give way: a thread with connections of its own."""
        if not self._is_green:
            return []
        own = Runtime.of(
            worker.app, settings
        )  # gevent's locks are slow between threads, and one may wait in the other's pool
        own.slots = self._slots
        return [Looper("agent-leases", Heartbeat(own).renew, LOOK_SECONDS, self._nothing_under_way, real=True)]

    def stop(self, worker: Any) -> None:
        """Stop the threads; the heartbeat goes on for as long as the pool's processes finish what they have begun."""
        self._is_told_to_stop()  # by a command of remote control there was no signal
        for looper in self._loopers:
            looper.stop()
        self._loopers = []

    def terminate(self, worker: Any) -> None:
        """Stop the threads in the same way; a worker that runs in a thread of a program does not take them along."""
        self.stop(worker)

    def _nothing_under_way(self) -> bool:
        return not self._slots.leases()


class UnknownDoorbells(bootsteps.Step):
    """Drops doorbells of steps that only another release knows, and leaves their runs to the sweepers.

    Celery would log each with its whole body and a traceback, and each run is rung for every few seconds, for as long as two
    releases are at work. Here a step has one line a minute.
    """

    def create(self, consumer: Any) -> None:
        """Ask here first about tasks that nobody registered."""
        self._consumer, self._others = consumer, consumer.on_unknown_task
        self._seldom = Seldom(Clock().local)
        consumer.on_unknown_task = self._drop

    def _drop(self, body: Any, message: Any, error: BaseException) -> None:
        if not _is_doorbell(message):
            self._others(body, message, error)
            return
        task, run_id = str(message.headers.get("task")), str(message.payload[0][0])
        left_out = self._seldom.left_out(task)
        if left_out is not None:
            logger.warning(
                "a doorbell of %s for run %s was left to the sweeper: this worker does not know the step, another release may%s",
                task,
                run_id,
                f" ({left_out} more of this step were since the last such line)" if left_out else "",
                extra={"action": "step_unknown", "task": task, "run_id": run_id},
            )
        acknowledge = partial(message.ack_log_error, logger, self._consumer.connection_errors)
        Boundary().ack("doorbell", acknowledge)


def _is_doorbell(message: Any) -> bool:
    try:
        args, kwargs, _ = message.payload
        return is_doorbell(message.headers or {}, args, kwargs)
    except Exception:  # noqa: BLE001 - whatever cannot be read is no doorbell
        return False


def _refuse_async(agents: Iterable[Agent]) -> None:
    """Refuse what awaits, where an event loop would stop all greenlets.

    Raises:
        ConfigurationError: an agent has such steps or tools.
    """
    for agent in agents:
        found = [f"step {step.name!r}" for step in agent.steps.values() if is_async(step.function)]
        found += [
            tool.subject
            for tool in agent.tools.values()
            if tool.is_async or (tool.probe_body is not None and is_async(tool.probe_body))
        ]
        if found:
            raise ConfigurationError(
                f"{' and '.join(found)} of {agent.subject} are async, and the pool is gevent, whose greenlets an event loop would "
                "stop. Use --pool prefork, threads or solo for this agent; or write plain functions, of which gevent runs many at a "
                "time."
            )


def _say_what_the_pool_ignores(worker: Any) -> None:
    """Say it of time limits: a step's author counts on what he has declared."""
    if hasattr(worker.pool, "BlockingPool"):  # prefork, which has both
        return
    conf, tasks = worker.app.conf, worker.app.tasks
    limits = ("soft_time_limit",) if getattr(worker.pool, "is_green", False) else ("soft_time_limit", "time_limit")
    declared = {
        f"{limit} of {name}"
        for limit in limits
        for name, task in tasks.items()
        if isinstance(task, LedgerTask) and getattr(task, limit, None) is not None
    }
    declared |= {f"task_{limit}" for limit in limits if conf.get(f"task_{limit}") is not None}
    if declared:
        logger.warning(
            "this pool ends no step at such a time limit, and %s will do nothing: give tools timeout=, and their clients "
            "operation.remaining(); or use the prefork pool",
            ", ".join(sorted(declared)),
            extra={"action": "time_limits_ignored"},
        )


def _replacer(worker: Any) -> Callable[[], object] | None:
    """Return what lets the pool replace its dead processes now; by itself Celery sometimes looks only every 5 seconds."""
    hub, maintain = getattr(worker, "hub", None), getattr(getattr(worker.pool, "_pool", None), "maintain_pool", None)
    if hub is None or maintain is None:  # a pool without an event loop has a thread that looks all the time
        return None
    return lambda: hub.call_soon(maintain)  # in the loop's thread, where the pool's own timer calls it too


def add_to_worker(app: Celery) -> None:
    """Let every worker of the app keep leases and sweep."""
    app.steps["worker"].add(AgentWorkerStep)
    app.steps["consumer"].add(UnknownDoorbells)
    app.steps["consumer"].add(HeardRevokes)
