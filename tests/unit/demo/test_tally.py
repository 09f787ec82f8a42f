"""The last word is the shop's ledger."""

import pytest

from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.shop_ledger import ShopLedger
from agent_tasks.demo.tally import Share, tally

CARTS = load_carts()[:2]


@pytest.fixture
def ledger():
    ledger = ShopLedger(":memory:")
    yield ledger
    ledger.close()


def buy(ledger, cart, *, charges=1, mails=1):
    order = ledger.append("order", cart["id"], {"cart": cart["id"]})["id"]
    for _ in range(charges):
        ledger.append("charge", cart["id"], {"order": order})
    for _ in range(mails):
        ledger.append("mail", None, {"order": order})


def test_one_of_each_is_neither_doubled_nor_lost(ledger):
    for cart in CARTS:
        buy(ledger, cart)
    world = tally(ledger.effects(), CARTS)
    assert world.orders == world.charges == world.emails == Share(effects=2, once=2, more=0, none=0)
    assert (world.doubled, world.lost) == (0, 0)


def test_a_kind_that_happened_more_than_once_for_a_cart_is_doubled_once_however_often_it_happened(ledger):
    buy(ledger, CARTS[0], charges=3)
    buy(ledger, CARTS[1], mails=2)
    world = tally(ledger.effects(), CARTS)
    assert world.charges == Share(effects=4, once=1, more=1, none=0)
    assert world.emails == Share(effects=3, once=1, more=1, none=0)
    assert (world.doubled, world.lost) == (2, 0)


def test_a_second_order_of_a_cart_is_doubled_with_all_that_follows_it(ledger):
    for _ in range(2):
        buy(ledger, CARTS[0])
    world = tally(ledger.effects(), CARTS[:1])
    assert world.orders == world.charges == world.emails == Share(effects=2, once=0, more=1, none=0)
    assert (world.doubled, world.lost) == (3, 0)


def test_each_kind_that_a_cart_did_not_get_is_lost(ledger):
    buy(ledger, CARTS[0], mails=0)
    world = tally(ledger.effects(), CARTS)
    assert world.orders == world.charges == Share(effects=1, once=1, more=0, none=1)
    assert world.emails == Share(effects=0, once=0, more=0, none=2)
    assert (world.doubled, world.lost) == (0, 4)


def test_an_effect_of_no_cart_is_counted_so_that_the_row_no_longer_adds_up(ledger):
    buy(ledger, CARTS[0])
    ledger.append("charge", "reference", {"order": "order-77"})
    assert tally(ledger.effects(), CARTS[:1]).charges == Share(effects=2, once=2, more=0, none=0)
