"""The hash chain over a run's messages: each link commits to everything before it.

Two message lists are equal up to index i exactly when their links at i are equal, so one link says where an append
starts and one pass at load shows any changed, lost or reordered message.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Bytes of a link. 128 bits guard against accident and make a forged second history infeasible to stumble upon.
LINK_BYTES = 16

#: The link before the first message.
ROOT = bytes(LINK_BYTES)


def link(previous: bytes, item: bytes) -> bytes:
    """Return the link of `item` when it follows `previous`."""
    return blake2b(previous + item, digest_size=LINK_BYTES, person=b"checkpoint.chain").digest()


def links(items: Iterable[bytes], root: bytes = ROOT) -> list[bytes]:
    """Return the chain over `items`: element i is the link after i items, so the first is `root` itself."""
    chain = [root]
    for item in items:
        chain.append(link(chain[-1], item))
    return chain


def relinked(items: Sequence[bytes], known_items: Sequence[bytes], known_chain: Sequence[bytes]) -> list[bytes]:
    """Return the chain over `items` with the links of a known chain as far as its items are the same."""
    same = 0
    for item, known in zip(items, known_items, strict=False):
        if item != known:
            break
        same += 1
    return [*known_chain[:same], *links(items[same:], known_chain[same])]
