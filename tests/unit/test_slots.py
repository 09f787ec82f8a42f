"""The table of slots: written by children that may die at any moment, read by their parent."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_tasks import slots as module
from agent_tasks.schema import MAX_ID_LENGTH
from agent_tasks.slots import _RECORD, MAX_SLOTS, SLOTS_VARIABLE, Lease, Slots
from tests.forked import forked

#: Takes a slot, says so, and works until it is killed.
CHILD = """
import signal, sys
from agent_tasks.slots import Slots
slot = Slots(sys.argv[1]).take(sys.argv[2], "token of " + sys.argv[2], deadline=10.0)
slot.claimed(7)
print(slot.deadline, flush=True)
signal.pause()
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path / "slots")


@pytest.fixture
def start(slots: Slots) -> Iterator[Start]:
    """Start a process that works on a run; it has its slot when this returns."""
    started: list[subprocess.Popen[str]] = []

    def start(run_id: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, str(slots.path), run_id]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "10.0\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_a_slot_says_who_works_on_what(slots: Slots) -> None:
    slots.take("run-1", "token", deadline=10.0)
    assert slots.leases() == [Lease(os.getpid(), "run-1", "token", None, 10.0, 10.0)]


def test_a_slot_learns_its_fence_and_other_deadlines(slots: Slots) -> None:
    slot = slots.take("run-1", "token", deadline=10.0)
    slot.claimed(2**40)
    slot.set_deadline(5.0)
    assert slot.deadline == 5.0
    assert slots.leases() == [Lease(os.getpid(), "run-1", "token", 2**40, 5.0, 10.0)]


def test_the_longest_run_id_fits(slots: Slots) -> None:
    run_id = "\N{SNAKE}" * MAX_ID_LENGTH
    slots.take(run_id, "f" * 32, deadline=10.0)
    (lease,) = slots.leases()
    assert (lease.run_id, lease.token) == (run_id, "f" * 32)


def test_a_place_that_was_given_back_is_taken_again(slots: Slots) -> None:
    slots.take("run-1", "one", deadline=1.0)
    slot = slots.take("run-2", "two", deadline=2.0)
    slots.take("run-3", "three", deadline=3.0)
    slot.free()
    slots.take("run-4", "four", deadline=4.0)
    assert [lease.run_id for lease in slots.leases()] == ["run-1", "run-4", "run-3"]


def test_a_thread_that_outlives_its_attempt_writes_nothing_into_a_place_that_was_given_back(slots: Slots) -> None:
    """Else the next attempt there would not be renewed, or its process would be killed at the deadline of another."""
    late = slots.take("run-1", "token", deadline=10.0)
    late.free()
    late.set_deadline(5.0)
    assert slots.leases() == []
    slots.take("run-2", "another", deadline=30.0)
    late.set_deadline(5.0)
    late.claimed(1)
    assert [(lease.run_id, lease.fence, lease.deadline) for lease in slots.leases()] == [("run-2", None, 30.0)]


def test_a_full_table_says_what_to_do(slots: Slots) -> None:
    lease = Lease(1, "run", "token", 1, 1.0, 1.0)
    for index in range(MAX_SLOTS):
        slots.write(index, lease)
    with pytest.raises(RuntimeError, match=rf"all {MAX_SLOTS} slots of .* are taken: lower worker_concurrency"):
        slots.take("run", "token", deadline=1.0)


def test_only_the_slot_of_the_dead_process_is_freed(slots: Slots) -> None:
    leases = [
        Lease(1, "run", "dead", 1, 1.0, 1.0),
        Lease(1, "run", "alive", 1, 1.0, 1.0),
        Lease(2, "run", "dead", 1, 1.0, 1.0),
    ]
    for index, lease in enumerate(leases):
        slots.write(index, lease)
    slots.free(replace(leases[0], fence=None))  # as it was seen before its fence came
    assert slots.leases() == leases[1:]


@pytest.mark.parametrize("written", [1, 100, _RECORD.size - 4])  # with all of the old checksum
def test_a_record_that_is_half_written_is_passed_over(slots: Slots, written: int) -> None:
    slots.take("run-1", "one", deadline=1.0)
    slots.take("run-2", "two", deadline=2.0)
    whole = slots._read_raw(0)
    slots.write(0, Lease(2**31, "another-run" * 70, "another token", 2**40, 3.0, 3.0))
    torn = slots._read_raw(0)[:written] + whole[written:]
    slots._write_raw(0, torn)
    assert [lease.run_id for lease in slots.leases()] == ["run-2"]
    slots.take("run-3", "three", deadline=3.0)  # nor is its place taken from its process
    assert [lease.run_id for lease in slots.leases()] == ["run-2", "run-3"]


