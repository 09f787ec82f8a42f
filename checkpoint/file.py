"""The store that keeps checkpoints in files which a person can read, compare and keep in Git."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from errno import EACCES, ENOLCK, ENOSYS, ENOTSUP, EPERM, EROFS
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint import disk
from checkpoint.errors import StoreUnavailable, UnsuitableStore
from checkpoint.file_names import folder_name
from checkpoint.file_shelf import FileShelf
from checkpoint.shelves import ShelfStore

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCKS = ".locks"
_IGNORED = f"{_LOCKS}/\n*.tmp\n"
_NO_LOCKS = frozenset({ENOLCK, ENOSYS, ENOTSUP})
_READ_ONLY = frozenset({EROFS, EACCES, EPERM})


class FileStore(ShelfStore):
    """Checkpoints in a folder: ``{run_id}/{seq}.json``, beside the run's messages as JSON Lines.

    Safe to share between threads and processes, and across forks. A save that returned outlives a power cut, and one
    that was cut off left the run as it was. Docs: ``docs/checkpoint-stores.md``.

    Args:
        directory: The folder, which is made if it is missing. All who use it must see the same file system, and it must
            know locks (``flock``).

    Raises:
        UnsuitableStore: The operating system or the file system has no such locks.
        StoreUnavailable: The folder cannot be made.

    Example:
        >>> from checkpoint import CheckpointState, FileStore
        >>> store = FileStore(directory + "/checkpoints")
        >>> store.save(CheckpointState("order-7", 0, agent_state={"cart": ["tea"]}))
        >>> store.load_latest("order-7").agent_state
        {'cart': ['tea']}
        >>> sorted(path.name for path in (store.directory / "order-7").iterdir())
        ['0.json', 'head.json']
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self.directory = Path(directory).absolute()
        self.url = self.directory.as_uri()
        if sys.platform == "win32":
            raise UnsuitableStore(self.url, "Windows has no flock; use sqlite:///agent.db")
        with self._told("open"):
            self._make()

    def _make(self) -> None:
        if (self.directory / _LOCKS).is_dir():
            return
        try:
            (self.directory / _LOCKS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _READ_ONLY and self.directory.is_dir():
                return  # a copy that is only looked at
            raise
        ignore = self.directory / ".gitignore"
        if not ignore.exists():
            ignore.write_text(_IGNORED, encoding="utf-8")
        disk.sync_folder(self.directory)
        disk.sync_folder(self.directory.parent)

    @contextmanager
    def _reading(self, run_id: str) -> Iterator[FileShelf]:
        with self._told("read"), self._locked(run_id, alone=False):
            yield self._shelf(run_id)

    @contextmanager
    def _writing(self, run_id: str) -> Iterator[FileShelf]:
        shelf = self._shelf(run_id)
        with self._told("write", shelf), self._locked(run_id, alone=True):
            yield shelf

    def _shelf(self, run_id: str) -> FileShelf:
        return FileShelf(self.directory / folder_name(run_id), run_id)

    @contextmanager
    def _locked(self, run_id: str, *, alone: bool) -> Iterator[None]:
        # One of 256, and outside the run's folder: a lock that goes with its folder would be held by two.
        number = blake2b(folder_name(run_id).encode(), digest_size=1).hexdigest()
        path = self.directory / _LOCKS / number
        if not alone and not path.exists() and not os.access(path.parent, os.W_OK):
            yield  # a copy that is only looked at
            return
        if alone:  # somebody may have cleaned up what Git does not know
            path.parent.mkdir(exist_ok=True)
        with disk.locked(path, alone=alone):
            yield

    @contextmanager
    def _told(self, what: str, shelf: FileShelf | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise UnsuitableStore(
                    self.url, f"its file system has no locks ({error}); use sqlite:///agent.db"
                ) from error
            came_to = "" if shelf is None else "; nothing was saved"
            if shelf is not None and shelf.committing:
                came_to = "; whether the checkpoint counts is open: load the run and look"
            raise StoreUnavailable(self.url, f"cannot {what}: {error}{came_to}") from error
