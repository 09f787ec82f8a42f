"""The same carts on plain Celery, set up to survive kills: what the demo is compared with.

Each cart is a chain of three tasks, so that a redelivered task repeats one call and not three. Orders carry a stable
idempotency key, charges a stable reference. What is left is the gap that no setting closes, since a broker cannot know what
a task had done: one that died after its call is delivered again, and calls again. On the folder broker there is another
one, which Redis and RabbitMQ do not have: the messages of a dead worker are gone. No task looks first whether its charge
happened; whoever writes that by hand closes the gap for that call.

The tasks read their surroundings from the environment that :func:`environment` makes. With it, a worker is
``celery -A agent_tasks.demo.plain worker``, and ``python -m agent_tasks.demo.plain carts.json`` places the orders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from celery import Celery, chain
from celery.result import AsyncResult

from agent_tasks.demo.carts import BUILT_IN_CARTS, Cart, load_carts
from agent_tasks.demo.kills import PLAN_VARIABLE, strike
from agent_tasks.demo.vendor import Vendor, VendorUnreachable

__all__ = ["app", "environment", "main", "place", "settings", "wait_until_idle", "worker_command"]

#: The environment variable with the shop's URL.
SHOP_VARIABLE = "AGENT_DEMO_SHOP_URL"
#: Deadline of one call of the vendor, in seconds.
_CALL_SECONDS = 10.0
#: How often in a row nothing must be left to run, since a task on its way from a dead child back to the queue is in
#: neither for a moment.
_IDLE_LOOKS = 2
_QUEUE = "plain"


def environment(
    data_dir: str | Path,
    shop_url: str,
    *,
    kills: str | Path | None = None,
    broker_url: str | None = None,
    database_url: str | None = None,
) -> dict[str, str]:
    """Make the data folder and the environment of this side's processes.

    Args:
        data_dir: A folder of this side's own, for the embedded broker and the results; made if it is missing.
        shop_url: Where the shop listens.
        kills: The file of the kill plan; None kills nobody.
        broker_url: A broker instead of the embedded one.
        database_url: An SQLAlchemy URL for the results, instead of a SQLite file in the folder.

    Returns:
        The present environment with what this side needs.
    """
    folder = Path(data_dir).resolve()
    for name in ("queue", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "AGENT_DATA_DIR": str(folder), SHOP_VARIABLE: shop_url}
    given = {PLAN_VARIABLE: kills, "AGENT_BROKER_URL": broker_url, "AGENT_DATABASE_URL": database_url}
    for name, value in given.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = str(value)
    return environ


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """What Celery's settings can do for these tasks.

    Args:
        environ: What :func:`environment` made.

    Returns:
        Celery's configuration.
    """
    folder = Path(environ.get("AGENT_DATA_DIR", "."))
    broker_url = environ.get("AGENT_BROKER_URL", "filesystem://")
    best: dict[str, Any] = {
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "result_backend": "db+" + environ.get("AGENT_DATABASE_URL", f"sqlite:///{folder / 'results.db'}"),
        "result_extended": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_default_queue": _QUEUE,
        "worker_prefetch_multiplier": 1,
        # Asks the result backend before a redelivered task runs again. It helps on brokers that mark a redelivery, against
        # a death after the success was stored; the demo's come before.
        "worker_deduplicate_successful_tasks": True,
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        # The embedded broker has a dead child's task wait this long before it is delivered again; 10 s by default.
        "worker_lost_wait": 1.0,
    }
    if broker_url.startswith("filesystem:"):
        # With kombu's own one a worker now and then exits on a message that is half written; that is not the point here.
        best["broker_transport"] = "agent_tasks.embedded:Transport"
        best["broker_transport_options"] = {
            "data_folder_in": str(folder / "queue"),
            "data_folder_out": str(folder / "queue"),
            "control_folder": str(folder / "control"),
            "polling_interval": 0.02,
        }
    return best


app = Celery("plain", config_source=settings(os.environ))


def _task(body: Callable[..., Any]) -> Any:
    # A call that was never sent is the one failure that is safe to repeat. The name is spelled out since this module is
    # called __main__ in the process that places the orders.
    name = f"plain.{body.__name__}"
    return app.task(body, name=name, autoretry_for=(VendorUnreachable,), retry_backoff=True)


@_task
def create_order(cart: Cart) -> dict[str, Any]:
    """Order a cart under a key that never changes; quoted, since a header holds no more than Latin-1."""
    order = _vendor().create_order(cart, key=quote(cart["id"]), seconds=_CALL_SECONDS)
    strike(cart["id"], "create_order")
    return order


@_task
def charge(order: dict[str, Any], cart: Cart) -> dict[str, Any]:
    """Charge an order under a reference that never changes."""
    charged = _vendor().charge(order, reference=cart["id"], seconds=_CALL_SECONDS)
    strike(cart["id"], "charge")
    return charged


@_task
def send_mail(charged: dict[str, Any], cart: Cart) -> dict[str, Any]:
    """Send the receipt."""
    sent = _vendor().send_mail(cart, charged["order"], seconds=_CALL_SECONDS)
    strike(cart["id"], "send_mail")
    return sent


def worker_command(concurrency: int = 2, name: str = "plain") -> list[str]:
    """The command line of a worker. Start it with ``start_new_session=True``, so that a whole worker can be killed.

    Args:
        concurrency: How many child processes run tasks.
        name: Of the worker, its own on this host.
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


