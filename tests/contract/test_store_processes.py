"""Which processes and users may use a store that is no database, and the URLs that name one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoint import (
    FileStore,
    MemoryStore,
    StoreUnavailable,
    UnknownStore,
    UnsuitableStore,
    open_store,
)
from tests.filed import RUN, saved, state_at


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "checkpoints")


def in_a_fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent sees that there was one
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_file_store_works_in_a_child_that_was_forked_since(store: FileStore) -> None:
    saved(store, 2)
    assert in_a_fork(lambda: store.save(state_at(2))) == 0
    store.save(state_at(3))
    assert store.load(RUN, 2) == state_at(2)


def test_a_memory_store_is_refused_in_a_child_that_was_forked_since() -> None:
    store = MemoryStore()
    store.save(state_at(0))

    def use() -> None:
        for refused in (lambda: store.save(state_at(1)), lambda: store.load_latest(RUN), lambda: store.delete(RUN)):
            with pytest.raises(UnsuitableStore, match=r"memory:// cannot be used here: process \d+ opened it"):
                refused()

    assert in_a_fork(use) == 0
    store.save(state_at(1))
    assert store.load_latest(RUN) == state_at(1)


def open_in_a_pools_child(url: str, said: Path) -> None:
    try:
        open_store(url).save(state_at(0))
    except UnsuitableStore as refused:
        said.write_text(str(refused))
    else:
        said.write_text("taken")


def test_a_prefork_worker_is_refused_a_memory_store_and_not_a_file_store(tmp_path: Path) -> None:
    billiard = pytest.importorskip("billiard")
    said = tmp_path / "said"

    def told(url: str) -> str:
        child = billiard.Process(target=open_in_a_pools_child, args=(url, said))
        child.start()
        child.join()
        return said.read_text()

    assert "share no memory" in told("memory://")
    assert "share no memory" in told("memory://shop")
    assert told((tmp_path / "store").as_uri()) == "taken"
    assert FileStore(tmp_path / "store").load_latest(RUN, strict=True) == state_at(0)


def test_memory_stores_of_one_name_share_their_runs_and_others_do_not() -> None:
    with open_store("memory://shop") as one, open_store("memory://shop") as other, open_store("memory://") as alone:
        one.save(state_at(0))
        assert other.load_latest(RUN) == state_at(0)
        assert alone.load_latest(RUN) is None
        assert open_store("memory://").load_latest(RUN) is None


@pytest.mark.parametrize("cleaned", [False, True], ids=["with locks", "without locks"])
def test_whoever_may_not_write_can_read(open_folder: Path, cleaned: bool) -> None:
    store = FileStore(open_folder)
    saved(store, 2)
    if cleaned:
        shutil.rmtree(store.directory / ".locks")
    for path in (store.directory, *store.directory.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def look() -> None:
        if os.geteuid() == 0:  # who may write everywhere
            os.setgid(65534)
            os.setuid(65534)
        copy = FileStore(store.directory)
        assert copy.load_latest(RUN, strict=True) == state_at(1)
        assert len(list(copy.list_checkpoints(RUN))) == 2
        with pytest.raises(StoreUnavailable, match=r"cannot write: .*Permission denied.*; nothing was saved"):
            copy.save(state_at(2))

    assert in_a_fork(look) == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may look into; those of the tests are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"file:///.*/file/store: cannot open"):
        FileStore(tmp_path / "file" / "store")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("file://relative/x", "a folder is named with three slashes, as in file:///directory"),
        ("file:relative", "a folder is named with three slashes"),
        ("file://", "it names no folder"),
        ("file:///", "it names no folder"),
        ("file:///x?mode=1", "it has no options"),
        ("memory:shop", "memory:// or memory://name"),
        ("memory://shop/x", "memory:// or memory://name"),
        ("files:///x", "did you mean file:///directory"),
        ("memroy://", "did you mean memory://"),
    ],
)
def test_a_url_that_is_nearly_one_is_refused_with_the_form_of_it(url: str, hint: str) -> None:
    with pytest.raises(UnknownStore, match=hint):
        open_store(url)


def test_a_url_may_quote_its_path(tmp_path: Path) -> None:
    with open_store(f"file://localhost{tmp_path}/my%20agents%3F") as store:
        store.save(state_at(0))
    assert (tmp_path / "my agents?" / RUN / "0.json").exists()


def test_a_prefix_is_for_tables() -> None:
    with pytest.raises(UnknownStore, match="a prefix is for the tables of a database"):
        open_store("memory://", prefix="x_")
