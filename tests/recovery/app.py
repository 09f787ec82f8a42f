"""The agent that is killed: every effect once, in three steps. A worker's app module, configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… celery -A tests.recovery.worker worker
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy
from celery import Celery

from agent_tasks import Agent, Happened, NotHappened, current_run, done, tool
from agent_tasks.demo.carts import Cart, total_cents
from agent_tasks.demo.vendor import Vendor

SHOP_VARIABLE = "AGENT_RECOVERY_SHOP"
FOLDER_VARIABLE = "AGENT_RECOVERY_FOLDER"
VISIBILITY_VARIABLE = "AGENT_RECOVERY_VISIBILITY_SECONDS"
#: JSON with further Celery settings.
CONF_VARIABLE = "AGENT_RECOVERY_CONF"
#: Set for a worker of an older release, which knows neither the first step of the shop nor other agents.
OLD_VARIABLE = "AGENT_RECOVERY_OLD"

#: Deadline of one call of the shop, and so the wait until a call in doubt can be asked about.
CALL = timedelta(seconds=4)

#: Pause before the retry of a run that met an outage; long enough to kill its worker meanwhile.
RETRY_SECONDS = 5

books = sqlalchemy.Table(
    "books",
    sqlalchemy.MetaData(),
    sqlalchemy.Column("number", sqlalchemy.Integer, primary_key=True),
    sqlalchemy.Column("run_id", sqlalchemy.String(200)),
    sqlalchemy.Column("charge", sqlalchemy.String(200)),
)


@tool(effect="read")
def price(cart: Cart) -> int:
    with misdeeds_around("price"):
        return total_cents(cart)


@tool(effect="repeatable", why="the same bytes to the same file are the same as once")
def note(run_id: str, cents: int) -> None:
    with misdeeds_around("note"):
        folder("notes").joinpath(run_id).write_text(str(cents))


@tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
def create_order(operation, cart: Cart) -> Any:
    with misdeeds_around("create_order"):
        return shop().create_order(cart, key=operation.idempotency_key, seconds=10)


@tool(effect="probed", timeout=CALL, bind=True)
def charge(operation, order: dict[str, Any]) -> Any:
    with misdeeds_around("charge"):
        return shop().charge(order, reference=operation.operation_id, seconds=operation.remaining())


@charge.probe
def charge_outcome(operation):
    found = shop().charges(operation.operation_id, seconds=CALL.total_seconds())
    return Happened(found[0], found[0]["id"]) if found else NotHappened()


@tool(effect="transactional", bind=True)
def book(operation, charge_id: str) -> None:
    with misdeeds_around("book"):
        operation.connection.execute(books.insert().values(run_id=operation.run_id, charge=charge_id))


@tool(effect="manual", timeout=CALL, bind=True)
def send_mail(operation, cart: Cart, order_id: str) -> Any:
    with misdeeds_around("send_mail"):
        return shop().send_mail(cart, order_id, seconds=operation.remaining())


def shop() -> Vendor:
    return Vendor(os.environ[SHOP_VARIABLE])


def folder(name: str) -> Path:
    path = Path(os.environ[FOLDER_VARIABLE]) / name
    path.mkdir(exist_ok=True)
    return path


def wait_at_the_gate(where: str = "") -> None:
    """Stay in the body for as long as the test wants, and tell it that the body runs."""
    gate = folder("gates") / f"{current_run.run_id} {where}".strip()
    if gate.exists():
        with (folder("bodies") / current_run.run_id).open("a") as bodies:
            bodies.write(f"{time.time()} {os.getpid()} {os.getpgrp()}\n")  # a worker leads its group
    while gate.exists():
        time.sleep(0.01)


def meet_an_end() -> None:
    """Raise in every try of a run that the test wants lost again and again."""
    end = folder("ends") / current_run.run_id
    if end.exists():
        MISDEEDS[end.read_text()]("")


def meet_an_outage() -> None:
    """Raise in the first try of a run that the test wants retried."""
    if not current_run.retries and (folder("outages") / current_run.run_id).exists():
        raise ConnectionError("the warehouse is away")


@contextlib.contextmanager
def misdeeds_around(tool: str) -> Iterator[None]:
    """Around what a body does, let it misbehave where the test planned it for this run."""
    misbehave(f"before {tool}")
    yield
    misbehave(f"after {tool}")


def misbehave(where: str) -> None:
    """Do what is planned there; the first one who comes does it, and nobody does it again."""
    plan = folder("misdeeds") / f"{current_run.run_id} {where}"
    done = plan.with_suffix(".done")
    with suppress(FileNotFoundError):
        plan.rename(done)
        MISDEEDS[done.read_text()](where)


def hold_the_interpreter(_where: str) -> None:
    """Stand still for longer than a lease while no other thread of this process can run."""
    ctypes.PyDLL(None).sleep(5)


def hold_the_thread(_where: str) -> None:
    """The same while other threads can run, but no other greenlet."""
    ctypes.CDLL(None).sleep(5)


def hang(_where: str) -> None:
    while True:
        time.sleep(1)


def dwell(_where: str) -> None:
    time.sleep(1)


def leave(error: BaseException) -> None:
    raise error


MISDEEDS: dict[str, Callable[[str], None]] = {
    "MemoryError": lambda _: leave(MemoryError("planned")),
    "SystemExit": lambda _: leave(SystemExit(3)),
    "ConnectionError": lambda _: leave(ConnectionError("planned")),
    "KeyboardInterrupt": lambda _: leave(KeyboardInterrupt()),
    "os._exit": lambda _: os._exit(3),
    "gate": wait_at_the_gate,
    "hold the interpreter": hold_the_interpreter,
    "hold the thread": hold_the_thread,
    "hang": hang,
    "dwell": dwell,
}


def build(environ: dict[str, str]) -> tuple[Celery, Agent]:
    """Make the app and its agent with the project's own settings under this environment."""
    with patch.dict(os.environ, environ):
        settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
    app = Celery("recovery", set_as_current=False)
    app.conf.update({name: value for name, value in settings.items() if name.islower() and name[0] != "_"})
    app.conf.broker_connection_timeout = 5
    app.conf.update(json.loads(environ.get(CONF_VARIABLE, "{}")))
    if visibility := environ.get(VISIBILITY_VARIABLE):
        app.conf.broker_transport_options = {
            "visibility_timeout": float(visibility),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
    old = OLD_VARIABLE in environ
    agent = shop_agent("shop", app, first="order_of_old" if old else "order")
    if not old:
        shop_agent("newer", app)
        shop_agent("hurried", app, soft_time_limit=2, max_retries=9, default_retry_delay=1)
        shop_agent("limited", app, time_limit=2)
    return app, agent


def shop_agent(name: str, app: Celery, *, first: str = "order", **options: Any) -> Agent:
    """Make an agent that buys a cart; the options are those of Celery's tasks."""
    agent = Agent(name, app=app, tools=[price, note, create_order, charge, book, send_mail])
    retried = options or {"autoretry_for": (ConnectionError,), "default_retry_delay": RETRY_SECONDS}

    @agent.step(start=True, name=first, **retried)
    def order(state):
        wait_at_the_gate()
        meet_an_outage()
        meet_an_end()
        note(current_run.run_id, price(state["cart"]))
        state["order"] = create_order(state["cart"])
        return pay

    @agent.step(**options)
    def pay(state):
        state["charge"] = charge(state["order"])
        book(state["charge"]["id"])
        return mail

    @agent.step(**options)
    def mail(state):
        send_mail(state["cart"], state["order"]["id"])
        return done(state["charge"]["id"])

    return agent
