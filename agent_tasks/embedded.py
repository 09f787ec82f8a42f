"""The embedded broker: kombu's filesystem transport, made safe against a process that dies in the middle of a write.

kombu makes a message's file first and fills it then. A reader that comes in between, or after a writer that was killed
there, finds no JSON, and its worker exits. Here a message appears whole or not at all, and a broken file is passed over:
the ledger's sweeper rings again for whatever was in it.

Used through ``broker_transport = "agent_tasks.embedded:Transport"`` beside ``broker_url = "filesystem://"``.
"""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar

from kombu.transport import filesystem as kombu_filesystem
from kombu.transport.virtual import BrokerState as KombuBrokerState

filesystem: Any = kombu_filesystem  # its methods are not typed
BrokerState: Any = KombuBrokerState

logger = logging.getLogger(__name__)


class Channel(filesystem.Channel):
    """A channel whose files are always whole to their readers."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        # kombu's own naming, which is the order of delivery. Readers look for names that end in the queue's name, and those of
        # Celery 5.5 for names that hold it.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}"
        partial = Path(self.data_folder_out, f"{name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)  # somebody may have emptied the broker by removing its folder
        partial.write_text(filesystem.dumps(payload), encoding="utf-8")
        partial.rename(partial.with_name(f"{name}.{queue}.msg"))

    def _get(self, queue: str) -> Any:
        while True:
            try:
                return super()._get(queue)
            except FileNotFoundError:
                Path(self.data_folder_in).mkdir(parents=True, exist_ok=True)
                raise Empty from None
            except ValueError:  # the broken file is out of the way already
                logger.warning("a broken message in queue %s was dropped", queue, extra={"action": "message_dropped"})

    def _size(self, queue: str) -> int:
        Path(self.data_folder_in).mkdir(parents=True, exist_ok=True)
        return int(super()._size(queue))

    def get_table(self, exchange: str) -> Any:
        try:
            table = super().get_table(exchange)
        except ValueError:  # somebody is about to fill the file, or died when he was
            table = []
        bound = self.state.exchanges.get(exchange, {}).get("table", ())
        if table or not bound:
            return table
        # The file is gone or was never filled: a message must not go nowhere for as long as this process lives.
        for binding in bound:
            self._queue_bind(exchange, *binding)
        return super().get_table(exchange)

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with (self.control_folder / "binding.lock").open("w") as file:
            filesystem.lock(file, filesystem.LOCK_EX)  # ends with the process that holds it
            try:
                super()._queue_bind(exchange, *binding)
            except ValueError:
                # Whoever made this file is dead, since he would hold the lock.
                (self.control_folder / f"{exchange}.exchange").unlink()
                super()._queue_bind(exchange, *binding)


class Transport(filesystem.Transport):
    """The filesystem transport with these channels; what it has bound is remembered for each folder, not for all."""

    Channel = Channel
    #: A folder is on no host; with kombu's own it would warn in every process that none was given.
    default_connection_params: ClassVar[dict[str, Any]] = {}
    _states: ClassVar[dict[str, Any]] = {}

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        folder = str(client.transport_options.get("control_folder", "control"))
        self.state = self._states.setdefault(folder, BrokerState())
