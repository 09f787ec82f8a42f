"""What a file store is left with when the process that saves dies, when the disk is full, and when several save at once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CheckpointConflict,
    CheckpointNotFound,
    CheckpointState,
    FileStore,
    Position,
    StoreUnavailable,
    reseal,
)
from tests.pages import ROOT
from tests.tampering import edit

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
RUN = "run-1"

#: What changes a disk: before each of them, and in the middle of each write, a process may be killed.
CALLS = ("mkdir", "open", "write", "fsync", "ftruncate", "replace", "unlink", "rmdir", "close")


def state_at(seq: int, messages: list[Any], line: int = 0, **values: Any) -> CheckpointState:
    return CheckpointState(RUN, seq, line=line, messages=messages, agent_state={"at": seq, **values}, created_at=NOON)


#: What is saved already, and the save that a process dies in.
SAVES: dict[str, tuple[list[CheckpointState], CheckpointState]] = {
    "the first": ([], state_at(0, ["a"])),
    "one more message": ([state_at(0, []), state_at(1, ["a"])], state_at(2, ["a", "b"])),
    "no new message": ([state_at(0, ["a"])], state_at(1, ["a"])),
    "an edit": ([state_at(0, ["a"]), state_at(1, ["a", "b"])], state_at(2, ["x", "b", "c"])),
    "a new line": ([state_at(0, ["a"]), state_at(1, ["a", "b"])], state_at(1, ["a", "c"], line=1)),
}


def killed_at(boundary: int, work: Callable[[], object]) -> bool:
    """Run work in a child that kills itself at a boundary; return whether it came so far."""
    child = os.fork()
    if not child:
        passed = 0

        def bounded(name: str) -> Callable[..., Any]:
            call = getattr(os, name)

            def wrapped(*arguments: Any, **options: Any) -> Any:
                nonlocal passed
                passed += 1
                if passed == boundary:
                    os.kill(os.getpid(), signal.SIGKILL)
                if name == "write":
                    passed += 1
                    if passed == boundary:
                        call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return wrapped

        for name in CALLS:
            setattr(os, name, bounded(name))
        work()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def stores(folder: Path, before: list[CheckpointState]) -> Iterator[tuple[int, FileStore]]:
    for boundary in range(1, 200):
        store = FileStore(folder / str(boundary))
        for state in before:
            store.save(state)
        yield boundary, store


@pytest.mark.parametrize("name", SAVES)
def test_a_process_that_is_killed_in_a_save_leaves_the_old_head_or_the_new_one(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, saved = SAVES[name]
    old = before[-1] if before else None
    found = []
    for boundary, store in stores(tmp_path, before):
        came_so_far = killed_at(boundary, lambda store=store: store.save(saved))  # type: ignore[misc]
        fresh = FileStore(store.directory)
        head = fresh.load_latest(RUN, strict=True)
        assert head in (old, saved), boundary
        found.append(head)
        kept = [*before, *([saved] if head == saved else [])]
        assert [fresh.load(RUN, one.seq, line=one.line) for one in kept] == kept
        assert len(list(fresh.list_checkpoints(RUN))) == len(kept)
        if not came_so_far:
            break
        # Somebody else goes on, from what is there, with other content.
        if head == old:
            other = state_at(saved.seq, [*saved.messages, "other"], line=saved.line, other=True)
            fresh.save(other)
        else:
            fresh.save(saved)  # the head again
            other = saved
        after = state_at(saved.seq + 1, [*other.messages, "after"], line=saved.line)
        fresh.save(after)
        again = FileStore(store.directory)
        assert again.load_latest(RUN, strict=True) == after
        assert [again.load(RUN, one.seq, line=one.line) for one in (*before, other)] == [*before, other]
    assert found[0] == old
    assert found[-1] == saved
    assert len(found) > 15
    # Nothing was damaged at any time. Only the first checkpoint may be there before its head.json, which is said.
    assert all("head.json of run 'run-1' cannot be used: it is missing" in one for one in caplog.messages)
    assert not before or caplog.messages == []
    assert found.index(saved) < len(found) - 1


def test_a_line_that_was_cut_off_is_no_checkpoint_of_a_later_one(tmp_path: Path) -> None:
    before, saved = SAVES["a new line"]
    for boundary, store in stores(tmp_path, before):
        came_so_far = killed_at(boundary, lambda store=store: store.save(saved))  # type: ignore[misc]
        fresh = FileStore(store.directory)
        if not came_so_far or fresh.head(RUN) == Position(RUN, 1, 1):
            break
        later = state_at(1, ["a", "d"], line=2)
        fresh.save(later)
        assert [(one.line, one.seq) for one in fresh.list_checkpoints(RUN)] == [(2, 1), (0, 1), (0, 0)]
        with pytest.raises(CheckpointNotFound):
            fresh.load(RUN, 1, line=1)
        assert FileStore(store.directory).load_latest(RUN, strict=True) == later
    assert boundary > 10


def test_a_process_that_is_killed_in_a_delete_leaves_a_run_that_can_be_deleted(tmp_path: Path) -> None:
    before = SAVES["an edit"][0]
    for boundary, store in stores(tmp_path, before):
        came_so_far = killed_at(boundary, lambda store=store: store.delete(RUN))  # type: ignore[misc]
        fresh = FileStore(store.directory)
        assert fresh.load_latest(RUN) in (None, *before)
        fresh.delete(RUN)
        assert fresh.load_latest(RUN) is None
        fresh.save(state_at(0, ["new"]))
        assert fresh.load_latest(RUN, strict=True) == state_at(0, ["new"])
        if not came_so_far:
            break
    assert boundary > 3


def test_a_process_that_is_killed_in_a_reseal_leaves_the_edit_or_its_seal(tmp_path: Path) -> None:
    before = SAVES["an edit"][0]
    for boundary, store in stores(tmp_path, before):
        edit(store.directory / RUN / "1.json", lambda fields: fields.update(agent_state={"at": "edited"}))
        came_so_far = killed_at(boundary, lambda store=store: reseal(store, RUN, 1, reason="x"))  # type: ignore[misc]
        head = FileStore(store.directory).load_latest(RUN)
        assert head is not None
        assert (head.seq, head.agent_state) in ((0, {"at": 0}), (1, {"at": "edited"}))
        if not came_so_far:
            assert head.seq == 1
            break
    assert boundary > 3


# A full disk


def in_a_limited_child(limit: int, work: Callable[[], object]) -> int:
    """Run work in a child whose files end at a size, as on a disk that is full."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            work()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("limit", [0, 100, 300, 700, 900, 1200])
