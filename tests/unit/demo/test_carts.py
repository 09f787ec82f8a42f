"""Carts are checked before anything is sent."""

import copy
import json

import pytest

from agent_tasks.demo.carts import BUILT_IN_CARTS, CartError, load_carts, receipt, total_cents

GOOD = {
    "id": "cart-1",
    "customer": "Zoë 山田",
    "email": "zoe@example.com",
    "currency": "EUR",
    "items": [{"name": "Tea", "quantity": 2, "cents": 450}],
}


def test_the_built_in_carts_can_be_used():
    carts = load_carts()
    assert 6 <= len(carts) <= 8
    assert len({cart["email"] for cart in carts}) == len(carts)
    assert any(not cart["customer"].isascii() for cart in carts)


def test_carts_come_back_as_they_stand_in_the_file():
    assert load_carts() == json.loads(BUILT_IN_CARTS.read_text(encoding="utf-8"))


def test_a_receipt_names_the_order_the_customer_and_the_total(tmp_path):
    path = tmp_path / "carts.json"
    path.write_text(json.dumps([GOOD]), encoding="utf-8")
    (cart,) = load_carts(path)
    assert total_cents(cart) == 900
    assert receipt(cart, "order-7") == {
        "to": "zoe@example.com",
        "subject": "Your order order-7",
        "text": "Hello Zoë 山田,\n\n2 × Tea\n\nTotal: 9.00 EUR",
    }


def drop(field):
    return lambda cart: cart.pop(field)


def put(field, value):
    return lambda cart: cart.__setitem__(field, value)


def put_in_item(field, value):
    return lambda cart: cart["items"][0].__setitem__(field, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("email"), "cart 1: email is missing; it must be an e-mail address."),
        (put("id", ""), 'cart 1: id must be a text of one line, got "".'),
        (put("id", 7), "cart 1: id must be a text of one line, got 7."),
        (put("id", "first"), "cart 1: id must be its own, got 'first', which cart 0 has."),
        (put("customer", "a\nb"), r'cart 1: customer must be a text of one line, got "a\nb".'),
        (put("email", "zoe"), 'cart 1: email must be an e-mail address, got "zoe".'),
        (put("email", "a@b.c\nBcc: x@y.z"), "cart 1: email must be an e-mail address"),
        (put("currency", "eur"), "cart 1: currency must be three capital letters such as 'EUR', got \"eur\"."),
        (put("items", []), "cart 1: items must be a list of at least one item, got []."),
        (put("items", {}), "cart 1: items must be a list of at least one item, got {}."),
        (put("items", ["Tea"]), 'cart 1: items[0] must be a JSON object, got "Tea".'),
        (put("e-mail", "x"), "cart 1: 'e-mail' is not a field; did you mean 'email'?"),
        (put("zzz", "x"), "cart 1: 'zzz' is not a field; it has id, customer, email, currency, items."),
        (put_in_item("cents", 4.5), "cart 1: items[0]: cents must be a whole number of cents above 0, got 4.5."),
        (put_in_item("cents", True), "cart 1: items[0]: cents must be a whole number of cents above 0, got true."),
        (put_in_item("cents", "450"), 'cart 1: items[0]: cents must be a whole number of cents above 0, got "450".'),
        (put_in_item("quantity", 0), "cart 1: items[0]: quantity must be a whole number above 0, got 0."),
        (put_in_item("name", None), "cart 1: items[0]: name must be a text of one line, got null."),
        (put_in_item("price", 5), "cart 1: items[0]: 'price' is not a field"),
    ],
)
def test_a_bad_cart_is_named_with_its_field_and_what_was_expected(tmp_path, change, message):
    bad = copy.deepcopy(GOOD)
    change(bad)
    path = tmp_path / "carts.json"
    path.write_text(json.dumps([{**GOOD, "id": "first"}, bad]), encoding="utf-8")
    with pytest.raises(CartError) as caught:
        load_carts(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory. Give the path of a JSON file of carts."),
        (b"\xff", "must be UTF-8: byte 0 is not."),
        (b"[{]", "is not JSON: line 1, column 3:"),
        (b"{}", "must be a JSON array of at least one cart, got {}."),
        (b"[]", "must be a JSON array of at least one cart, got []."),
        (b'["x"]', 'cart 0 must be a JSON object, got "x".'),
    ],
)
def test_a_file_that_holds_no_carts_is_named_with_the_reason(tmp_path, content, message):
    path = tmp_path / "carts.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CartError) as caught:
        load_carts(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