def place(carts: Sequence[Cart]) -> dict[str, AsyncResult]:
    """Send one chain of tasks for each cart.

    Returns:
        For each cart's id, the result of its last task.
    """
    return {cart["id"]: chain(create_order.s(cart), charge.s(cart), send_mail.s(cart)).apply_async() for cart in carts}


def wait_until_idle(results: Mapping[str, AsyncResult], *, limit_seconds: float) -> list[str]:
    """Wait until every chain has ended, or nothing is left that could end it.

    Args:
        results: What :func:`place` returned.
        limit_seconds: How long to wait at most.

    Returns:
        The ids of the carts whose last task did not succeed: their messages are gone, or kept from the workers, or a
        task failed.

    Raises:
        TimeoutError: There was still something to run at the limit, or no worker said that there is not.
    """
    deadline = time.monotonic() + limit_seconds
    idle_looks = 0
    while under_way := [cart_id for cart_id, result in results.items() if not _ended(result)]:
        idle_looks = idle_looks + 1 if _nothing_to_run() else 0
        if idle_looks == _IDLE_LOOKS:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(under_way)} of {len(results)} carts are under way after {limit_seconds:g} s: "
                f"{', '.join(under_way)}. See that a worker runs: {' '.join(worker_command())}"
            )
        time.sleep(0.1)
    return [cart_id for cart_id, result in results.items() if not result.successful()]


def _vendor() -> Vendor:
    return Vendor(os.environ[SHOP_VARIABLE])


def _ended(result: AsyncResult) -> bool:
    """Whether the last task of a chain has its result, or an earlier one failed and with it the chain."""
    earlier = result.parent
    while earlier is not None:
        if earlier.failed():
            return True
        earlier = earlier.parent
    return bool(result.ready())


def _nothing_to_run() -> bool:
    """Whether the queue is empty and the workers, of which at least one must answer, hold no task."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[_QUEUE](connection.default_channel)
        # Not passively: to Redis an empty queue is one that is not there.
        waiting = queue.queue_declare().message_count
    if waiting:
        return False
    inspect = app.control.inspect()
    # In the order in which a task moves, so that one on its way is seen at least once.
    answers = [inspect.scheduled(), inspect.reserved(), inspect.active()]
    return all(answer and not any(answer.values()) for answer in answers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Place the orders of a file of carts, wait for them, and print the carts that did not come to their end.

    Args:
        arguments: The command line without the program: the path of the carts; the built-in ones by default.
    """
    paths = list(sys.argv[1:] if arguments is None else arguments)
    carts = load_carts(paths[0] if paths else BUILT_IN_CARTS)
    print(json.dumps({"unfinished": wait_until_idle(place(carts), limit_seconds=300.0)}))


if __name__ == "__main__":
    main()
