"""What a process knows of the runs that it worked on last: so a load reads only news, and a save reads nothing."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkpoint.tip import Tip

#: Encoded messages that a store keeps in memory, in bytes. Runs that were not used for the longest time go first.
CACHE_BYTES = 32 * 1024 * 1024

_ENTRY_BYTES = 1024  # what an entry costs beside its messages
_ITEM_BYTES = 120  # what a message costs beside its own bytes: two objects' headers, a link, two references


@dataclass(frozen=True)
class KnownRun:
    """A head that this process saved or loaded.

    It may be out of date, or part of a transaction that was rolled back. So a save compares the tip when it moves the
    head, and a load uses the messages only where their link proves that they are a prefix of what it wants.

    Args:
        tip: The head.
        items: Its encoded messages.
        chain: The links over them, of which the tip has the last.
    """

    tip: Tip
    items: list[bytes]
    chain: list[bytes]


class RunCache:
    """The last known heads, within a limit of bytes. Safe to share between threads.

    Args:
        limit_bytes: The limit.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._known: OrderedDict[str, tuple[KnownRun, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        _caches.add(self)

    def get(self, run_id: str) -> KnownRun | None:
        """Return what is known of a run."""
        with self._lock:
            entry = self._known.get(run_id)
            if entry is None:
                return None
            self._known.move_to_end(run_id)
            return entry[0]

    def put(self, run_id: str, known: KnownRun) -> None:
        """Remember a head instead of the one before."""
        size = _ENTRY_BYTES + _ITEM_BYTES * len(known.items) + sum(map(len, known.items))
        with self._lock:
            self._drop(run_id)
            self._known[run_id] = known, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                self._drop(next(iter(self._known)))

    def forget(self, run_id: str) -> None:
        """Drop what is known of a run."""
        with self._lock:
            self._drop(run_id)

    def _drop(self, run_id: str) -> None:
        entry = self._known.pop(run_id, None)
        if entry is not None:
            self._bytes -= entry[1]

    def _restart(self) -> None:
        self._lock = threading.Lock()
        self._known.clear()
        self._bytes = 0


_caches: weakref.WeakSet[RunCache] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock at the fork, and that thread does not exist in the child.
    for cache in _caches:
        cache._restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
