"""An agent whose step forks, as a real worker's child runs it. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.fork_app worker
"""

from __future__ import annotations

import os
import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from agent_tasks import Agent, InForkedProcess, done, tool

FOLDER_VARIABLE = "AGENT_FORK_FOLDER"

app = Celery("forks", set_as_current=False)
_settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
app.conf.update({name: value for name, value in _settings.items() if name.islower() and name[0] != "_"})


def note(word: str) -> None:
    """Let the outside world hear of something."""
    with Path(os.environ[FOLDER_VARIABLE], "world").open("a") as world:
        world.write(f"{word}\n")


@tool(effect="manual", timeout=timedelta(seconds=20))
def charge(cents: int) -> int:
    note(f"charged {cents}")
    return cents


forker = Agent("forker", app=app, tools=[charge])


@forker.step(start=True)
def go(state: Any) -> Any:
    child = os.fork()
    if child == 0 and state["how"] == "calls in both":
        try:
            charge(20)
        except InForkedProcess as error:
            note(f"refused: {error}")
        os._exit(0)
    if child == 0:
        return done("the child's")
    os.waitpid(child, 0)
    return done(charge(10))
