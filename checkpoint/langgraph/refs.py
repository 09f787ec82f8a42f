"""Values as they are stored: small ones in place, large ones once in their space under a digest of their bytes.

A ref is ``00`` and the item itself, or ``01`` and the digest of the item. An item is what LangGraph's serializer made: one
byte for its type, or ``ff`` and the type's name, and then the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from checkpoint.envelope import pack, unpack
from checkpoint.errors import CorruptedBytes
from checkpoint.langgraph.errors import ThreadCorrupted

#: Items up to this many bytes stand where they are used: a digest and a row of their own would cost more.
INLINE_BYTES = 64

_INLINE, _DIGEST = b"\0", b"\1"
_TYPES = ("null", "bytes", "bytearray", "msgpack")
_OTHER = 255

_encode = msgspec.msgpack.Encoder().encode
_refs = msgspec.msgpack.Decoder(list[bytes])

#: The large items of something that is to be stored, by their digests.
Blobs = dict[bytes, bytes]


def item_of(kind: str, payload: bytes) -> bytes:
    """Return the item of a serialized value."""
    if kind in _TYPES:
        return bytes((_TYPES.index(kind),)) + payload
    name = kind.encode()
    return bytes((_OTHER, len(name))) + name + payload


def typed(item: bytes) -> tuple[str, bytes]:
    """Return the type and the bytes of an item, for the serializer."""
    if not item:
        raise CorruptedBytes("an item must have a byte for its type")
    if item[0] == _OTHER:
        start = 2 + item[1]
        return item[2:start].decode(), item[start:]
    if item[0] >= len(_TYPES):
        raise CorruptedBytes(
            f"an item's type must be 0 to {len(_TYPES) - 1}, got {item[0]}; a newer release may have written it"
        )
    return _TYPES[item[0]], item[1:]


def ref_of(item: bytes, blobs: Blobs) -> bytes:
    """Return the ref of an item; a large one is put into `blobs`."""
    if len(item) <= INLINE_BYTES:
        return _INLINE + item
    digest = digest_of(item)
    blobs[digest] = item
    return _DIGEST + digest


def digest_of(item: bytes) -> bytes:
    """Return what a large item is stored under."""
    return blake2b(item, digest_size=16, person=b"langgraph.item").digest()


def digests(refs: Iterable[bytes]) -> set[bytes]:
    """Return the digests among refs."""
    return {ref[1:] for ref in refs if ref[:1] == _DIGEST}


def resolved(ref: bytes, items: Mapping[bytes, bytes], where: str) -> bytes:
    """Return the item of a ref.

    Args:
        ref: The ref.
        items: The large ones that were read.
        where: What errors call the place of the ref.

    Raises:
        ThreadCorrupted: It is not there, or no ref.
    """
    if ref[:1] == _INLINE:
        return ref[1:]
    if ref[:1] != _DIGEST or ref[1:] not in items:
        raise ThreadCorrupted(where, f"its item {ref[1:].hex()} is missing")
    return items[ref[1:]]


def dump_blob(item: bytes) -> bytes:
    """Return the stored form of a large item: compressed if that makes it smaller."""
    return pack(item)


def load_blob(digest: bytes, stored: bytes) -> bytes:
    """Return the item that is stored under a digest.

    Raises:
        ThreadCorrupted: These are not its bytes.
    """
    try:
        item = unpack(stored)
    except CorruptedBytes as error:
        raise ThreadCorrupted(f"item {digest.hex()}", error.reason) from error
    if digest_of(item) != digest:
        raise ThreadCorrupted(f"item {digest.hex()}", "its bytes have another digest")
    return item


def dump_refs(refs: list[bytes]) -> bytes:
    """Return the stored form of several refs."""
    return _encode(refs)


def load_refs(stored: bytes) -> list[bytes]:
    """Return the refs of a stored form.

    Raises:
        CorruptedBytes: These are no refs.
    """
    try:
        return _refs.decode(stored)
    except msgspec.MsgspecError as error:
        raise CorruptedBytes(f"these are no refs: {error}") from error


def encode(value: Any) -> bytes:
    """Encode plain data."""
    return _encode(value)
