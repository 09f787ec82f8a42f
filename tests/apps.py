"""Close what a Celery application of a test holds open."""

from __future__ import annotations

from celery import Celery


def close(app: Celery) -> None:
    """Close an application's connections to its broker and its result backend.

    ``Celery.close`` forgets its pools only: their sockets stay open until they are collected as garbage, which Python
    warns about in whatever test runs then.

    Args:
        app: nobody uses it any more.
    """
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None and hasattr(app.backend, "client"):  # Redis listens for results
        consumer.subscribed_to.clear()  # else a result that is collected later unsubscribes, by a new connection
        consumer.stop()
        app.backend.client.connection_pool.disconnect()
    app.pool.resize(app.pool.limit, reset=True)  # not closed: another application with this broker shares the pool
    app.close()
