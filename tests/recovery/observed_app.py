"""Plain tasks in observe mode that a real worker runs. Configured by the environment, as `tests.recovery.plain_app` is."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from agent_tasks import AgentTask
from tests.recovery.plain_app import FOLDER_VARIABLE, Outside

app = Celery("observed", set_as_current=False)
app.conf.update(
    broker_url=os.environ["AGENT_BROKER_URL"],
    result_backend=os.environ["AGENT_RESULT_BACKEND"],
    agent_database_url=os.environ["AGENT_DATABASE_URL"],
    agent_mode="observe",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)
outside = Outside(Path(os.environ[FOLDER_VARIABLE]))


@app.task(base=AgentTask, name="shop.pay", dedupe_on=("order",), shared=False)
def pay(order, cents=300):
    outside.see(order, os.getpid())  # the effect, which plain Celery does as often as it likes
    outside.wait(order)
    return {"order": order, "cents": cents}


@app.task(base=AgentTask, name="shop.retried", bind=True, max_retries=2, default_retry_delay=0, shared=False)
def retried(self, order):
    if outside.see(order) < 2:
        raise self.retry(exc=ValueError(order))
    return "at last"
