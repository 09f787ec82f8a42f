"""Agents that make calls together, as a real worker's children run them. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.batch_app worker
"""

from __future__ import annotations

import os
import runpy
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from agent_tasks import Agent, Happened, NotHappened, calls, done, run_calls, tool

FOLDER_VARIABLE = "AGENT_BATCH_FOLDER"

LETTERS = "abcdef"

#: The calls that wait for the gate before they act; with two threads, those after them have not begun by then.
HELD = "cd"

app = Celery("batches", set_as_current=False)
_settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
app.conf.update({name: value for name, value in _settings.items() if name.islower() and name[0] != "_"})


def place(name: str) -> Path:
    return Path(os.environ[FOLDER_VARIABLE], name)


def append(name: str, line: str) -> None:
    """Let the outside world hear of something, in one write."""
    with place(name).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


@tool(effect="probed", timeout=timedelta(seconds=4), bind=True)
def act(operation, what: str) -> str:
    if what in HELD:
        append("held", f"{operation.run_id} {os.getpid()}")
        while place("gate").exists():
            time.sleep(0.01)
    append("world", operation.operation_id)
    return what.upper()


@act.probe
def look(operation):
    happened = operation.operation_id in place("world").read_text().split()
    return Happened(operation.args["what"].upper()) if happened else NotHappened()


def planned() -> list[Any]:
    return [act.call(letter) for letter in LETTERS]


together = Agent("together", app=app, tools=[act])


@together.step
def make(_state):
    return done(run_calls(planned(), max_concurrency=2))


returned = Agent("returned", app=app, tools=[act])


@returned.step(start=True)
def ask(_state):
    return calls(planned(), then=hear, max_concurrency=2)


@returned.step
def hear(_state, results):
    return done(results)
