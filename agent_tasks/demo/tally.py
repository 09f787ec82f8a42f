"""What a shop's ledger says in the end: how often each effect happened, how many were doubled, how many are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from agent_tasks.demo.carts import Cart
from agent_tasks.demo.shop_ledger import Effect

__all__ = ["Tally", "tally"]

_KINDS = ("order", "charge", "mail")


class Tally(TypedDict):
    """Counts of effects, and of what went wrong with them."""

    orders: int
    charges: int
    emails: int
    doubled: int  # effects beyond the first of their kind for one cart
    lost: int  # carts without an order, a charge or an e-mail


def tally(effects: Iterable[Effect], carts: Iterable[Cart]) -> Tally:
    """Count what really happened.

    Args:
        effects: The rows of the shop's ledger.
        carts: All the carts that were to be bought.

    Returns:
        The counts; nothing but the ledger is believed.

    Example:
        >>> tally([], [])
        {'orders': 0, 'charges': 0, 'emails': 0, 'doubled': 0, 'lost': 0}
    """
    rows = list(effects)
    cart_of = {row["id"]: row["body"]["cart"] for row in rows if row["kind"] == "order"}
    # Charges and mails name their order; one that names an order which the shop does not know stands for itself.
    happened = Counter((row["kind"], _cart(row, cart_of)) for row in rows)
    kinds = Counter(row["kind"] for row in rows)
    return {
        "orders": kinds["order"],
        "charges": kinds["charge"],
        "emails": kinds["mail"],
        "doubled": sum(count - 1 for count in happened.values()),
        "lost": sum(any((kind, cart["id"]) not in happened for kind in _KINDS) for cart in carts),
    }


def _cart(row: Effect, cart_of: dict[str, str]) -> str:
    order_id: str = row["id"] if row["kind"] == "order" else row["body"]["order"]
    return cart_of.get(order_id, order_id)
