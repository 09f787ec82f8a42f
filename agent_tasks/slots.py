"""What the parent knows of its children: a memory-mapped table of slots, one for each attempt under way.

It survives the SIGKILL of a child, which is what it is for. A slot is written by the process that works and read by the
heartbeat thread of its parent; a checksum tells a half-written one.

The file is opened once, by the parent. Its children use what they inherited over the fork, so that whoever removes the
file under a living worker does no harm. Processes keep each other out by a lock on the file itself that is each process's
own (``lockf``): a ``flock`` is shared by those that inherited its descriptor. It ends with its process, and when that
closes any descriptor of the file, which is why one process has one table.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import weakref
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tasks.folders import HeldFolder

if sys.platform != "win32":  # which has no prefork pool, and so no second process to keep out
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Programs that a worker's process starts find its table through this variable.
SLOTS_VARIABLE = "AGENT_TASKS_SLOTS"

#: Pause between two looks of a parent at its children, in seconds.
LOOK_SECONDS = 0.5

#: How long after its deadline a body may take to notice it, where ``settle=`` leaves as much.
KILL_GRACE_SECONDS = 1.0

#: How long after the deadline in its slot a child of prefork is killed at the latest: two looks of its parent, and some.
KILLED_WITHIN_SECONDS = 2 * LOOK_SECONDS + 1.0

#: Attempts that one worker can have under way.
MAX_SLOTS = 1024

_RUN_ID_BYTES = 800  # 200 characters of four bytes
_RECORD = struct.Struct(f"<q q d d 32s H {_RUN_ID_BYTES}s I")
_FREE = b"\0" * _RECORD.size
_NO_FENCE = -1

#: The byte behind the slots: whether the worker has been told to stop.
_STOPPING = MAX_SLOTS * _RECORD.size

#: Keeps the threads of this process out, which the lock on a file does not.
_threads = threading.Lock()


def _forget_threads() -> None:
    global _threads  # a thread that held it while this process was forked is not here to give it back
    _threads = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_threads)


@dataclass(frozen=True)
class Lease:
    """What a slot says.

    Attributes:
        pid: of the process that works.
        run_id, token: written before the claim, so that a claim whose answer was lost is found.
        fence: of the lease, or None before the claim was answered.
        deadline: local clock reading at which the process is killed.
        renew_until: local clock reading after which the lease is not renewed.
    """

    pid: int
    run_id: str
    token: str
    fence: int | None
    deadline: float
    renew_until: float


class Slot:
    """One attempt's place in the table."""

    def __init__(self, table: Slots, index: int, lease: Lease) -> None:
        self._table, self._index, self._lease = table, index, lease
        self._is_free = False
        self._table.write(index, lease)

    @property
    def deadline(self) -> float:
        """When the process is killed, on the local clock."""
        return self._lease.deadline

    def claimed(self, fence: int) -> None:
        """Note the fence: from now on the lease is renewed."""
        self._set(fence=fence)

    def begin_anew(self, deadline: float) -> None:
        """Begin the time of another step under the same lease."""
        self._set(deadline=deadline, renew_until=deadline)

    def set_deadline(self, deadline: float) -> None:
        """Move the moment at which the process is killed."""
        self._set(deadline=deadline)

    def free(self) -> None:
        """Give the place back; a thread of the body that outlives its attempt writes nothing there any more."""
        with _threads:
            self._is_free = True
            self._table.clear(self._index)

    def _set(self, **changes: float) -> None:
        with _threads:
            if not self._is_free:  # else it may be another attempt's by now
                self._lease = Lease(**{**self._lease.__dict__, **changes})
                self._table.write(self._index, self._lease)


