"""What the demo says while it runs."""

import io

import pytest

from agent_tasks.demo.journal import JournalEntry
from agent_tasks.demo.kills import CarriedOut, Kill
from agent_tasks.demo.progress import Progress
from agent_tasks.demo.shop_ledger import ShopLedger

CARTS = {"run-1": "cart-1001"}


@pytest.fixture
def out():
    return io.StringIO()


def said(out) -> list[str]:
    """The lines without their times."""
    return [line.split(" s  ", 1)[1].strip() for line in out.getvalue().splitlines()]


def test_an_effect_that_happens_again_is_told_with_how_often_it_happened(out):
    ledger, progress = ShopLedger(":memory:"), Progress(out)
    order = ledger.append("order", "key", {"cart": "cart-1001"})["id"]
    ledger.append("charge", "reference", {"order": order})
    progress.effects(ledger.effects())
    ledger.append("charge", "reference", {"order": order})
    progress.effects(ledger.effects())
    ledger.close()
    assert [line.removeprefix("cart-1001").strip() for line in said(out)] == [
        "ordered",
        "charged",
        "CHARGED AGAIN: the shop's ledger has 2 charges of this cart",
    ]


def test_a_step_that_is_left_before_its_end_is_told_with_the_reason(out):
    entries = [JournalEntry("step_suspended", "run-1", 1), JournalEntry("told", "run-1", 2, said="asked the shop {}")]
    Progress(out).steps(entries, CARTS, {"run-1": "waits until noon"}.get)
    assert [line.split(maxsplit=1) for line in said(out)] == [
        ["cart-1001", "waits until noon"],
        ["cart-1001", "asked the shop {}"],
    ]


def test_a_run_that_has_gone_on_meanwhile_is_not_said_to_wait(out):
    Progress(out).steps([JournalEntry("step_suspended", "run-1", 1)], CARTS, lambda _run_id: None)
    assert said(out) == []


def test_silence_is_explained_and_nothing_else_is(out):
    Progress(out, quiet_seconds=0).waits(lambda: "for a worker")
    Progress(out, quiet_seconds=float("inf")).waits(lambda: pytest.fail("nobody was quiet for long"))
    assert said(out) == ["waits for a worker"]


def test_each_part_of_the_demo_begins_its_story_anew(out):
    kills = [CarriedOut(Kill("charge", "child"), "cart-1001", 7, 1)]
    progress = Progress(out)
    for _ in range(2):
        progress.title("part")
        progress.kills(kills)
        progress.kills(kills)
    assert out.getvalue().count("KILLED child 7") == 2
