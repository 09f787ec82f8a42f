"""From LangGraph's checkpoints and writes to what is stored of them, given what is stored already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import Checkpoint

from checkpoint.langgraph.body import Body, Stored, dump_body, rest_of, stored_list
from checkpoint.langgraph.known import Known
from checkpoint.langgraph.lists import Chunk, Coding, Listed, listed
from checkpoint.langgraph.reader import ONE, SEVERAL
from checkpoint.langgraph.refs import INLINE_BYTES, Blobs, dump_refs, ref_of


@dataclass(frozen=True)
class Packed:
    """A checkpoint that is ready to be written.

    Args:
        body: Its row's.
        chunks: Appends to lists.
        blobs: Large items that may not be there yet.
        known: What to remember once it is written.
    """

    body: bytes
    chunks: list[Chunk]
    blobs: Blobs
    known: Known


def pack_checkpoint(
    checkpoint: Checkpoint, new_versions: Mapping[str, Any], known: Known | None, coding: Coding
) -> Packed:
    """Return a checkpoint as it is to be stored after a known one, or with everything where none is known."""
    blobs: Blobs = {}
    chunks: list[Chunk] = []
    versions = dict(checkpoint["channel_versions"])
    values: dict[str, Stored] = {}
    lists: dict[str, Listed] = {}
    for channel, value in checkpoint["channel_values"].items():
        if channel not in versions:  # such a channel does not come back
            continue
        same = known is not None and channel not in new_versions and known.versions.get(channel) == versions[channel]
        if known is not None and same and channel in known.values:
            values[channel] = known.values[channel]
            if channel in known.lists:
                lists[channel] = known.lists[channel]
        elif type(value) is list and value:
            before = None if known is None else known.lists.get(channel)
            lists[channel] = listed(value, before, coding, blobs, chunks)
            values[channel] = stored_list(lists[channel])
        else:
            values[channel] = ref_of(coding.item_of(value), blobs)
    rest = rest_of(checkpoint)
    updated = checkpoint.get("updated_channels")
    body = Body(
        checkpoint["v"],
        checkpoint["ts"],
        versions,
        {node: dict(seen) for node, seen in checkpoint["versions_seen"].items()},
        None if updated is None else [str(channel) for channel in updated],
        values,
        ref_of(coding.item_of(rest), blobs) if rest else b"",
    )
    return Packed(dump_body(body), chunks, blobs, Known(str(checkpoint["id"]), versions, values, lists))


def pack_write(value: Any, coding: Coding, blobs: Blobs) -> bytes:
    """Return the value of a write; the large elements of a list are items of their own, as in the put that follows."""
    if type(value) is list and value:
        items = [coding.item_of(element) for element in value]
        if any(len(item) > INLINE_BYTES for item in items):
            return SEVERAL + dump_refs([ref_of(item, blobs) for item in items])
    return ONE + ref_of(coding.item_of(value), blobs)