class Slots:
    """The table. The parent makes the file; children inherit it.

    Args:
        path: of the file; made if it is not there.
        existing: do not make it.

    Raises:
        FileNotFoundError: it is not there, and was not to be made.

    Example:
        >>> import tempfile, os
        >>> slots = Slots(os.path.join(tempfile.mkdtemp(), "slots"))
        >>> slot = slots.take("run-1", "token", deadline=10.0)
        >>> [lease.run_id for lease in slots.leases()]
        ['run-1']
        >>> slot.free(); slots.leases()
        []
    """

    def __init__(self, path: str | Path, *, existing: bool = False) -> None:
        self.path = Path(path)
        size = _STOPPING + 1
        self._descriptor = os.open(self.path, os.O_RDWR | (0 if existing else os.O_CREAT), 0o600)
        weakref.finalize(self, os.close, self._descriptor).atexit = False  # threads may use it to the end
        if os.fstat(self._descriptor).st_size < size:
            os.ftruncate(self._descriptor, size)
        self._map = mmap.mmap(self._descriptor, size)

    @classmethod
    def temporary(cls) -> Slots:
        """Make a table in a folder of its own, which is removed when this process is done with the table.

        Where the process is killed, the next worker removes it.
        """
        folder = HeldFolder()
        slots = cls(folder.path / "slots")
        weakref.finalize(slots, folder.remove)
        return slots

    @classmethod
    def of_new_worker(cls) -> Slots:
        """Make the table of the worker that this process is, for all that it forks and starts from now on."""
        global _of_this_worker  # children find here what they inherit
        _of_this_worker = cls.temporary()
        os.environ[SLOTS_VARIABLE] = str(_of_this_worker.path)
        return _of_this_worker

    @classmethod
    def of_this_process(cls) -> Slots:
        """Return the table of the worker that this process belongs to, or make one where it belongs to none.

        A program that a worker's process started opens the file; where that was removed meanwhile, it has a table of its
        own, and nobody else renews its leases, as in every process outside of workers.
        """
        path = os.environ.get(SLOTS_VARIABLE)
        if path is None:
            return cls.temporary()
        if _of_this_worker is not None and str(_of_this_worker.path) == path:
            return _of_this_worker
        try:
            return cls(path, existing=True)
        except FileNotFoundError:
            return cls.temporary()

    @property
    def stopping(self) -> bool:
        """Whether the worker has been told to stop: whoever has a choice begins nothing more."""
        return self._map[_STOPPING] != 0

    def stop(self) -> None:
        """Say so; may be called in a signal's handler."""
        self._map[_STOPPING] = 1

    def take(self, run_id: str, token: str, *, deadline: float) -> Slot:
        """Take a free place before a claim is sent.

        Raises:
            RuntimeError: all places are taken.
        """
        with self._locked():
            for index in range(MAX_SLOTS):
                if self._read_raw(index) == _FREE:
                    return Slot(self, index, Lease(os.getpid(), run_id, token, None, deadline, deadline))
        raise RuntimeError(f"all {MAX_SLOTS} slots of {self.path} are taken: lower worker_concurrency.")

    def leases(self) -> list[Lease]:
        """Return the attempts under way; one that is being written right now is left out this time."""
        found = (self._read(index) for index in range(MAX_SLOTS))
        return [lease for lease in found if lease is not None]

    def free(self, lease: Lease) -> None:
        """Free the place of a process that is dead."""
        with self._locked():
            for index in range(MAX_SLOTS):
                seen = self._read(index)
                if seen is not None and (seen.pid, seen.token) == (lease.pid, lease.token):
                    self.clear(index)

    def write(self, index: int, lease: Lease) -> None:
        """Write one record; only its own process does."""
        run_id = lease.run_id.encode()
        fence = _NO_FENCE if lease.fence is None else lease.fence
        fields = (lease.pid, fence, lease.deadline, lease.renew_until, lease.token.encode(), len(run_id), run_id)
        body = _RECORD.pack(*fields, 0)[:-4]
        self._write_raw(index, body + zlib.crc32(body).to_bytes(4, "little"))

    def clear(self, index: int) -> None:
        """Free one place."""
        self._write_raw(index, _FREE)

    def _read(self, index: int) -> Lease | None:
        raw = self._read_raw(index)
        if raw == _FREE or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            return None
        pid, fence, deadline, renew_until, token, length, run_id, _ = _RECORD.unpack(raw)
        return Lease(
            pid,
            run_id[:length].decode(errors="replace"),
            token.rstrip(b"\0").decode(),
            None if fence == _NO_FENCE else fence,
            deadline,
            renew_until,
        )

    def _read_raw(self, index: int) -> bytes:
        start = index * _RECORD.size
        return self._map[start : start + _RECORD.size]

    def _write_raw(self, index: int, raw: bytes) -> None:
        start = index * _RECORD.size
        self._map[start : start + _RECORD.size] = raw

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _threads:
            try:
                if sys.platform != "win32":
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX)  # ends with the process that holds it
                yield
            finally:  # also where a signal's exception came right after the lock
                if sys.platform != "win32":
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


#: Of the worker that this process is, or was forked by.
_of_this_worker: Slots | None = None
