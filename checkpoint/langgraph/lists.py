"""Lists that grow: their elements stand in append logs, so that a checkpoint costs what it adds and not what there is.

A short list is its refs. A longer one is a pointer: which stretches of which logs, and the hash chain over its refs. What
LangGraph gives is the whole list each time; what was known of the list before says from where on it is new.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from operator import is_
from typing import Any

from checkpoint import chain
from checkpoint.langgraph.refs import Blobs, dump_refs, ref_of
from checkpoint.segments import Segments, appended, branched, length_of

#: A list whose refs take up to this many bytes is stored in its checkpoint.
SHORT_BYTES = 160

#: Elements at the end that are always compared by their bytes; a step changes what is recent, if anything.
RECENT = 8

#: So many puts after the last full comparison all elements are compared by their bytes.
FULL_EVERY = 64

#: An append: log, position of its first element, refs.
Chunk = tuple[int, int, bytes]


@dataclass(frozen=True)
class Coding:
    """How elements become bytes.

    Args:
        item_of: Serializes an element.
        mark_of: Makes bytes to compare it by, where the serializer makes others each time; None where it does not.
    """

    item_of: Callable[[Any], bytes]
    mark_of: Callable[[Any], bytes] | None = None


@dataclass(frozen=True)
class Listed:
    """A list as it is stored.

    Args:
        refs: Of its elements.
        elements: The objects that they were made from.
        segments: Where a long one stands; empty for a short one.
        chain: The link over its refs, for a long one.
        puts: How often it was put since all of it was compared.
        marks: What elements are compared by instead of their refs; None for one that was read.
    """

    refs: list[bytes]
    elements: list[Any] = field(repr=False)
    segments: Segments = ()
    chain: bytes = chain.ROOT
    puts: int = 0
    marks: list[bytes | None] | None = None


def listed(value: list[Any], known: Listed | None, coding: Coding, blobs: Blobs, chunks: list[Chunk]) -> Listed:
    """Return a list as it is to be stored after `known`, and collect what has to be written for that.

    An element that is the very object of last time is taken for unchanged, but for recent ones, and for all of them now and
    then: an old message that somebody changes in place, which LangGraph's reducers never do, is noticed late.

    Args:
        value: The list.
        known: The same channel's, in the checkpoint that the put follows.
        coding: How its elements become bytes.
        blobs: Gets new large elements.
        chunks: Gets the append.
    """
    refs, marks, unchanged = _refs(value, known, coding, blobs)
    puts = 0 if known is None or _compares_all(known) else known.puts + 1
    elements = list(value)
    if len(refs) <= SHORT_BYTES and sum(map(len, refs)) <= SHORT_BYTES:
        return Listed(refs, elements, puts=puts, marks=marks)
    segments: Segments = () if known is None else known.segments
    before = length_of(segments)
    if known is not None and segments and unchanged >= before:
        segments, start, last = appended(segments, len(refs)), before, known.chain
        for ref in refs[before:]:
            last = chain.link(last, ref)
    else:
        segments, start = branched(segments, min(unchanged, before), len(refs), log=secrets.randbits(48))
        last = chain_of(refs)
    if start < len(refs):
        chunks.append((segments[-1].log, start, dump_refs(refs[start:])))
    return Listed(refs, elements, segments, last, puts, marks)


def chain_of(refs: list[bytes]) -> bytes:
    """Return the link over all refs."""
    last = chain.ROOT
    for ref in refs:
        last = chain.link(last, ref)
    return last


def _compares_all(known: Listed) -> bool:
    return known.puts >= FULL_EVERY


def _identical(value: list[Any], elements: list[Any], trusted: int) -> int:
    """Return `trusted` if so many elements at the beginning are the very objects of last time, and else 0."""
    if not 0 < trusted <= len(value):
        return 0
    return trusted if all(map(is_, islice(value, trusted), elements)) else 0


def _refs(
    value: list[Any], known: Listed | None, coding: Coding, blobs: Blobs
) -> tuple[list[bytes], list[bytes | None] | None, int]:
    """Return the refs, the marks, and how many at the beginning are as they were."""
    old, elements = ([], []) if known is None else (known.refs, known.elements)
    old_marks: list[bytes | None] | None = None
    if coding.mark_of is not None:
        old_marks = [None] * len(old) if known is None or known.marks is None else known.marks
    trusted = 0 if known is None or _compares_all(known) else len(old) - RECENT
    start = _identical(value, elements, trusted)
    refs = old[:start]
    marks = None if old_marks is None else old_marks[:start]
    unchanged = start
    for index, element in enumerate(value[start:], start):
        there = index < len(old)
        same = there and elements[index] is element
        mark = None
        if same and (index < trusted or (old_marks is not None and old_marks[index] is None)):
            ref = old[index]
            mark = None if old_marks is None else old_marks[index]
        else:
            mark = coding.mark_of(element) if coding.mark_of else None
            if there and mark is not None and old_marks is not None and old_marks[index] == mark:
                ref = old[index]
            else:
                fresh: Blobs = {}
                ref = ref_of(coding.item_of(element), fresh)
                if not (there and old[index] == ref):  # else it is stored: the checkpoint before has it
                    blobs.update(fresh)
        refs.append(ref)
        if marks is not None:
            marks.append(mark)
        if unchanged == index and there and old[index] == ref:
            unchanged += 1
    return refs, marks, unchanged
