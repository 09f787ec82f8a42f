"""Processes that are started again when they are killed, and that never outlive the demo."""

import os
import signal
import sys
from pathlib import Path

import pytest

from agent_tasks.demo.supervisor import Fleet, ProcessEnded, Supervised

_SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def supervise(tmp_path):
    def make(*command: str) -> Supervised:
        return Supervised(command, os.environ, tmp_path / "log", "it")

    return make


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_killed_process_is_started_again(supervise, wait_for):
    with supervise(*_SLEEPS) as process:
        assert not process.tend()
        first = process.pid
        os.killpg(first, signal.SIGKILL)
        wait_for(process.tend, "it is started again")
        assert process.pid != first
        assert is_alive(process.pid)
    assert not is_alive(first)


def test_a_process_that_ends_by_itself_is_an_error_with_the_end_of_its_log(supervise, wait_for):
    with (
        supervise(sys.executable, "-c", "print('no such broker'); raise SystemExit(3)") as process,
        pytest.raises(ProcessEnded, match=r"(?s)it \(process \d+\) ended by itself with exit code 3.*no such broker"),
    ):
        wait_for(process.tend, "it is noticed")


def test_what_a_process_started_goes_with_it(supervise, wait_for, tmp_path):
    script = "import subprocess, signal; print(subprocess.Popen(['sleep', '600']).pid, flush=True); signal.pause()"
    with supervise(sys.executable, "-c", script):
        wait_for(lambda: "\n" in (tmp_path / "log").read_text(), "it says what it started")
        child = int((tmp_path / "log").read_text())
        assert is_alive(child)
    wait_for(lambda: not is_alive(child), "its child is dead")


def test_a_process_that_does_not_listen_to_sigterm_is_killed(supervise, wait_for, tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with supervise(sys.executable, "-c", deaf) as process:
        wait_for(lambda: "1" in (tmp_path / "log").read_text(), "it is deaf")
        pid = process.pid
    assert not is_alive(pid)


def test_a_fleet_of_which_one_does_not_start_leaves_none_behind(tmp_path, wait_for):
    started = []

    def command(name: str) -> list[str]:
        return _SLEEPS if name == "worker1" else ["/no/such/program"]

    fleet = Fleet(command, os.environ, tmp_path)
    first = fleet._workers[0]
    stop, first.stop = first.stop, lambda: (started.append(first.pid), stop())
    with pytest.raises(FileNotFoundError), fleet:
        pass
    assert len(started) == 1
    assert not is_alive(started[0])
