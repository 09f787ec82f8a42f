"""Stretches of logs stay few, and what they point to stays exact."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.ancestry import Stretch, dump_ancestry, line_of, load_ancestry, started
from checkpoint.segments import Segment, Segments, appended, branched, dump_segments, length_of, load_segments


def logs_of(segments: Segments) -> list[int]:
    """Return the log that holds each position."""
    return [
        segment.log
        for start, segment in zip([0, *(s.until for s in segments)], segments, strict=False)
        for _ in range(start, segment.until)
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=60))
def test_every_position_is_held_by_the_log_that_it_was_written_to(edits: list[tuple[int, int]]) -> None:
    written: dict[tuple[int, int], int] = {}  # log and position → the edit that wrote it
    content: list[int] = []  # the edit that made each message
    segments: Segments = ()
    for number, (at, more) in enumerate(edits):
        unchanged = min(at, len(content))
        content = content[:unchanged] + [number] * more
        segments, start = branched(segments, unchanged, len(content), log=number)
        assert start <= unchanged
        for position in range(start, len(content)):
            written[number, position] = content[position]
        assert length_of(segments) == len(content)
        assert [written[log, position] for position, log in enumerate(logs_of(segments))] == content
        assert segments[-1].log == number
        assert load_segments(dump_segments(segments)) == segments


@pytest.mark.parametrize("tail", [1, 2, 3, 10])
def test_a_run_that_edits_its_tail_at_each_step_keeps_few_stretches_and_copies_little(tail: int) -> None:
    chance = random.Random(tail)
    segments: Segments = ()
    copied = 0
    for number in range(2_000):
        length = length_of(segments)
        if number % 3:
            segments, start = branched(segments, max(0, length - chance.randint(1, tail)), length + 1, log=number)
            copied += length + 1 - start
        elif segments:
            segments = appended(segments, length + chance.randint(0, 5))
        assert len(segments) <= math.log2(length_of(segments) + 2) + 3
    assert copied <= 2_000 * (tail + 1) * math.log2(2_000)


def test_an_empty_last_stretch_keeps_the_log_before_it_from_growing() -> None:
    first, _ = branched((), 0, 3, log=0)
    turned, start = branched(first, 3, 3, log=1)
    assert (turned, start) == ((Segment(0, 3), Segment(1, 3)), 3)
    assert appended(turned, 5) == (Segment(0, 3), Segment(1, 5))


@pytest.mark.parametrize("stored", [b"", b"\xc0", b"\x91\x01", b"\x92\x92\x00\x05\x92\x01\x03", b"\x91\x92\x00\xff"])
def test_bytes_that_are_no_segments_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError):
        load_segments(stored)


def test_the_newest_line_holds_a_seq() -> None:
    ancestry = started(started(started((), 0, 0), 1, 4), 3, 2)
    assert ancestry == (Stretch(0, 0), Stretch(3, 2))
    assert [line_of(ancestry, seq) for seq in range(4)] == [0, 0, 3, 3]
    assert line_of((), 0) is None
    assert load_ancestry(dump_ancestry(ancestry)) == ancestry
