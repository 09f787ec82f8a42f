"""Where the messages of a checkpoint stand: stretches of append logs, oldest first.

A log belongs to one run and holds messages at consecutive positions. Appends extend the last log. An edit, a trim or a
new line starts another log at the first position that changes and leaves the old one to the checkpoints that point
there, so history stays as it is and only what changed is written.

A new log also takes into itself each older stretch that is no longer than everything after it. So stretches halve in
length from left to right: there are at most about log2(n) of them, and a run that edits its last message at each step
copies each message about log2(n) times, not n times.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Segment:
    """Positions from the end of the segment before up to `until`, held by `log`.

    Args:
        log: Number of the log in its run.
        until: Position after the last one.
    """

    log: int
    until: int


Segments = tuple[Segment, ...]

_decoder = msgspec.msgpack.Decoder(list[tuple[int, int]])


def dump_segments(segments: Segments) -> bytes:
    """Return the stored form: two or three bytes a segment."""
    return msgspec.msgpack.encode([(segment.log, segment.until) for segment in segments])


def load_segments(stored: bytes) -> Segments:
    """Return the segments of a stored form.

    Raises:
        ValueError: The bytes are no segments.
    """
    segments = tuple(Segment(log, until) for log, until in _decoder.decode(stored))
    starts = [0, *(segment.until for segment in segments)]
    if any(start > segment.until for start, segment in zip(starts, segments, strict=False)):
        raise ValueError("segments must not overlap")
    return segments


def length_of(segments: Segments) -> int:
    """Return how many messages the segments hold."""
    return segments[-1].until if segments else 0


def appended(segments: Segments, length: int) -> Segments:
    """Return the segments after their last log grew to `length`."""
    return (*segments[:-1], Segment(segments[-1].log, length))


def branched(segments: Segments, unchanged: int, length: int, log: int) -> tuple[Segments, int]:
    """Start a log for everything after the first `unchanged` messages.

    Args:
        segments: Those of the checkpoint before.
        unchanged: How many of its messages stay.
        length: How many messages there are now.
        log: Number of the new log.

    Returns:
        The new segments, and the position from which on messages are written to the new log. The last segment may be
        empty; it says that the log before it must not grow.
    """
    kept: list[Segment] = []
    for segment in segments:
        kept.append(Segment(segment.log, min(segment.until, unchanged)))
        if segment.until >= unchanged:
            break
    start = 0
    for index, segment in enumerate(kept):
        if segment.until - start <= length - segment.until:
            return (*kept[:index], Segment(log, length)), start
        start = segment.until
    return (*kept, Segment(log, length)), start
