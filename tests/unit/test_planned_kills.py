"""Planned kills of real processes, and the journals of what they crossed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tasks.boundary import Point
from agent_tasks.testing.kills import KILLS_VARIABLE, CarriedOut, Crossing, Kill, Kills

BEFORE, AFTER = (Crossing(0, Point("effect", "charge", moment)) for moment in ("before", "after"))

#: Crosses a boundary in no task, as the threads of a worker's parent do.
PARENT = """
from agent_tasks.boundary import Boundary
from agent_tasks.testing.kills import Kills
Kills.install()
Boundary().effect("charge", lambda: None)
"""


def cross(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PARENT],
        env={**os.environ, KILLS_VARIABLE: str(folder)},
        start_new_session=True,
        check=False,
        capture_output=True,
        text=True,
    )


def test_without_a_plan_crossings_are_recorded_and_nobody_dies(tmp_path: Path) -> None:
    assert cross(tmp_path).returncode == 0
    assert Kills(tmp_path).crossings() == [BEFORE, AFTER]


def test_a_planned_kill_happens_at_its_crossing_and_once_over_all_processes(tmp_path: Path) -> None:
    kills = Kills(tmp_path)
    kills.plan([Kill("worker", AFTER)])
    assert [cross(tmp_path).returncode, cross(tmp_path).returncode] == [-signal.SIGKILL, 0]
    (done,) = kills.carried_out()
    assert done == CarriedOut(Kill("worker", AFTER), done.pid, done.at, crossed=2)


def test_a_later_plan_leaves_an_earlier_one_as_it_is(tmp_path: Path) -> None:
    kills = Kills(tmp_path)
    kills.plan([Kill("worker", AFTER)])
    kills.plan([Kill("worker", BEFORE)])
    assert [cross(tmp_path).returncode for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert [one.kill.at for one in kills.carried_out()] == [BEFORE, AFTER]


def test_a_kill_of_a_worker_takes_no_stranger_along(tmp_path: Path) -> None:
    Kills(tmp_path).plan([Kill("worker", AFTER)])
    in_a_shell = f"{sys.executable} -c '{PARENT}'; true"  # a shell leads the group here
    shell = subprocess.run(
        ["/bin/sh", "-c", f"( {in_a_shell} ); echo alive"],
        env={**os.environ, KILLS_VARIABLE: str(tmp_path)},
        start_new_session=True,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "is not the worker's own" in shell.stderr
    assert shell.stdout == "alive\n"


@pytest.mark.parametrize(
    ("who", "message"), [("chidl", "who must be 'child' or 'worker'"), ("child", "takes the whole worker")]
)
def test_a_kill_that_cannot_be_meant_is_refused(who: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Kill(who, AFTER)
