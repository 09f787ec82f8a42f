"""The carts that the demo buys: read from a JSON file and checked before anything is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, cast

from agent_tasks.errors import nearest

__all__ = ["BUILT_IN_CARTS", "Cart", "CartError", "Item", "Receipt", "load_carts", "receipt", "total_cents"]

#: The carts that come with the demo.
BUILT_IN_CARTS = Path(__file__).with_name("carts.json")

_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_CURRENCY = re.compile(r"[A-Z]{3}")


class Item(TypedDict):
    """One line of a cart; ``cents`` is the price of one piece in hundredths of the currency."""

    name: str
    quantity: int
    cents: int


class Cart(TypedDict):
    """What one customer buys. Plain data, so that it can be a run's input and a task's argument as it is."""

    id: str
    customer: str
    email: str
    currency: str
    items: list[Item]


class Receipt(TypedDict):
    """The e-mail that tells a customer about an order."""

    to: str
    subject: str
    text: str


class CartError(ValueError):
    """A file of carts cannot be used; the message names the cart, the field and what was expected."""


def load_carts(path: str | Path = BUILT_IN_CARTS) -> list[Cart]:
    """Read and check a JSON file of carts.

    Args:
        path: A UTF-8 file that holds a JSON array of carts; the demo's own carts by default.

    Returns:
        The carts in the order of the file, at least one.

    Raises:
        CartError: The file cannot be read, or a cart in it cannot be used.

    Example:
        >>> [cart["id"] for cart in load_carts()][:2]
        ['cart-1001', 'cart-1002']
    """
    try:
        carts = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CartError(f"{path} cannot be read: {error.strerror}. Give the path of a JSON file of carts.") from error
    except UnicodeDecodeError as error:
        raise CartError(f"{path} must be UTF-8: byte {error.start} is not. Save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise CartError(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from error
    if not isinstance(carts, list) or not carts:
        raise CartError(f"{path} must be a JSON array of at least one cart, got {_shown(carts)}.")
    seen: dict[str, int] = {}
    for index, cart in enumerate(carts):
        _check(f"{path}: cart {index}", cart, _CART_FIELDS)
        first = seen.setdefault(cart["id"], index)
        if first != index:
            raise CartError(f"{path}: cart {index}: id must be its own, got {cart['id']!r}, which cart {first} has.")
    return cast("list[Cart]", carts)


def total_cents(cart: Cart) -> int:
    """What the whole cart costs, in hundredths of its currency.

    Example:
        >>> total_cents(load_carts()[0])
        7680
    """
    return sum(item["quantity"] * item["cents"] for item in cart["items"])


def receipt(cart: Cart, order_id: str) -> Receipt:
    """The e-mail for an order: its subject carries the order's id, so that a person finds it in the mail log.

    Example:
        >>> receipt(load_carts()[0], "order-1")["subject"]
        'Your order order-1'
    """
    lines = [f"{item['quantity']} × {item['name']}" for item in cart["items"]]
    total = f"{total_cents(cart) / 100:.2f} {cart['currency']}"
    return {
        "to": cart["email"],
        "subject": f"Your order {order_id}",
        "text": "\n".join([f"Hello {cart['customer']},", "", *lines, "", f"Total: {total}"]),
    }


class _Field:
    """What a field must be, in words and as a check."""

    def __init__(self, expected: str, holds: Callable[[Any], bool]) -> None:
        self.expected = expected
        self.holds = holds


def _text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_CART_FIELDS = {
    "id": _Field("a text of one line", _text),
    "customer": _Field("a text of one line", _text),
    "email": _Field("an e-mail address", lambda value: _text(value) and _EMAIL.fullmatch(value) is not None),
    "currency": _Field(
        "three capital letters such as 'EUR'", lambda value: _text(value) and _CURRENCY.fullmatch(value) is not None
    ),
    "items": _Field("a list of at least one item", lambda value: isinstance(value, list) and value != []),
}
_ITEM_FIELDS = {
    "name": _Field("a text of one line", _text),
    "quantity": _Field("a whole number above 0", _whole),
    "cents": _Field("a whole number of cents above 0", _whole),
}


def _check(place: str, value: object, fields: dict[str, _Field]) -> None:
    if not isinstance(value, dict):
        raise CartError(f"{place} must be a JSON object, got {_shown(value)}.")
    for name in value:
        if name not in fields:
            near = nearest(name, fields)
            advice = f"did you mean {near!r}?" if near else f"it has {', '.join(fields)}."
            raise CartError(f"{place}: {name!r} is not a field; {advice}")
    for name, field in fields.items():
        if name not in value:
            raise CartError(f"{place}: {name} is missing; it must be {field.expected}.")
        if not field.holds(value[name]):
            raise CartError(f"{place}: {name} must be {field.expected}, got {_shown(value[name])}.")
    for index, item in enumerate(value.get("items", [])):
        _check(f"{place}: items[{index}]", item, _ITEM_FIELDS)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
