"""What `celery -A` loads in a worker process of the tests of plain tasks."""

import os

from agent_tasks.testing.kills import Kills
from tests.recovery.plain_app import build

Kills.install()
app, tasks = build(dict(os.environ))
