"""The demo's shop in threads of the test's own process, for tests that kill others and not the outside world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_tasks.demo.shop import ShopServer
from agent_tasks.demo.vendor import Vendor


@contextmanager
def open_shop(folder: Path) -> Iterator[tuple[str, Vendor]]:
    """Run a shop with its ledger in a folder; a process of its own would take as long as a worker to start.

    Yields:
        Its URL, and a client.
    """
    with ShopServer(folder / "shop.db") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="shop")
        thread.start()
        try:
            yield server.url, Vendor(server.url)
        finally:
            server.shutdown()
            thread.join()
