"""The order agent of the demo: it buys a cart in three steps, ``create``, ``pay`` and ``mail``.

Its three tools show the three things that a vendor may offer: an idempotency key, a look-up, or neither.

The tasks read their surroundings from the environment that :func:`agent_tasks.demo.plain.environment` makes. With it, a
worker is ``celery -A agent_tasks.demo.agent worker``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery

from agent_tasks.agent import Agent
from agent_tasks.answers import Answer, Happened, NotHappened
from agent_tasks.demo.carts import Cart
from agent_tasks.demo.journal import keep_journal
from agent_tasks.demo.kills import strike
from agent_tasks.demo.plain import SHOP_VARIABLE
from agent_tasks.demo.vendor import Vendor, VendorRefused, VendorUnreachable
from agent_tasks.operations import Operation
from agent_tasks.outcomes import Done, done
from agent_tasks.steps import Step
from agent_tasks.tools import tool

__all__ = ["LEASE_SECONDS", "app", "charge", "create_order", "order", "send_mail", "settings", "worker_command"]

#: Shorter than the default of 15 s, so that nobody watches the demo wait for a lease.
LEASE_SECONDS = 3.0

# The shop answers within milliseconds and is done when it answers. So the deadline of a call, the time that the vendor may
# go on after it and the time until an effect shows are short here: a doubt may be asked about after four seconds. For a
# real bank take its own figures.
_CALL = timedelta(seconds=3)
_SETTLE = timedelta(seconds=1)
_AT_ONCE = timedelta(0)

# The shop said no, or never heard of it: this request did not happen.
_REFUSED = (VendorRefused, VendorUnreachable)


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Celery's configuration for the demo: the embedded broker and ledger, unless the environment names others.

    Args:
        environ: What :func:`agent_tasks.demo.plain.environment` made.

    Returns:
        The settings, those of the engine included.

    Example:
        >>> settings({"AGENT_DATA_DIR": "/tmp/demo"})["agent_database_url"]
        'sqlite:////tmp/demo/agent.db'
    """
    folder = Path(environ.get("AGENT_DATA_DIR", "."))
    chosen: dict[str, Any] = {
        "broker_url": environ.get("AGENT_BROKER_URL", "filesystem://"),
        "broker_connection_retry_on_startup": True,
        "task_default_queue": "orders",
        "worker_prefetch_multiplier": 1,
        # On the embedded broker a dead child's message takes up the worker's prefetch window for so long; 10 s by default.
        "worker_lost_wait": 1.0,
        "agent_database_url": environ.get("AGENT_DATABASE_URL", f"sqlite:///{folder / 'agent.db'}"),
        "agent_lease_seconds": LEASE_SECONDS,
        "agent_sweep_seconds": 0.5,
        "agent_ring_again_seconds": 2.0,
        # One more than the kills that can hit one step of the plan: none of them is the step's own fault.
        "agent_max_crashes": 7,
        # One ledger file, one folder of messages, one host.
        "agent_single_host": True,
    }
    if chosen["broker_url"].startswith("filesystem:"):
        chosen["broker_transport"] = "agent_tasks.embedded:Transport"
        chosen["broker_transport_options"] = {
            "data_folder_in": str(folder / "queue"),
            "data_folder_out": str(folder / "queue"),
            "control_folder": str(folder / "control"),
            "polling_interval": 0.02,
        }
    return chosen


app = Celery("orders", config_source=settings(os.environ))
keep_journal(os.environ)
_logger = logging.getLogger(__name__)


@tool(effect="keyed", key_lifetime=timedelta(hours=24), timeout=_CALL, refused=_REFUSED, bind=True)
def create_order(operation: Operation, cart: Cart) -> dict[str, Any]:
    """Order a cart; the shop gives the same order for the same key."""
    if operation.attempts > 1:
        _tell(operation, "create_order is sent again with the same key: the shop makes one order of it")
    made = _vendor().create_order(cart, key=operation.idempotency_key, seconds=operation.remaining())
    strike(cart["id"], "create_order")
    return made


@tool(effect="probed", timeout=_CALL, settle=_SETTLE, visible_after=_AT_ONCE, refused=_REFUSED, bind=True)
def charge(operation: Operation, order: dict[str, Any]) -> dict[str, Any]:
    """Charge an order; the bank charges again if it is asked again, and knows the reference of each charge."""
    if operation.attempts > 1:
        _tell(operation, "charge is sent now, since it is known not to have happened")
    charged = _vendor().charge(order, reference=operation.operation_id, seconds=operation.remaining())
    strike(order["cart"], "charge")
    return charged


@charge.probe
def charge_outcome(operation: Operation) -> Answer:
    """Ask the bank whether a charge with this reference happened."""
    found = _vendor().charges(operation.operation_id, seconds=_CALL.total_seconds())
    if not found:
        _tell(operation, "asked the shop: charge did not happen")
        return NotHappened()
    _tell(operation, f"asked the shop: charge happened ({found[0]['id']}), its result is reused")
    return Happened(found[0], external_id=found[0]["id"])


@tool(effect="manual", timeout=_CALL, settle=_SETTLE, refused=_REFUSED, bind=True)
def send_mail(operation: Operation, cart: Cart, order_id: str) -> dict[str, Any]:
    """Mail the receipt; nobody but a person who reads the mail server's log can tell whether it went out."""
    if operation.attempts > 1:
        _tell(operation, "send_mail is sent now, since the operator said that it had not happened")
    sent = _vendor().send_mail(cart, order_id, seconds=operation.remaining())
    strike(cart["id"], "send_mail")
    return sent


order = Agent("order", app=app, tools=[create_order, charge, send_mail])


@order.step(start=True)
def create(state: Any) -> Step:
    """Order the cart."""
    state["order"] = create_order(state["cart"])
    return pay


@order.step
def pay(state: Any) -> Step:
    """Charge the order."""
    state["charge"] = charge(state["order"])
    return mail


@order.step
def mail(state: Any) -> Done:
    """Mail the receipt."""
    send_mail(state["cart"], state["order"]["id"])
    return done({"order": state["order"]["id"], "charge": state["charge"]["id"]})


def worker_command(name: str, concurrency: int = 2) -> list[str]:
    """The command line of a worker. Start it with ``start_new_session=True``, so that a whole worker can be killed.

    Args:
        name: Of the worker, its own on this host.
        concurrency: How many child processes run steps.
    """
    options = [
        "--pool",
        "prefork",
        "--concurrency",
        str(concurrency),
        "--hostname",
        f"{name}@%h",
        "--loglevel",
        "WARNING",
    ]
    return [sys.executable, "-m", "celery", "-A", __name__, "worker", "--without-gossip", "--without-mingle", *options]


def _vendor() -> Vendor:
    return Vendor(os.environ[SHOP_VARIABLE])


def _tell(operation: Operation, said: str) -> None:
    """Write into the journal what the demo shows of a call."""
    _logger.info(
        "run %s: %s", operation.run_id, said, extra={"action": "told", "run_id": operation.run_id, "said": said}
    )
