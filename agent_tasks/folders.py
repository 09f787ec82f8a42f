"""Temporary folders that do not outlive their makers for long, however those end.

A process that is killed removes nothing, so the next worker does it for the dead. It tells them by a lock on the folder
itself (``flock``), which the kernel gives back when the last process that has it ends:

* A process id would not do: it is used again, and it means nothing to another container on the same folder.
* A date would not do: a folder is as old as the worker, which may be busy for weeks. The lock also keeps
  systemd-tmpfiles away.
* A file with the lock would do, and could be gone before the rest of its folder; the folder's own lock cannot.

The descriptor is closed by an ``exec``, so what a tool starts keeps no folder. A child that was forked has it too, as a
pool's children do, and works in the folder: it stays until the last of them has ended.

A folder has no lock yet in the moment after it was made, and may be taken for a dead one's. So its maker looks, once it
has the lock, whether the folder is still there, and makes another one if not. Whoever removes holds the lock meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":  # which has no prefork pool, and no such locks
    import fcntl

#: Begins the names of folders with a lock. No other folder's name may: it would be removed.
HELD_PREFIX = "agent-tasks-held-"

#: Where there are no locks: nobody can tell whose folder it is, and nobody else removes it.
_UNHELD_PREFIX = "agent-tasks-"


class HeldFolder:
    """A temporary folder that is this process's for as long as it lives.

    Attributes:
        path: of the folder.

    Example:
        >>> with HeldFolder() as path:
        ...     path in remove_left_behind(), path.is_dir()
        (False, True)
        >>> path.exists()
        False
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.path, self._descriptor = _made()

    def remove(self) -> None:
        """Remove the folder and what is in it; in a child that was forked, which does not own it, only let go of it."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def remove_left_behind() -> list[Path]:
    """Remove the held folders of this user that no living process holds.

    Returns:
        Their paths.
    """
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{HELD_PREFIX}*"):
        descriptor = _taken(path)
        if descriptor is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
            removed.append(path)
    return removed


def _made() -> tuple[Path, int | None]:
    while sys.platform != "win32":
        path = Path(tempfile.mkdtemp(prefix=HELD_PREFIX))
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            continue  # taken for a dead one's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for whoever is removing it
        except OSError:  # some network file systems lock no folders
            os.close(descriptor)
            shutil.rmtree(path, ignore_errors=True)
            break
        if _is_at(path, descriptor):
            return path, descriptor
        os.close(descriptor)
    return Path(tempfile.mkdtemp(prefix=_UNHELD_PREFIX)), None


def _taken(path: Path) -> int | None:
    """Return a descriptor with the lock of a folder that is nobody's any more."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = _opened(path)
    except OSError:  # gone, or no folder, or not for our eyes
        return None
    with suppress(OSError):  # its holder lives, or it is gone
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and _is_at(path, descriptor):
            return descriptor
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
