"""Greenlets: what a worker of the gevent pool needs beside what a worker of threads does.

All its steps share one thread, and whatever waits in the operating system without gevent's knowledge stops all of them. So
gevent has to replace what waits *before* anything else is loaded; and what keeps the leases runs in a thread of the
operating system, which goes on beside a step that does not give way.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from agent_tasks.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

#: What this package was loaded with. gevent puts its own in their places; what was loaded before that keeps these.
_LOADED_WITH = (time.sleep, threading.get_ident)

#: Modules whose waiting the engine, its drivers and Celery count on.
_PATCHED = ("socket", "select", "ssl", "threading", "time")

_HOW = (
    "Start the worker with `celery -A yourapp worker --pool gevent` (Celery patches then, before it loads anything), and set "
    "worker_pool nowhere else; or let `from gevent import monkey; monkey.patch_all()` be the first lines of what starts it."
)


def check_pool(pool: Any) -> bool:
    """Tell whether a worker's pool is gevent's, and ready for work.

    Args:
        pool: Celery's, which has not started yet.

    Raises:
        ConfigurationError: it is eventlet's, or gevent has not patched what waits, or too late.
    """
    if not getattr(pool, "is_green", False):
        return False
    if "eventlet" in type(pool).__module__:
        raise ConfigurationError(
            "the eventlet pool cannot keep leases while a step computes, and agents do not start in it: use --pool gevent, "
            "threads or prefork."
        )
    check_patched()
    return True


def check_patched() -> None:
    """Refuse a process in which a step that waits would stop all the others.

    Raises:
        ConfigurationError: gevent has not patched what waits, or did so after this package or the driver was loaded.
    """
    from gevent import monkey

    missing = [name for name in _PATCHED if not monkey.is_module_patched(name)]
    if missing:
        raise ConfigurationError(
            f"the pool is gevent and gevent has not patched {', '.join(missing)}: a step that waits for its database or for a "
            f"vendor would stop all the others, and locks would guard nothing. {_HOW}"
        )
    waiting = sys.modules.get("psycopg.waiting")
    late = [] if (time.sleep, threading.get_ident) == _LOADED_WITH else ["agent_tasks"]
    # psycopg chooses how it waits when it is loaded.
    if waiting is not None and getattr(waiting, "wait", None) is getattr(waiting, "wait_c", ""):
        late.append("psycopg")
    if late:
        raise ConfigurationError(
            f"the pool is gevent and gevent patched what waits after {' and '.join(late)} had been loaded, which go on with what "
            f"stops all steps. {_HOW}"
        )


def thread_of_control() -> tuple[int, object]:
    """Return what makes one call after another here: a thread of the operating system, and the gevent greenlet in it or None.

    A greenlet that is not gevent's, such as those by which SQLAlchemy crosses into asyncio, belongs to whoever waits for it.
    """
    gevent = sys.modules.get("gevent")
    if gevent is None or not hasattr(gevent, "getcurrent"):  # another thread may be loading it
        return threading.get_ident(), None
    monkey = sys.modules.get("gevent.monkey")
    thread = monkey.get_original("_thread", "get_ident")() if monkey is not None else threading.get_ident()
    found = gevent.getcurrent()
    while found is not None and not isinstance(found, gevent.Greenlet):
        found = found.parent
    return thread, found


class Flag:
    """An event for a thread of the operating system, whose waiting gevent does not see."""

    def __init__(self) -> None:
        from gevent import monkey

        self._is_set = False
        self._sleep = monkey.get_original("time", "sleep")

    def set(self) -> None:
        """Let the next ``wait`` tell so."""
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        """Wait for so long, and tell whether it is set then."""
        self._sleep(seconds)
        return self._is_set


class RealThread:
    """A thread of the operating system in a process where ``threading.Thread`` is a greenlet.

    Args:
        target: what it runs.
        name: for messages.
        daemon: it never keeps the process from ending, whatever is said.
    """

    def __init__(self, target: Callable[[], object], name: str, daemon: bool = True) -> None:
        self.name, self._target, self._ended = name, target, False

    def start(self) -> None:
        """Start it."""
        from gevent import monkey

        monkey.get_original("_thread", "start_new_thread")(self._run, ())

    def join(self, seconds: float) -> None:
        """Wait for its end at most so long, while other greenlets go on."""
        deadline = time.monotonic() + seconds
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self) -> None:
        from gevent import get_hub

        try:
            self._target()
        finally:
            get_hub().destroy(destroy_loop=True)  # waiting for the database made it
            self._ended = True
