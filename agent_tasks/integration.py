"""What this package keeps for each Celery app: its agents, and the runtime of this process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from kombu import pools

from agent_tasks.config import Settings
from agent_tasks.coordinator import Coordinator
from agent_tasks.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from agent_tasks.agent import Agent

#: Of a Celery app: its state here.
_ATTRIBUTE = "_agent_tasks"

#: What a run in this process works with, by app: of a thread of control, since other threads go on with their process's own.
_inline: ContextVar[dict[AppState, Runtime]] = ContextVar("agent_tasks_inline_runtimes")

#: The apps that have a state here, for a child to begin their connections anew.
_apps: weakref.WeakSet[Celery] = weakref.WeakSet()


class AppState:
    """One app's agents and, for each process, its runtime.

    A child forgets its parent's runtime: engines are made per process, and a connection that was inherited over fork is
    neither used nor closed.
    """

    _lock = threading.RLock()

    def __init__(self, app: Celery) -> None:
        from agent_tasks.worker import add_to_worker

        self.app = app
        self.agents: dict[str, Agent] = {}
        self._runtime: Runtime | None = None
        self._pid = 0
        _apps.add(app)
        add_to_worker(app)

    @classmethod
    def of(cls, app: Celery) -> AppState:
        """Return the state of an app."""
        app = app._get_current_object() if hasattr(app, "_get_current_object") else app
        with cls._lock:
            # On the app itself, so that an app that nobody needs any more goes away with all of it.
            state: AppState | None = vars(app).get(_ATTRIBUTE)
            if state is None:
                state = cls(app)
                setattr(app, _ATTRIBUTE, state)
            return state

    @property
    def runtime(self) -> Runtime:
        """The one that this thread of control works with, or this process's, which is made when it is first needed.

        Raises:
            ConfigurationError: the settings cannot keep the promise.
        """
        if (inline := _inline.get({}).get(self)) is not None:
            return inline
        with self._lock:
            if self._runtime is None or self._pid != os.getpid():
                self._runtime = Runtime.of(self.app, Settings.of(self.app))
                self._pid = os.getpid()
            return self._runtime

    @contextmanager
    def working_with(self, runtime: Runtime) -> Iterator[None]:
        """Let this thread of control work with a runtime of its own, and the threads that it carries its run into."""
        token = _inline.set({**_inline.get({}), self: runtime})
        try:
            yield
        finally:
            _inline.reset(token)

    def use_runtime(self, runtime: Runtime | None) -> None:
        """Let the whole process work with this runtime from now on; None lets the next use make one."""
        with self._lock:
            self._runtime, self._pid = runtime, os.getpid()

    @property
    def coordinator(self) -> Coordinator:
        """What answers doorbells in this process."""
        return Coordinator(self.runtime)


def _begin_anew() -> None:
    """Forget, and do not close, the connections to the broker that a forked child has of its parent.

    Both would write to one socket, in the middle of each other's frames. Celery and kombu do the same, and hear of it only
    where billiard forks: not of ``os.fork``, nor of Python's own ``multiprocessing``.
    """
    pools.producers.clear()
    pools.connections.clear()
    for app in list(_apps):
        app._after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
