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
from agent_tasks.demo.tally import Share, Tally

CARTS = load_carts()[:2]
PLANNED = [Kill("charge", "child"), Kill("charge", "worker")]
KILLS = [CarriedOut(kill, cart["id"], 1, 1) for kill, cart in zip(PLANNED, CARTS, strict=True)]
ONE_EACH = Share(effects=2, once=2, more=0, none=0)
GOOD = Tally(ONE_EACH, ONE_EACH, ONE_EACH)
DURABLE = Durable(succeeded=2, kills=KILLS, recovery_seconds=[0.5, 3.25], world=GOOD)
PLAIN = Compared(KILLS[:1], Tally(ONE_EACH, Share(effects=4, once=1, more=1, none=0), Share(1, 1, 0, 1)))
REPORT = Report(CARTS, PLANNED, DURABLE, PLAIN)


def test_the_object_has_the_numbers_of_both_worlds():
    assert json.loads(REPORT.json()) == {
        "runs": 2,
        "worker_kills": 1,
        "child_kills": 1,
        "succeeded": 2,
        "world": {"orders": 2, "charges": 2, "emails": 2},
        "plain_celery": {"orders": 2, "charges": 4, "emails": 1, "doubled": 1, "lost": 1},
        "recovery_seconds": [0.5, 3.25],
    }


def test_the_table_has_a_row_for_each_kind_and_side_that_adds_up_to_the_carts():
    rows = [" ".join(line.split()) for line in REPORT.table().splitlines()]
    start = rows.index("exactly one more than one none") + 1
    assert rows[start : start + 6] == [
        "orders agent tasks 2 0 0",
        "plain Celery 2 0 0",
        "charges agent tasks 2 0 0",
        "plain Celery 1 1 0",
        "e-mails agent tasks 2 0 0",
        "plain Celery 1 0 1",
    ]


def test_kills_that_found_no_cart_under_plain_celery_are_owned_up_to():
    table = REPORT.table()
    assert "Killed under agent tasks: 1 child, 1 whole worker." in table
    assert "Killed under plain Celery: 1 child, 0 whole workers." in table
    assert "Not all planned kills found a cart under plain Celery: 1 of 2 did not happen" in table
    assert "Not all planned kills" not in replace(REPORT, plain=replace(PLAIN, kills=KILLS)).table()


def test_the_table_says_how_plain_celery_is_set_up_and_what_another_broker_would_do():
    table = REPORT.table()
    settings = ("acks_late", "reject_on_worker_lost", "prefetch 1", "worker_deduplicate_successful_tasks", "autoretry")
    for words in (
        *settings,
        "idempotency key",
        "Redis",
        "RabbitMQ",
        "the broker's doing",
        "Not tried",
        "asked a\n    person",
    ):
        assert words in table


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"world": replace(GOOD, charges=Share(3, 1, 1, 0))}, "charges: of 2 carts 1 got exactly one, 1 more than one"),
        (
            {"world": replace(GOOD, emails=Share(1, 1, 0, 1))},
            "e-mails: of 2 carts 1 got exactly one, 0 more than one, 1",
        ),
        ({"world": replace(GOOD, orders=Share(3, 3, 0, 0))}, "orders: of 2 carts 3 got exactly one"),
        ({"succeeded": 1}, "only 1 of 2 runs succeeded"),
        ({"kills": KILLS[:1], "recovery_seconds": [0.5]}, "only 1 of 2 planned kills happened"),
        ({"recovery_seconds": [0.5]}, "not every killed step was seen to begin again"),
    ],
    ids=["doubled", "lost", "stray", "unfinished", "unharmed", "not resumed"],
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
