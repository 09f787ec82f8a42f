"""What `celery -A` loads in a worker process of these tests."""

import os
import threading
import time
from contextlib import suppress

from celery.signals import before_task_publish, worker_before_create_process, worker_process_init

from agent_tasks import forks
from agent_tasks.testing.kills import Kills
from tests.recovery.app import build, folder
from tests.waiting import wait_until

Kills.install()
app, agent = build(dict(os.environ))

_forked_at = 0.0


@worker_before_create_process.connect
def note_the_fork(**_):
    global _forked_at
    _forked_at = time.time()


@worker_process_init.connect
def note_the_start(**_):
    """The child inherits when its parent forked it, and tells how long its start took."""
    now = time.time()
    folder("starts").joinpath(str(os.getpid())).write_text(f"{now} {now - _forked_at}")


#: As that of a metric which a shop counts in such a handler; kombu has such locks, too, for shorter moments.
_published = threading.Lock()


@before_task_publish.connect
def count_slowly(**_):
    """Hold the lock where a test wants it, in a thread of the worker's parent, until a fork waits for that; none may."""
    with _published:
        asked = folder("slow") / "publish"
        if asked.exists() and threading.current_thread().name.startswith("agent-"):
            asked.rename(asked.with_name("publishing"))
            with suppress(AssertionError):
                wait_until(forks.is_awaited, "a fork waits", 1)
