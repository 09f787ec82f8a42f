"""The engine's log while it is played with: a fault that was planned is no news, and one that goes wrong is.

The engine warns of each lost lease, each doubt and each outage, as it should where nobody asked for them. Hundreds of
such lines from faults that the explorer itself made would hide the ones that matter.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The parents of all loggers of the engine and of the store.
LOGGERS = ("agent_tasks", "checkpoint")


class HeldLog(logging.Handler):
    """Keeps what the engine logs until it is known whether anybody wants to read it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.wanted = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def show(self) -> None:
        """Let the records go to where they would have gone, once the log is not held any more."""
        self.wanted = True


@contextmanager
def held_log() -> Iterator[HeldLog]:
    """Hold the engine's log; it is shown at the end if somebody asked for that or an exception goes through, else dropped.

    Example:
        >>> import sys
        >>> logger = logging.getLogger("agent_tasks.example")
        >>> handler = logging.StreamHandler(sys.stdout)
        >>> logging.getLogger("agent_tasks").addHandler(handler)
        >>> with held_log():
        ...     logger.warning("a planned fault")
        >>> with held_log() as log:
        ...     logger.warning("a fault that went wrong")
        ...     log.show()
        a fault that went wrong
        >>> logging.getLogger("agent_tasks").removeHandler(handler)
    """
    held = HeldLog()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [held], False
    try:
        yield held
    except BaseException:
        held.show()
        raise
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
        if held.wanted:
            for record in held.records:
                logging.getLogger(record.name).handle(record)
