"""An agent of long steps, as a real worker's children run it. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.long_app worker
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

from celery import Celery

from agent_tasks import Agent, done, sleep, tool, wait_until

FOLDER_VARIABLE = "AGENT_LONG_FOLDER"

PAGES = 6

#: The page behind which the body waits for the gate, with its progress saved.
HELD = 2

app = Celery("long", set_as_current=False)
_settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
app.conf.update({name: value for name, value in _settings.items() if name.islower() and name[0] != "_"})


def place(name: str) -> Path:
    return Path(os.environ[FOLDER_VARIABLE], name)


def append(name: str, line: str) -> None:
    """Let the outside world hear of something, in one write."""
    with place(name).open("ab", buffering=0) as file:
        file.write(f"{line} {os.getpid()}\n".encode())


@tool(effect="repeatable", why="a page that is sent twice replaces itself", bind=True)
def send(operation) -> int:
    operation.record_external_id("job-7")
    for page in range(operation.progress or 0, PAGES):
        append("pages", str(page))
        operation.save_progress(page + 1)
        if page == HELD:
            append("held", operation.run_id)
            while place("gate").exists():
                time.sleep(0.01)
    return PAGES


sender = Agent("sender", app=app, tools=[send])


@sender.resource
def desk():
    append("desk", "open")
    yield "a desk"
    append("desk", "closed")


@sender.step(start=True)
def first(state):
    desk()
    state["sent"] = send()
    return sleep(1, then=second)


@sender.step
def second(_state):
    return wait_until(answered, every=1, then=last)


@sender.step
def answered(_state):
    append("asked", "asked")
    answer = place("answer")
    return answer.read_text() if answer.exists() else None


@sender.step
def last(state, answer):
    return done([state["sent"], answer])


@tool(effect="repeatable", why="a page that is sent twice replaces itself", bind=True)
def overstay(operation) -> int:
    append("overstayed", str(operation.progress))
    if operation.progress is None:
        operation.save_progress("half")
        while True:
            time.sleep(1)
    return operation.progress


limited = Agent("limited", app=app, tools=[overstay])


@limited.step(time_limit=3)
def only(_state):
    return done(overstay())
