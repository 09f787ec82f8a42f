"""A checkpoint of LangGraph's as one row: everything but its large values, each channel's name once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from checkpoint.chain import LINK_BYTES
from checkpoint.envelope import pack, unpack
from checkpoint.errors import CorruptedBytes
from checkpoint.langgraph.lists import Listed
from checkpoint.segments import Segments, dump_segments, load_segments

_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()

#: How a list stands in a body: its refs, or where it is in logs.
_SHORT, _LONG = 0, 1

_KNOWN = frozenset(("v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"))


@dataclass(frozen=True)
class Pointer:
    """A list that stands in logs.

    Args:
        segments: Where.
        chain: The link over its refs.
    """

    segments: Segments
    chain: bytes


#: A value in a body: a ref, the refs of a short list, or a pointer to a long one.
Stored = bytes | list[bytes] | Pointer


@dataclass(frozen=True)
class Body:
    """What a row holds of a checkpoint.

    Args:
        v: LangGraph's version of its format.
        ts: When it was made, as LangGraph says it.
        versions: Of the channels.
        seen: By each node, of the channels.
        updated: Channels that the step updated.
        values: Of the channels that have one.
        rest: The item of what else LangGraph put into the checkpoint; empty for nothing.
    """

    v: int
    ts: str
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    updated: list[str] | None
    values: dict[str, Stored] = field(default_factory=dict)
    rest: bytes = b""


def rest_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has beside what a body names; an empty list of pending sends is what all have."""
    rest = {name: value for name, value in checkpoint.items() if name not in _KNOWN}
    if not rest.get("pending_sends", True):
        del rest["pending_sends"]
    return rest


def stored_list(known: Listed) -> Stored:
    """Return how a list stands in a body."""
    return Pointer(known.segments, known.chain) if known.segments else known.refs


def dump_body(body: Body) -> bytes:
    """Return the stored form."""
    names = list(body.versions)
    places = {name: place for place, name in enumerate(names)}
    seen = {
        node: [part for name, v in of.items() for part in (places.get(name, name), v)] for node, of in body.seen.items()
    }
    updated = None if body.updated is None else [places.get(name, name) for name in body.updated]
    values = {places[name]: _dump(value) for name, value in body.values.items()}
    return pack(
        _encoder.encode((body.v, body.ts, names, list(body.versions.values()), seen, updated, values, body.rest))
    )


def load_body(stored: bytes) -> Body:
    """Return the body of a stored form.

    Raises:
        CorruptedBytes: The bytes are no body.
    """
    try:
        v, ts, names, versions, seen, updated, values, rest = _decoder.decode(unpack(stored))

        def name_of(place: Any) -> str:
            name = names[place] if isinstance(place, int) else place
            return str(name)

        return Body(
            v,
            ts,
            dict(zip(names, versions, strict=True)),
            {
                node: {name_of(place): version for place, version in zip(of[::2], of[1::2], strict=True)}
                for node, of in seen.items()
            },
            None if updated is None else [name_of(place) for place in updated],
            {name_of(place): _load(value) for place, value in values.items()},
            rest,
        )
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptedBytes(f"these are no checkpoint: {error}") from error


def _dump(value: Stored) -> Any:
    match value:
        case Pointer(segments, chain):
            return _LONG, dump_segments(segments), chain
        case bytes():
            return value
        case _:
            return _SHORT, value


def _load(value: Any) -> Stored:
    match value:
        case bytes():
            return value
        case [0, [*refs]] if all(isinstance(ref, bytes) for ref in refs):
            return refs
        case [1, bytes(segments), bytes(chain)] if len(chain) == LINK_BYTES:
            return Pointer(load_segments(segments), chain)
        case _:
            raise ValueError(f"a stored value must be a ref, refs or a pointer, got {value!r}")
