"""What the demo ends with, and what it calls a fault."""

import json
import random
from dataclasses import replace

import pytest

from agent_tasks.demo.__main__ import plan_kills
from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.compared import Compared
from agent_tasks.demo.durable import Durable
from agent_tasks.demo.kills import CarriedOut, Kill
from agent_tasks.demo.report import Report

CARTS = load_carts()[:2]
PLANNED = [Kill("charge", "child"), Kill("charge", "worker")]
KILLS = [CarriedOut(kill, cart["id"], 1, 1) for kill, cart in zip(PLANNED, CARTS, strict=True)]
GOOD = {"orders": 2, "charges": 2, "emails": 2, "doubled": 0, "lost": 0}
DURABLE = Durable(succeeded=2, kills=KILLS, recovery_seconds=[0.5, 3.25], world=GOOD)
PLAIN = Compared(KILLS[:1], {"orders": 2, "charges": 3, "emails": 1, "doubled": 1, "lost": 1})
REPORT = Report(CARTS, PLANNED, DURABLE, PLAIN)


def test_the_object_has_the_numbers_of_both_worlds():
    assert json.loads(REPORT.json()) == {
        "runs": 2,
        "worker_kills": 1,
        "child_kills": 1,
        "succeeded": 2,
        "world": {"orders": 2, "charges": 2, "emails": 2},
        "plain_celery": {"orders": 2, "charges": 3, "emails": 1, "doubled": 1, "lost": 1},
        "recovery_seconds": [0.5, 3.25],
    }


def test_the_table_has_a_row_for_each_number_and_says_which_kills_had_no_cart_left():
    rows = [line.split() for line in REPORT.table().splitlines()]
    for row in (["charges", "2", "3"], ["lost", "0", "1"], ["workers", "killed", "1", "0"]):
        assert row in rows
    assert "no cart left" in REPORT.table()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"world": {**GOOD, "doubled": 1}}, "1 effects happened twice"),
        ({"world": {**GOOD, "lost": 1}}, "1 carts lack"),
        ({"succeeded": 1}, "only 1 of 2 runs succeeded"),
        ({"kills": KILLS[:1], "recovery_seconds": [0.5]}, "only 1 of 2 planned kills happened"),
        ({"recovery_seconds": [0.5]}, "not every killed step was seen to begin again"),
    ],
    ids=["doubled", "lost", "unfinished", "unharmed", "not resumed"],
)
def test_whatever_is_owed_is_a_fault(change, fault):
    assert REPORT.faults == []
    (found,) = replace(REPORT, durable=replace(DURABLE, **change)).faults
    assert fault in found


def test_each_tool_loses_a_child_and_a_worker_where_there_are_carts_enough():
    assert {(kill.tool, kill.who) for kill in plan_kills(2, random.Random(1))} == {
        (tool, who) for tool in ("create_order", "charge", "send_mail") for who in ("child", "worker")
    }
    assert {kill.who for kill in plan_kills(1, random.Random(1))} == {"child"}
