"""Observe mode: plain tasks run as plain Celery runs them, and the ledger counts what would not have been done twice."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task
from sqlalchemy import and_, case, event, update
from sqlalchemy.pool import NullPool

from agent_tasks.boundary import Boundary
from agent_tasks.clock import Clock
from agent_tasks.config import Settings, mode_named
from agent_tasks.database import open_engine, parse_url
from agent_tasks.migrate import OPENING, upgrade
from agent_tasks.schema import MAX_CALL_LENGTH, tables
from agent_tasks.states import Mode
from checkpoint.inserts import upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery
    from sqlalchemy import Connection, Engine

logger = logging.getLogger(__name__)

#: How long nothing is counted after the ledger gave no answer, so that tasks do not wait for it one by one, in seconds.
PAUSE_SECONDS = 30.0

#: How long one task waits for the ledger at the most when it begins and when it ends: to connect, or for a lock.
_WAIT_SECONDS = 2

#: Of a Celery app: what counts in this process.
_ATTRIBUTE = "_agent_tasks_observer"

_lock = threading.Lock()


def mode_of(task: type[Task], app: Celery) -> Mode:
    """Return the mode of a plain task: its own ``agent_mode``, or the app's.

    Raises:
        ConfigurationError: there is no such mode.
    """
    own = task.agent_mode
    if own is not None:
        return mode_named(f"agent_mode of task {task.name!r}", own)
    of_all = app.conf.get("agent_mode")
    return Mode.GUARD if of_all is None else mode_named("the setting agent_mode", of_all)


def be_plain(task: type[Task], base: type[Task], app: Celery) -> None:
    """Let a task be acked and requeued as Celery's settings say, but for what it says itself.

    Args:
        task: the class of one task.
        base: this package's class, from which on nothing is the user's word.
        app: whose settings count.
    """
    own = task.__mro__[: task.__mro__.index(base)]
    settings = dict(Task.from_config)
    for name in ("acks_late", "acks_on_failure_or_timeout", "acks_on_failure", "acks_on_timeout", "reject_on_worker_lost",
                 "retry_on_worker_lost", "Request"):  # fmt: skip
        if any(name in vars(cls) for cls in own):
            continue
        value = getattr(Task, name, None)
        setattr(task, name, app.conf[settings[name]] if value is None and name in settings else value)


def observe(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], body: Callable[[], Any]) -> Any:
    """Run the body of a task; count that it began, and how it ended, as far as the ledger can be written to."""
    observer = Observer.of(task.app)
    call = observer.begins(task, args, kwargs)
    try:
        value = body()
    except Exception:  # of anything else, such as an exit, the process dies: that is what is counted
        observer.ends(task, call, succeeded=False)
        raise
    observer.ends(task, call, succeeded=True)
    return value


class Observer:
    """Counts the calls of one app's tasks in this process; what goes wrong with that is logged and never raised."""

    def __init__(self, app: Celery) -> None:
        self._app, self._pid = app, os.getpid()
        self._engine: Engine | None = None
        self._boundary, self._clock = Boundary(), Clock()
        self._silent_until = 0.0

    @classmethod
    def of(cls, app: Celery) -> Observer:
        """Return that of an app in this process; a child makes its own, with connections of its own."""
        with _lock:
            observer: Observer | None = vars(app).get(_ATTRIBUTE)
            if observer is None or observer._pid != os.getpid():
                observer = cls(app)
                setattr(app, _ATTRIBUTE, observer)
            return observer

    def begins(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Count that a body begins.

        Returns:
            The key of its call, or None if it is not counted.
        """
        call = _call_of(task, args, kwargs)
        key = hashlib.blake2b(f"{task.name}\0{call}".encode(errors="replace"), digest_size=20).hexdigest()
        readable = call.encode("unicode_escape").decode()[:MAX_CALL_LENGTH]

        def work(connection: Connection, settings: Settings) -> None:
            table = tables(settings.table_prefix).observed
            now, c = self._clock.now(), table.c
            first = {
                "call_key": key,
                "task": task.name,
                "call": readable,
                "state": "running",
                "starts": 1,
                "successes": 0,
            }
            counts = {"after_success": 0, "after_loss": 0, "after_failure": 0}
            again = [
                ("after_success", c.after_success + _if(c.successes > 0)),
                ("after_loss", c.after_loss + _if(c.successes == 0, c.state == "running")),
                ("after_failure", c.after_failure + _if(c.successes == 0, c.state == "failed")),
                ("starts", c.starts + 1),
                ("state", "running"),
                ("last_at", now),
            ]
            row = {**first, **counts, "first_at": now, "last_at": now}
            upsert(connection, table, [row], lambda _new: again)

        return key if self._count(task, work) else None

    def ends(self, task: Task, key: str | None, *, succeeded: bool) -> None:
        """Count how a body ended whose beginning was counted."""

        def work(connection: Connection, settings: Settings) -> None:
            table = tables(settings.table_prefix).observed
            ended = {"state": "succeeded" if succeeded else "failed", "successes": table.c.successes + int(succeeded)}
            connection.execute(update(table).where(table.c.call_key == key).values(**ended, last_at=self._clock.now()))

        if key is not None:
            self._count(task, work)

    def _count(self, task: Task, work: Callable[[Connection, Settings], None]) -> bool:
        if time.monotonic() < self._silent_until:
            return False
        try:
            settings = Settings.of(self._app)
            if self._engine is None:
                self._engine = _engine(settings)
            self._boundary.commit("observe", self._engine, lambda connection: work(connection, settings))
            return True
        except SoftTimeLimitExceeded:  # the task's own, as it would strike in its body
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the task is none of its business
            self._silent_until = time.monotonic() + PAUSE_SECONDS
            logger.warning(
                "task %s is not observed for %g s, and runs all the same (%s: %s)",
                task.name,
                PAUSE_SECONDS,
                type(error).__name__,
                error,
                extra={"action": "observe_failed", "task": task.name},
            )
            return False


def _if(*conditions: Any) -> Any:
    return case((and_(*conditions), 1), else_=0)


def _engine(settings: Settings) -> Engine:
    """Return an engine that keeps no task waiting for long, on a ledger that SQLite brings up to date by itself."""
    if parse_url(settings.database_url).get_backend_name() != "sqlite":
        return open_engine(
            settings.database_url,
            pool_size=1,
            pool_timeout=_WAIT_SECONDS,
            connect_args={"connect_timeout": _WAIT_SECONDS},
        )
    upgrade(settings.database_url, settings.table_prefix, OPENING)
    engine = open_engine(settings.database_url, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def wait_briefly(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={_WAIT_SECONDS * 1000}")

    return engine


def _call_of(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return what makes two calls the same: the parameters of ``dedupe_on``, or the id of the message."""
    try:
        bound = inspect.signature(task.run).bind(*args, **kwargs)
        bound.apply_defaults()
        named = {name: bound.arguments[name] for name in task.dedupe_on}
    except (TypeError, ValueError, KeyError):  # arguments that do not fit, or parameters that are not there
        named = {}
    if named:
        return ", ".join(f"{name}={value!r}" for name, value in named.items())
    return f"id {task.request.id}"