def test_processes_share_one_table_and_it_outlives_their_deaths(slots: Slots, start: Start) -> None:
    mine = slots.take("mine", "token of mine", deadline=10.0)
    children = [start(run_id) for run_id in ("run-1", "run-2")]
    expected = [(child.pid, run_id) for child, run_id in zip(children, ("run-1", "run-2"), strict=True)]
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()
    leases = slots.leases()
    assert [(lease.pid, lease.run_id) for lease in leases] == [(os.getpid(), "mine"), *expected]
    assert leases[1] == Lease(children[0].pid, "run-1", "token of run-1", 7, 10.0, 10.0)
    for lease in leases[1:]:
        slots.free(lease)
    mine.free()
    assert slots.leases() == []


def test_a_process_that_is_killed_does_not_hold_the_table(slots: Slots, start: Start) -> None:
    start("run-1").kill()
    assert slots.take("run-2", "token", deadline=1.0)


def test_a_temporary_table_is_removed_with_its_owner() -> None:
    slots = Slots.temporary()
    folder = slots.path.parent
    assert folder.is_dir()
    del slots
    assert not folder.exists()


def test_a_temporary_table_outlives_a_process_that_inherited_it() -> None:
    slots = Slots.temporary()

    def forget() -> None:
        nonlocal slots
        slots = None  # type: ignore[assignment]

    assert forked(forget) == 0
    assert slots.path.exists()


# -- children that inherited it -------------------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Slots:
    """The table of a worker that this process is until the test ends."""
    monkeypatch.setenv(SLOTS_VARIABLE, "")
    monkeypatch.setattr(module, "_of_this_worker", None)
    return Slots.of_new_worker()


def test_a_child_that_is_forked_after_the_folder_was_removed_takes_its_place_in_the_same_table(worker: Slots) -> None:
    shutil.rmtree(worker.path.parent)
    assert forked(lambda: Slots.of_this_process().take("run-1", "token", deadline=1.0)) == 0
    (lease,) = worker.leases()
    assert (lease.run_id, lease.pid != os.getpid()) == ("run-1", True)
    worker.free(lease)
    assert worker.leases() == []


def test_a_child_is_kept_out_of_the_table_that_its_parent_holds_and_gets_in_after_that(worker: Slots) -> None:
    def try_it() -> None:
        fcntl.lockf(worker._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with worker._locked():
        assert forked(try_it) == BlockingIOError.__name__
    assert forked(try_it) == 0


def test_a_child_that_is_killed_while_it_holds_the_table_gives_it_back(worker: Slots) -> None:
    def hold() -> None:
        with worker._locked():
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(hold) == -signal.SIGKILL
    assert forked(lambda: worker.take("run-1", "token", deadline=1.0)) == 0
    assert worker.take("run-2", "token", deadline=1.0)


def test_a_child_that_is_forked_while_a_thread_of_its_parent_holds_the_table_is_not_held_up(worker: Slots) -> None:
    holds, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with module._threads:  # as in the table; the lock of its file is no child's
            holds.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(60)
    try:
        assert forked(lambda: worker.take("run-1", "token", deadline=1.0)) == 0
    finally:
        go_on.set()
        thread.join()


def test_a_body_that_is_interrupted_in_the_table_does_not_keep_it(worker: Slots) -> None:
    with pytest.raises(KeyboardInterrupt), worker._locked():
        raise KeyboardInterrupt
    assert forked(lambda: worker.take("run-1", "token", deadline=1.0)) == 0


def test_a_program_that_a_worker_started_uses_its_table_and_one_of_its_own_once_that_was_removed(worker: Slots) -> None:
    code = """
from agent_tasks.slots import Slots
slots = Slots.of_this_process()
slots.take("run-1", "token", deadline=1.0)
print(slots.path)
"""

    def start() -> str:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    assert start() == str(worker.path)
    (lease,) = worker.leases()
    worker.free(lease)
    shutil.rmtree(worker.path.parent)
    assert start() != str(worker.path)
    assert worker.leases() == []
    assert not worker.path.parent.exists()
