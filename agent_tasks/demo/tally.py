"""What a shop's ledger says in the end: for each kind of effect, how many carts got one, got more, or got none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agent_tasks.demo.carts import Cart
from agent_tasks.demo.shop_ledger import Effect

__all__ = ["Share", "Tally", "cart_of", "tally"]

_KINDS = ("order", "charge", "mail")  # in the order of the fields of a tally


@dataclass(frozen=True, slots=True)
class Share:
    """How one kind of effect came to the carts; ``once``, ``more`` and ``none`` add up to their number.

    Attributes:
        effects: that happened, each repetition counted.
        once: carts that got exactly one.
        more: carts that got more than one.
        none: carts that got none.
    """

    effects: int
    once: int
    more: int
    none: int


@dataclass(frozen=True, slots=True)
class Tally:
    """The shares of all kinds of effects."""

    orders: Share
    charges: Share
    emails: Share

    @property
    def doubled(self) -> int:
        """How many pairs of a cart and a kind happened more than once."""
        return self.orders.more + self.charges.more + self.emails.more

    @property
    def lost(self) -> int:
        """How many pairs of a cart and a kind never happened."""
        return self.orders.none + self.charges.none + self.emails.none


def tally(effects: Iterable[Effect], carts: Iterable[Cart]) -> Tally:
    """Count what really happened.

    Args:
        effects: The rows of the shop's ledger; nothing else is believed.
        carts: All the carts that were to be bought.

    Returns:
        The shares. An effect that belongs to none of the carts stands for a cart of its own, so that it is seen.

    Example:
        >>> tally([], []).charges
        Share(effects=0, once=0, more=0, none=0)
    """
    rows = list(effects)
    wanted = [cart["id"] for cart in carts]
    owner = cart_of(rows)
    happened = {kind: Counter(owner[row["id"]] for row in rows if row["kind"] == kind) for kind in _KINDS}
    return Tally(*(_share(happened[kind], wanted) for kind in _KINDS))


def cart_of(effects: Iterable[Effect]) -> dict[str, str]:
    """For each effect's id, the id of its cart; of its order where the shop does not know that."""
    owner: dict[str, str] = {}
    for row in effects:  # oldest first: an order comes before what names it
        body = row["body"]
        owner[row["id"]] = body["cart"] if row["kind"] == "order" else owner.get(body["order"], body["order"])
    return owner


def _share(happened: Counter[str], wanted: Iterable[str]) -> Share:
    counts = [happened[cart] for cart in {*wanted, *happened}]
    return Share(
        effects=sum(counts),
        once=sum(count == 1 for count in counts),
        more=sum(count > 1 for count in counts),
        none=counts.count(0),
    )
