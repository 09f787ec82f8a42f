"""An agent whose async bodies hear no cancel, as a real worker's child runs them. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.async_app worker
"""

from __future__ import annotations

import asyncio
import os
import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from agent_tasks import Agent, Happened, NotHappened, done, tool

FOLDER_VARIABLE = "AGENT_ASYNC_FOLDER"

app = Celery("overstays", set_as_current=False)
_settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
app.conf.update({name: value for name, value in _settings.items() if name.islower() and name[0] != "_"})


def place(name: str) -> Path:
    return Path(os.environ[FOLDER_VARIABLE], name)


def append(name: str, *words: object) -> None:
    """Let the outside world hear of something, in one write."""
    with place(name).open("ab", buffering=0) as file:
        file.write(f"{' '.join(map(str, words))}\n".encode())


async def charge(operation: Any) -> str:
    """The effect is there at once, and the first body of a run does not end by itself."""
    append("sent", operation.run_id, operation.idempotency_key)
    while operation.attempts == 1:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            append("overstays", operation.run_id, os.getpid())
    return "charged"


_until: dict[str, Any] = {"bind": True, "timeout": timedelta(seconds=2), "settle": timedelta(seconds=3)}
keyed = tool(effect="keyed", name="keyed", key_lifetime=timedelta(hours=1), **_until)(charge)
probed = tool(effect="probed", name="probed", **_until)(charge)
manual = tool(effect="manual", name="manual", **_until)(charge)


@keyed.probe
@probed.probe
def find(operation: Any) -> Happened | NotHappened:
    sent = operation.idempotency_key in place("sent").read_text()
    return Happened("charged") if sent else NotHappened()


payer = Agent("payer", app=app, tools=[keyed, probed, manual])


@payer.step(start=True)
async def pay(state: Any) -> Any:
    return done(await payer.tools[state["by"]]())
