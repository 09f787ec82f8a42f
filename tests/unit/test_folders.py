"""Temporary folders: one whose maker has ended in any way is removed by the next process, and no other one is."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_tasks.folders import HELD_PREFIX, HeldFolder, remove_left_behind
from tests.waiting import wait_until

#: Makes a folder with something in it, says which, and lives until it is killed.
MAKER = """
import os, signal, subprocess, sys
from agent_tasks.folders import HeldFolder
held = HeldFolder()
(held.path / "slots").write_text("something")
child = {children}
print(held.path, child, flush=True)
signal.pause()
"""
ALONE = "0"
#: As a pool does: the child is the same program, and lives until it is killed.
FORKED = "os.fork() or signal.pause()"
#: As a tool may: the child is another program.
STARTED = "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], stdout=subprocess.DEVNULL).pid"

Make = Callable[[str], tuple[Path, "subprocess.Popen[str]", int]]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def make() -> Iterator[Make]:
    """Start a process that makes a folder; returns the folder, the process and its child's pid."""
    started: list[subprocess.Popen[str]] = []
    children: list[int] = []

    def make(kind: str) -> tuple[Path, subprocess.Popen[str], int]:
        code = MAKER.format(children=kind)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        path, child = process.stdout.readline().split()
        children.extend(filter(None, [int(child)]))
        return Path(path), process, int(child)

    yield make
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_the_folder_of_a_process_that_was_killed_is_removed_and_that_of_a_living_one_is_not(make: Make) -> None:
    left, dead, _ = make(ALONE)
    kept, _living, _ = make(ALONE)
    assert remove_left_behind() == []
    dead.kill()
    dead.wait()
    assert remove_left_behind() == [left]
    assert not left.exists()
    assert (kept / "slots").read_text() == "something"


def test_a_forked_child_that_outlives_its_killed_parent_keeps_the_folder_until_it_ends(make: Make) -> None:
    path, parent, child = make(FORKED)
    parent.kill()
    parent.wait()
    assert remove_left_behind() == []
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: remove_left_behind() == [path], "the child ended", 30)


def test_a_program_that_a_killed_process_had_started_does_not_keep_its_folder(make: Make) -> None:
    path, parent, _ = make(STARTED)
    parent.kill()
    parent.wait()
    assert remove_left_behind() == [path]


def test_a_forked_child_that_is_done_with_the_folder_leaves_it_to_its_parent() -> None:
    with HeldFolder() as path:
        held = HeldFolder()
        pid = os.fork()
        if pid == 0:
            held.remove()
            os._exit(0)
        os.waitpid(pid, 0)
        assert held.path.is_dir()
        assert remove_left_behind() == []
        held.remove()
        assert (held.path.exists(), path.exists()) == (False, True)


def removed_after(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let the first call of a function be followed by a process that takes the folder under way for a dead one's."""
    module: Any = {"mkdtemp": tempfile, "open": os}[name]
    do, removed = getattr(module, name), list[Path]()

    def then_remove(*args: Any, **options: Any) -> Any:
        done = do(*args, **options)
        monkeypatch.setattr(module, name, do)
        removed.extend(remove_left_behind())
        return done

    monkeypatch.setattr(module, name, then_remove)
    return removed


@pytest.mark.parametrize("moment", ["mkdtemp", "open"])
def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    moment: str, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    removed = removed_after(moment, monkeypatch)
    with HeldFolder() as path:
        assert len(removed) == 1
        assert list(temporary.iterdir()) == [path] != removed
        assert remove_left_behind() == []


def test_what_belongs_to_somebody_else_or_is_a_link_or_a_file_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    (temporary / "precious").mkdir()
    (temporary / f"{HELD_PREFIX}link").symlink_to(temporary / "precious")
    (temporary / f"{HELD_PREFIX}file").touch()
    assert remove_left_behind() == []
    (ours := temporary / f"{HELD_PREFIX}folder").mkdir()
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: ours.stat().st_uid + 1)
        assert remove_left_behind() == []
    assert remove_left_behind() == [ours]
    assert len(list(temporary.iterdir())) == 3


def test_where_folders_cannot_be_locked_nobody_removes_them_but_their_maker(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EBADF, "no locks on folders here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with HeldFolder() as path:
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        assert remove_left_behind() == []
        assert list(temporary.iterdir()) == [path]
    assert not path.exists()
