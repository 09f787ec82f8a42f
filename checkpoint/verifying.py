"""Messages as they are stored: followed link by link, so that no changed, lost or moved one becomes state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkpoint.chain import ROOT, link
from checkpoint.segments import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkpoint.cache import KnownRun
    from checkpoint.segments import Segments


class Damage(Exception):
    """What fails in a checkpoint; with the log and position of the first message that does, if it is one of them."""

    def __init__(self, reason: str, place: tuple[int, int] | None = None) -> None:
        super().__init__(reason, place)
        self.reason = reason
        self.place = place


class Message(NamedTuple):
    """A message as a store keeps it.

    Args:
        log: The log that holds it.
        position: Its place in the run.
        link: The link after it.
        item: The encoded message.
    """

    log: int
    position: int
    link: bytes
    item: bytes


def verified(
    segments: Segments, last: bytes, known: KnownRun | None, stored: Callable[[int], Iterable[Message]]
) -> tuple[list[bytes], list[bytes]]:
    """Return the encoded messages that segments hold, and the chain over them.

    Args:
        segments: Where they stand.
        last: The link that the chain must end with.
        known: What need not be read again, if it is a beginning of them.
        stored: Gives the stored messages from a position on; it raises `Damage` where bytes fail.

    Raises:
        Damage: A message is missing, or is not the one that was saved.
    """
    if known is not None and len(known.items) <= length_of(segments):
        try:
            return _followed(segments, last, (known.items, known.chain), stored)
        except Damage:
            pass  # what is known may belong to another line
    return _followed(segments, last, ([], [ROOT]), stored)


def holds(segments: Segments, place: tuple[int, int]) -> bool:
    """Return whether segments hold the message at a log and position."""
    log, position = place
    start = 0
    for segment in segments:
        if segment.log == log and start <= position < segment.until:
            return True
        start = segment.until
    return False


def _followed(
    segments: Segments,
    last: bytes,
    known: tuple[list[bytes], list[bytes]],
    stored: Callable[[int], Iterable[Message]],
) -> tuple[list[bytes], list[bytes]]:
    items, chain = list(known[0]), list(known[1])
    wanted = length_of(segments)
    for message in stored(len(items)) if len(items) < wanted else ():
        chain.append(link(chain[-1], message.item))
        if message.position != len(items) or chain[-1] != message.link:
            reason = f"its message {message.position} does not match the chain"
            raise Damage(reason, (message.log, message.position))
        items.append(message.item)
    if len(items) != wanted:
        raise Damage(f"it has {len(items)} of its {wanted} messages")
    if chain[-1] != last:
        raise Damage("its messages do not match its chain")
    return items, chain
