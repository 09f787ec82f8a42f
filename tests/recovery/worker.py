"""What `celery -A` loads in a worker process of these tests."""

import os
import time

from celery.signals import worker_before_create_process, worker_process_init

from agent_tasks.testing.kills import Kills
from tests.recovery.app import build, folder

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
