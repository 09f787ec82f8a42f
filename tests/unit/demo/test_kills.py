"""Planned kills, carried out by real processes on themselves."""

import json
import os
import signal

import pytest

from agent_tasks.demo.kills import PLAN_VARIABLE, Kill, KillPlan, KillPlanError, strike

STRIKE = "import sys; from agent_tasks.demo.kills import strike; strike(sys.argv[1], sys.argv[2])"
#: A worker of two children, of which one strikes; the worker itself would go on for ever.
WORKER = """
import os, sys, time
from agent_tasks.demo.kills import strike
for number in range(2):
    if os.fork() == 0:
        if number == 1:
            strike("cart-1", "charge")
        while True:
            time.sleep(1)
while True:
    time.sleep(1)
"""


@pytest.fixture
def plan(tmp_path):
    return lambda *kills: KillPlan.write(tmp_path / "kills.json", kills)


@pytest.fixture
def striker(processes, tmp_path):
    """Start a process that strikes once for a call and then ends well."""

    def start(cart, tool):
        return processes("-c", STRIKE, cart, tool, environ={PLAN_VARIABLE: str(tmp_path / "kills.json")})

    return start


def test_a_planned_call_kills_its_process_and_the_next_one_lives(plan, striker):
    done = plan(Kill("charge", "child", cart="cart-1"))
    first = striker("cart-1", "charge")
    assert first.wait(30) == -signal.SIGKILL
    assert striker("cart-1", "charge").wait(30) == 0
    (kill,) = done.carried_out()
    assert (kill.kill, kill.cart, kill.pid) == (Kill("charge", "child", cart="cart-1"), "cart-1", first.pid)


def test_of_many_processes_at_once_as_many_die_as_are_planned(plan, striker):
    done = plan(Kill("charge", "child", cart="cart-1"), Kill("charge", "child", cart="cart-1"), Kill("charge", "child"))
    codes = [process.wait(60) for process in [striker("cart-1", "charge") for _ in range(8)]]
    assert sorted(codes) == [-signal.SIGKILL] * 3 + [0] * 5
    assert len({kill.pid for kill in done.carried_out()}) == 3


@pytest.mark.parametrize(("cart", "tool"), [("cart-2", "charge"), ("cart-1", "send_mail")])
def test_a_call_that_is_not_planned_lives(plan, striker, cart, tool):
    done = plan(Kill("charge", "child", cart="cart-1"))
    assert striker(cart, tool).wait(30) == 0
    assert done.carried_out() == []


def test_a_kill_of_the_worker_ends_its_parent_and_all_its_children(plan, processes, wait_for, tmp_path):
    done = plan(Kill("charge", "worker"))
    worker = processes("-c", WORKER, environ={PLAN_VARIABLE: str(tmp_path / "kills.json")}, session=True)
    assert worker.wait(30) == -signal.SIGKILL
    # The pipe ends when the last child that holds it is gone.
    assert worker.stdout.read() == ""
    assert [kill.cart for kill in done.carried_out()] == ["cart-1"]


def test_a_worker_without_a_session_of_its_own_is_not_killed_and_the_kill_stays_planned(plan, striker):
    done = plan(Kill("charge", "worker"))
    process = striker("cart-1", "charge")
    assert process.wait(30) == 1
    assert "is not the worker's own. Start the worker with start_new_session=True." in process.stdout.read()
    assert done.carried_out() == []


def test_without_a_plan_nobody_dies():
    strike("cart-1", "charge", environ={})


def test_a_plan_is_never_written_over(plan, tmp_path):
    plan(Kill("charge", "child"))
    with pytest.raises(FileExistsError):
        plan(Kill("charge", "child"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "must hold a list of kills, got dict"),
        (["charge"], "kill 0: "),
        ([{"tool": "charge"}], "kill 0: .*'who'"),
        ([{"tool": "", "who": "child"}], "kill 0: tool must be the name of a tool, got ''"),
        ([{"tool": "charge", "who": "boss"}], "kill 0: who must be 'child' or 'worker', got 'boss'"),
        ([{"tool": "charge", "who": "child", "cart": 5}], "kill 0: cart must be the id of a cart or null, got 5"),
    ],
)
def test_a_bad_plan_is_named_with_the_kill_and_the_reason(tmp_path, entries, message):
    path = tmp_path / "kills.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(KillPlanError, match=message):
        KillPlan(path)


def test_a_plan_that_is_not_there_is_an_error_and_not_a_quiet_run(tmp_path):
    with pytest.raises(KillPlanError, match=r"must be a JSON file with a list of kills"):
        strike("cart-1", "charge", environ={**os.environ, PLAN_VARIABLE: str(tmp_path / "none.json")})
