"""The store that keeps checkpoints in the memory of one process: for tests, notebooks and single scripts."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from checkpoint.errors import UnsuitableStore
from checkpoint.kept import Kept
from checkpoint.shelves import ShelfStore
from checkpoint.verifying import Damage, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpoint.record import Record
    from checkpoint.segments import Segments
    from checkpoint.succession import Succession
    from checkpoint.tip import Tip

_INSTEAD = "use file:///directory, sqlite:///agent.db or a database server"


@dataclass
class _MemoryShelf:
    """The checkpoints of one run with their checksums; its logs hold the first position and, from there on, links and messages."""

    head: Tip | None = None
    checkpoints: dict[tuple[int, int], tuple[Kept, bytes]] = field(default_factory=dict)
    logs: dict[int, tuple[int, list[tuple[bytes, bytes]]]] = field(default_factory=dict)

    def tip(self) -> Tip | None:
        return self.head

    def kept(self, line: int, seq: int) -> Kept | None:
        found = self.checkpoints.get((line, seq))
        if found is None:
            return None
        kept, told = found
        if kept.checksum() != told:
            raise Damage("it does not match its checksum")
        return kept

    def messages(self, segments: Segments, start: int) -> Iterator[Message]:
        for segment in segments:
            first, rows = self.logs.get(segment.log, (0, []))
            for position in range(start, segment.until):
                if not 0 <= position - first < len(rows):
                    raise Damage(f"its message {position} is missing", (segment.log, position))
                link, item = rows[position - first]
                yield Message(segment.log, position, link, item)
            start = max(start, segment.until)

    def places(self) -> list[tuple[int, int]]:
        return list(self.checkpoints)

    def append(self, record: Record, tip: Tip | None, succession: Succession) -> None:
        written_from, moved = succession.written_from, succession.moved
        if moved.segments:
            _, rows = self.logs.setdefault(moved.segments[-1].log, (written_from, []))
            rows.extend(zip(record.chain[written_from + 1 :], record.items[written_from:], strict=True))
        kept = Kept.of(record, succession)
        self.checkpoints[record.line, record.seq] = kept, kept.checksum()
        self.head = moved

    def clear(self) -> None:
        self.head = None
        self.checkpoints.clear()
        self.logs.clear()


class _Memory:
    """What stores of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs: dict[str, _MemoryShelf] = {}


_named: WeakValueDictionary[str, _Memory] = WeakValueDictionary()


class MemoryStore(ShelfStore):
    """Checkpoints in the memory of this process; they end with it. Safe to share between threads.

    A state is encoded when it is saved, as in every store: whoever changes it afterwards does not change the
    checkpoint, and what could not be stored elsewhere is refused here too.

    It belongs to the process that opened it. In a child that was forked since, each use is refused: the child's copy
    would forget what it saves, and nobody else would see it. So would a store that a child of Celery's prefork pool
    opens, since the run's next step may go to another child.

    Args:
        name: Stores of one name share their runs, for as long as one of them lives; None shares with no other.

    Raises:
        UnsuitableStore: This process is a child of a prefork pool.

    Example:
        >>> from checkpoint import CheckpointState, MemoryStore
        >>> store = MemoryStore()
        >>> state = CheckpointState("order-7", 0, agent_state={"cart": ["tea"]})
        >>> store.save(state)
        >>> state.agent_state["cart"].append("milk")
        >>> store.load_latest("order-7").agent_state
        {'cart': ['tea']}
    """

    def __init__(self, name: str | None = None) -> None:
        self.url = f"memory://{name or ''}"
        if _is_pool_child():
            raise UnsuitableStore(
                self.url,
                f"the children of a prefork pool share no memory, and each run wanders between them; {_INSTEAD}",
            )
        super().__init__()
        self._pid = os.getpid()
        self._memory = _Memory() if name is None else _named.setdefault(name, _Memory())

    @contextmanager
    def _reading(self, run_id: str) -> Iterator[_MemoryShelf]:
        self._refuse_forked()
        with self._memory.lock:
            yield self._memory.runs.get(run_id) or _MemoryShelf()

    @contextmanager
    def _writing(self, run_id: str) -> Iterator[_MemoryShelf]:
        self._refuse_forked()
        with self._memory.lock:
            shelf = self._memory.runs.get(run_id) or _MemoryShelf()
            yield shelf
            if shelf.head is None:
                self._memory.runs.pop(run_id, None)
            else:
                self._memory.runs[run_id] = shelf

    def _refuse_forked(self) -> None:
        if os.getpid() != self._pid:
            raise UnsuitableStore(
                self.url,
                f"process {self._pid} opened it and this one was forked since, so its copy is lost; {_INSTEAD}",
            )


def _is_pool_child() -> bool:
    # Celery's pools come from billiard, which this package does not know: where it was never imported, nobody has forked one.
    billiard = sys.modules.get("billiard.process")
    return billiard is not None and billiard.current_process()._parent_pid is not None
