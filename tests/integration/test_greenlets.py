"""Greenlets of gevent: in processes of their own, since a process that gevent has patched stays so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from agent_tasks.errors import ConfigurationError
from agent_tasks.greenlets import check_pool
from tests.services import ROOT

pytestmark = pytest.mark.usefixtures("gevent_installed")

PATCHED = "from gevent import monkey; monkey.patch_all()\n"

#: What it says about itself comes last, and is true or an error.
BEGINS = """
import sys
from datetime import timedelta
import gevent
from sqlalchemy import text
from agent_tasks import OutsideRun, UnorderedCalls, carry_run, current_run, done, tool
from agent_tasks.coordinator import Coordinator
from agent_tasks.greenlets import check_patched
from tests.one_process import OneProcess
here = OneProcess(sys.argv[1])
"""


def said(script: str, *arguments: str, **environ: str) -> str:
    """Run a script, and return the last thing that it said."""
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


#: One run waits in SQL for a lock that the other one gives back once it sees that somebody waits.
INTERLEAVED = """
check_patched()
holder = here.runtime.engine.connect()
holder.execute(text("SELECT pg_advisory_lock(7)"))

@tool(effect="transactional", bind=True, timeout=timedelta(seconds=60))
def wait(operation):
    operation.connection.execute(text("SET LOCAL lock_timeout = '30s'"))
    operation.connection.execute(text("SELECT pg_advisory_xact_lock(7)"))
    return "waited"

@tool(effect="read")
def waiting():
    with here.runtime.engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")).scalar()

def give_back(state):
    while not waiting():
        gevent.sleep(0.01)
    holder.execute(text("SELECT pg_advisory_unlock(7)"))
    return done("gave back")

agents = [here.agent(wait, name="first", step=lambda state: done(wait())), here.agent(waiting, name="second", step=give_back)]
runs = [agent.enqueue({}, run_id=agent.name) for agent in agents]
gevent.joinall([gevent.spawn(Coordinator(here.runtime).handle, agent, "step", agent.name, 1) for agent in agents], raise_error=True)
print([run.get(timeout=0) for run in runs])
"""


def test_while_one_run_waits_for_the_database_others_go_on_in_the_same_thread(
    postgres_database: Callable[[], str],
) -> None:
    assert said(PATCHED + BEGINS + INTERLEAVED, postgres_database()) == "['waited', 'gave back']"


#: A step that calls tools from greenlets of its own.
SPAWNED = """
sent = []

@tool(effect="manual", timeout=timedelta(seconds=20))
def mail(to):
    sent.append(to)

@tool(effect="manual", timeout=timedelta(seconds=20), key=lambda to: to)
def keyed_mail(to):
    sent.append(to)
    gevent.sleep(0)

def name_of(call, *arguments):
    try:
        call(*arguments)
    except (OutsideRun, UnorderedCalls) as error:
        return f"{type(error).__name__}: {'greenlet' in str(error)}"

def send(state):
    mail("first")
    bare = gevent.spawn(name_of, mail, "bare").get()
    carried = gevent.spawn(name_of, carry_run(mail), "carried").get()
    gevent.joinall([gevent.spawn(carry_run(keyed_mail), to) for to in ("kim", "robin")], raise_error=True)
    mail("last")
    return done([bare, carried])

run = here.run(here.agent(mail, keyed_mail, send=send))
print(run.get(timeout=0), sorted(sent), len(run.operations()))
"""


@pytest.mark.parametrize("patched", [PATCHED, ""], ids=["patched", "not patched"])
def test_a_call_without_a_key_from_a_greenlet_that_a_step_spawned_is_refused_before_anything_is_recorded(
    patched: str, tmp_path: object
) -> None:
    answer = said(patched + BEGINS + SPAWNED, f"sqlite:///{tmp_path}/agent.db")
    assert answer == "['OutsideRun: False', 'UnorderedCalls: True'] ['first', 'kim', 'last', 'robin'] 4"


WORKER = """
import celery
{}
import agent_tasks, psycopg
{}
app = celery.Celery("shop", broker="memory://")
app.conf.update(agent_database_url="sqlite:///" + __import__("sys").argv[1], agent_single_host=True, {})
agent_tasks.Agent("order", app=app)
app.Worker()
print("started")
"""


@pytest.mark.parametrize(
    ("first", "later", "said_of_it"),
    [
        pytest.param("", "", "gevent has not patched socket, select, ssl, threading, time", id="not at all"),
        pytest.param("", PATCHED, "after agent_tasks and psycopg had been loaded", id="too late"),
        pytest.param("import psycopg", "", "gevent has not patched", id="by nobody"),
        pytest.param("import psycopg\n" + PATCHED, "", "after psycopg had been loaded", id="too late for the driver"),
    ],
)
def test_a_worker_whose_greenlets_would_block_each_other_does_not_start_and_says_how_it_would(
    first: str, later: str, said_of_it: str, tmp_path: object
) -> None:
    answer = said(WORKER.format(first, later, "worker_pool='gevent'"), f"{tmp_path}/agent.db")
    assert answer.startswith("agent_tasks.errors.ConfigurationError: the pool is gevent")
    assert said_of_it in answer
    assert "celery -A yourapp worker --pool gevent" in answer


def test_a_worker_that_was_patched_first_starts(tmp_path: object) -> None:
    assert said(WORKER.format(PATCHED, "", "worker_pool='gevent'"), f"{tmp_path}/agent.db") == "started"


def test_more_greenlets_than_there_are_places_for_attempts_are_refused(tmp_path: object) -> None:
    conf = "worker_pool='gevent', worker_concurrency=2000"
    answer = said(WORKER.format(PATCHED, "", conf), f"{tmp_path}/agent.db")
    assert "worker_concurrency must be at most 1024 where agents run, got 2000: start several workers" in answer


def test_the_eventlet_pool_is_refused_by_name() -> None:
    pool = type("TaskPool", (SimpleNamespace,), {"__module__": "celery.concurrency.eventlet", "is_green": True})()
    with pytest.raises(
        ConfigurationError, match=r"eventlet pool cannot keep leases .* use --pool gevent, threads or prefork"
    ):
        check_pool(pool)


def test_other_pools_need_nothing_of_gevent() -> None:
    assert not check_pool(SimpleNamespace())
