"""What a process knows of the threads that it worked on last, so that a put writes only what is new."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint.langgraph.body import Stored
from checkpoint.langgraph.lists import Listed

#: Spaces that are remembered, and elements of lists in them. Those that were not used for the longest time go first.
SPACES, ELEMENTS = 512, 500_000

#: Spaces that were found empty and are remembered as such.
EMPTY_SPACES = 10_000


@dataclass(frozen=True)
class Known:
    """A checkpoint that this process put or got as the head of its space.

    It may be the head no more. So only a put that follows it, and is refused unless it is the head, goes by it.

    Args:
        checkpoint_id: The checkpoint.
        versions: Of its channels.
        values: As they are stored.
        lists: Those of them that are lists.
    """

    checkpoint_id: str
    versions: Mapping[str, Any]
    values: Mapping[str, Stored]
    lists: Mapping[str, Listed]

    @property
    def elements(self) -> int:
        """How many elements its lists have."""
        return sum(len(known.refs) for known in self.lists.values())


class Memory:
    """The last heads, within a limit. Safe to share between threads and between shallow copies of a saver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._elements = 0
        self._empty: OrderedDict[bytes, None] = OrderedDict()
        _memories.add(self)

    def get(self, space: bytes, checkpoint_id: str | None) -> Known | None:
        """Return what is known of a checkpoint, if that was the head last time."""
        with self._lock:
            known = self._known.get(space)
            if known is None or known.checkpoint_id != checkpoint_id:
                return None
            self._known.move_to_end(space)
            return known

    def put(self, space: bytes, known: Known) -> None:
        """Remember a head instead of the one before."""
        with self._lock:
            self._drop(space)
            self._known[space] = known
            self._elements += known.elements
            while len(self._known) > SPACES or (self._elements > ELEMENTS and len(self._known) > 1):
                self._drop(next(iter(self._known)))

    def forget(self, space: bytes) -> None:
        """Drop what is known of a space."""
        with self._lock:
            self._drop(space)

    def found_empty(self, space: bytes) -> None:
        """Remember that somebody was told that there is no checkpoint yet."""
        with self._lock:
            self._empty[space] = None
            self._empty.move_to_end(space)
            while len(self._empty) > EMPTY_SPACES:
                self._empty.popitem(last=False)

    def was_empty(self, space: bytes) -> bool:
        """Tell whether somebody was told so."""
        with self._lock:
            return space in self._empty

    def _drop(self, space: bytes) -> None:
        known = self._known.pop(space, None)
        if known is not None:
            self._elements -= known.elements

    def _restart(self) -> None:
        self._lock = threading.Lock()
        self._known.clear()
        self._empty.clear()
        self._elements = 0


_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock at the fork, and that thread does not exist in the child.
    for memory in _memories:
        memory._restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
