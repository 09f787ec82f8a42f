"""The last word is the shop's ledger."""

from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.shop_ledger import ShopLedger
from agent_tasks.demo.tally import tally

CARTS = load_carts()[:2]


def buy(ledger, cart, *, charges=1, mails=1):
    order = ledger.append("order", cart["id"], {"cart": cart["id"]})["id"]
    for _ in range(charges):
        ledger.append("charge", cart["id"], {"order": order})
    for _ in range(mails):
        ledger.append("mail", None, {"order": order})


def test_one_of_each_is_neither_doubled_nor_lost():
    ledger = ShopLedger(":memory:")
    for cart in CARTS:
        buy(ledger, cart)
    assert tally(ledger.effects(), CARTS) == {"orders": 2, "charges": 2, "emails": 2, "doubled": 0, "lost": 0}
    ledger.close()


def test_each_effect_beyond_the_first_of_its_kind_for_a_cart_is_doubled():
    ledger = ShopLedger(":memory:")
    buy(ledger, CARTS[0], charges=3)
    buy(ledger, CARTS[1], mails=2)
    assert tally(ledger.effects(), CARTS) == {"orders": 2, "charges": 4, "emails": 3, "doubled": 3, "lost": 0}
    ledger.close()


def test_a_second_order_of_a_cart_is_doubled_with_all_that_follows_it():
    ledger = ShopLedger(":memory:")
    for _ in range(2):
        buy(ledger, CARTS[0])
    assert tally(ledger.effects(), CARTS[:1]) == {"orders": 2, "charges": 2, "emails": 2, "doubled": 3, "lost": 0}
    ledger.close()


def test_a_cart_without_all_three_is_lost():
    ledger = ShopLedger(":memory:")
    buy(ledger, CARTS[0], mails=0)
    assert tally(ledger.effects(), CARTS) == {"orders": 1, "charges": 1, "emails": 0, "doubled": 0, "lost": 2}
    ledger.close()
