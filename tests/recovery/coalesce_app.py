"""Agents whose steps share messages, as a real worker's children run them. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.coalesce_app worker
"""

from __future__ import annotations

import os
import runpy
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from agent_tasks import Agent, Coalesce, Happened, NotHappened, current_run, done, tool

FOLDER_VARIABLE = "AGENT_COALESCE_FOLDER"

app = Celery("coalesced", set_as_current=False)
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
    append("world", operation.operation_id)
    return what.upper()


@act.probe
def look(operation):
    happened = operation.operation_id in place("world").read_text().split()
    return Happened(operation.args["what"].upper()) if happened else NotHappened()


def note(state: Any) -> None:
    """Say which step began, and stay in it while the gate of the run and the step is closed."""
    append("bodies", f"{current_run.run_id} {current_run.step} {current_run.seq} {os.getpid()}")
    state["passed"] = [*state.get("passed", []), current_run.step]
    while place(f"gate {current_run.run_id} {current_run.step}").exists():
        time.sleep(0.01)


def buyer(checkpoints: str) -> Agent:
    """Make an agent that buys twice, with steps that call nothing around that."""
    agent = Agent(checkpoints, app=app, tools=[act], coalesce=Coalesce(seconds=60, checkpoints=checkpoints))

    @agent.step(start=True)
    def think(state):
        note(state)
        return order

    @agent.step
    def order(state):
        note(state)
        state["order"] = act("order")
        return weigh

    @agent.step
    def weigh(state):
        note(state)
        return choose

    @agent.step
    def choose(state):
        note(state)
        return pay

    @agent.step
    def pay(state):
        note(state)
        return done([*state["passed"], state["order"], act("pay")])

    return agent


each, boundaries = buyer("each"), buyer("boundaries")

#: Goes on for as long as it may.
restless = Agent("restless", app=app, coalesce=Coalesce(seconds=600))


@restless.step
def again(state):
    append("bodies", f"{current_run.run_id} again {current_run.seq} {os.getpid()}")
    return again if not place("enough").exists() else done(current_run.seq)