def test_a_disk_that_is_full_refuses_a_save_and_keeps_what_was_there(tmp_path: Path, limit: int) -> None:
    store = FileStore(tmp_path / "store")
    before = [state_at(0, []), state_at(1, ["a" * 50])]
    for state in before:
        store.save(state)
    too_much = state_at(2, ["a" * 50, "b" * 600], text="c" * 900)

    def refused() -> None:
        with pytest.raises(StoreUnavailable, match=r"cannot write: .*File too large.*; nothing was saved"):
            store.save(too_much)
        assert store.load_latest(RUN, strict=True) == before[1]

    assert in_a_limited_child(limit, refused) == 0
    fresh = FileStore(store.directory)
    assert fresh.load_latest(RUN, strict=True) == before[1]
    assert [path for path in (store.directory / RUN).iterdir() if path.suffix == ".tmp"] == []
    fresh.save(too_much)
    assert FileStore(store.directory).load_latest(RUN, strict=True) == too_much


#: Saves until a disk of its own is full, makes room, and goes on.
FILL = """
import sys
from pathlib import Path
from checkpoint import CheckpointState, FileStore, StoreUnavailable

store, messages, kept = FileStore(sys.argv[1]), [], []
Path(sys.argv[1], "ballast").write_bytes(bytes(20_000))
while True:
    messages.append("x" * 700)
    state = CheckpointState("run-1", len(kept), messages=list(messages))
    try:
        store.save(state)
    except StoreUnavailable as full:
        assert "No space left on device" in str(full), full
        assert "nothing was saved" in str(full) or "is open" in str(full), full
        break
    kept.append(state)
assert len(kept) > 3
head = FileStore(sys.argv[1]).load_latest("run-1", strict=True)
assert (head.seq, head.messages) == (len(kept) - 1, kept[-1].messages)
Path(sys.argv[1], "ballast").unlink()
store.save(state)
head = FileStore(sys.argv[1]).load_latest("run-1", strict=True)
assert (head.seq, head.messages) == (len(kept), messages)
print("went on")
"""


def test_a_run_goes_on_when_a_full_disk_has_room_again(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=96k none {tmp_path}"
    alone = ["unshare", "--mount", "--", "sh", "-c"]  # the mount goes with its process
    if shutil.which("unshare") is None or subprocess.run([*alone, mount], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    script = f'{mount} && exec "{sys.executable}" -c "$0" {tmp_path}'
    done = subprocess.run([*alone, script, FILL], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


def test_a_commit_that_fails_says_that_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.save(state_at(0, []))
    synced = os.fsync

    def failing(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "head.json.tmp":
            raise OSError(5, "Input/output error")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreUnavailable, match="whether the checkpoint counts is open: load the run and look"):
        store.save(state_at(1, []))
    monkeypatch.undo()
    assert store.load_latest(RUN, strict=True) == state_at(0, [])


# Several at once


def append_all(folder: Path, name: str, length: int, results: Any) -> None:
    store, won = FileStore(folder), []
    for seq in range(length):
        try:
            store.save(CheckpointState(RUN, seq, messages=[name] * seq, agent_state={"by": name}))
        except CheckpointConflict:
            continue
        won.append(seq)
    results.put((name, won))


def test_processes_that_are_killed_while_they_race_leave_a_whole_run(tmp_path: Path) -> None:
    """Two race, one of them is killed again and again; what was acknowledged is there."""
    store = FileStore(tmp_path)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    racers = [context.Process(target=append_all, args=(tmp_path, name, 60, results)) for name in ("a", "b")]
    for racer in racers:
        racer.start()
    for kill in range(1, 40):
        killed_at(kill, lambda: append_all(tmp_path, "killed", 60, results))
    for racer in racers:
        racer.join(100)
        assert racer.exitcode == 0
    won = dict(results.get() for _ in racers)
    head = FileStore(tmp_path).load_latest(RUN, strict=True)
    assert head is not None
    authors = [store.load(RUN, seq).agent_state["by"] for seq in range(head.seq + 1)]
    for name, seqs in won.items():
        assert all(authors[seq] == name for seq in seqs)
