"""What a Celery app carries of this package."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

from celery import Celery

from agent_tasks import Agent, done
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade

ROOT = Path(__file__).parents[2]


def made(url: str) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=url, agent_single_host=True)
    agent = Agent("orders", app=app)

    @agent.step
    def pay(state: dict[str, object]) -> object:
        return done()

    return app


def test_an_app_that_nobody_needs_any_more_goes_away_with_its_agents_and_connections(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    upgrade(url)
    app = made(url)
    state = AppState.of(app)
    assert AppState.of(app) is state
    assert state.runtime.engine is state.runtime.engine
    gone = [weakref.ref(thing) for thing in (app, state, state.runtime.engine)]

    del app, state
    gc.collect()

    assert [reference() for reference in gone] == [None] * len(gone)


CALLS = """
import sys
from celery import Celery
from agent_tasks import Agent, AgentTask, done

app = Celery("calls", broker="memory://")
app.conf.agent_database_url = sys.argv[1]
agent = Agent("order", app=app)
agent.step(lambda state: done(), name="pay", start=True)


@app.task(base=AgentTask, tools=[])
def pay():
    pass


agent.enqueue()
pay.delay()
print([name for name in sys.modules if name.startswith("sqlalchemy.orm")])
"""


def test_a_call_does_not_import_the_orm_beside_the_statements_of_other_threads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALLS, f"sqlite:///{tmp_path / 'agent.db'}"]
    called = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert (called.stdout, called.stderr) == ("[]\n", "")
