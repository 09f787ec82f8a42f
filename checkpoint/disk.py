"""Writing files so that a crash, at whatever moment, leaves the old content or the new one; and locks between processes."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) if sys.platform != "win32" else 0


def replace(path: Path, content: bytes) -> None:
    """Give a file new content, all of it or nothing; lasting once `sync_folder` has returned.

    Whoever calls holds the lock, since the temporary file has one name for all.
    """
    new = path.with_name(f"{path.name}.tmp")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o666)
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.replace(path)
    except OSError:
        with suppress(OSError):  # on a full disk it takes the room that somebody is about to make
            new.unlink()
        raise


def append(path: Path, size: int, content: bytes) -> None:
    """Cut a file to a size, or make it, and add content that is lasting when this returns; or leave it at that size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o666)
    try:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder lasting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, alone: bool) -> Iterator[None]:
    """Hold a file's lock, which threads and processes share; the kernel gives back what a dead one held.

    Args:
        path: The file, which is made if it is missing, and must stay.
        alone: Keep out all others, and not only those who want to be alone.
    """
    # Whoever only reads may be somebody who may not write here.
    wanted = os.O_RDONLY if not alone and path.exists() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, wanted | _FLAGS, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            # Spelled out, since a child that another thread forks meanwhile has a copy of the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
