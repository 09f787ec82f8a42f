"""Which line holds which seq, seen from a run's head.

A line that starts at seq k continues an older line's checkpoint k - 1 and hides what that line has from k on.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Stretch:
    """The seqs that one line holds, from `start` up to where the next stretch starts.

    Args:
        line: The line.
        start: Its first seq.
    """

    line: int
    start: int


Ancestry = tuple[Stretch, ...]

_decoder = msgspec.msgpack.Decoder(list[tuple[int, int]])


def dump_ancestry(ancestry: Ancestry) -> bytes:
    """Return the stored form."""
    return msgspec.msgpack.encode([(stretch.line, stretch.start) for stretch in ancestry])


def load_ancestry(stored: bytes) -> Ancestry:
    """Return the ancestry of a stored form.

    Raises:
        ValueError: The bytes are no ancestry.
    """
    return tuple(Stretch(line, start) for line, start in _decoder.decode(stored))


def line_of(ancestry: Ancestry, seq: int) -> int | None:
    """Return the line that holds `seq`, or None if it lies before the first stretch."""
    for stretch in reversed(ancestry):
        if stretch.start <= seq:
            return stretch.line
    return None


def started(ancestry: Ancestry, line: int, seq: int) -> Ancestry:
    """Return the ancestry after `line` started at `seq`."""
    return (*(stretch for stretch in ancestry if stretch.start < seq), Stretch(line, seq))
