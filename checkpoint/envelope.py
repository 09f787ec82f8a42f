"""The bytes around an encoded value: format byte, compression byte, checksum, body.

The checksum covers the body as it is stored, so damage is found before anything is decompressed or decoded.
"""

from __future__ import annotations

import threading
import zlib
from hashlib import blake2b
from typing import Any

from checkpoint.errors import CorruptedBytes, UnreadableValue, UnstorableValue

try:
    import zstandard
except ImportError:  # the zlib fallback needs nothing but is slower and a little larger
    zstandard = None  # type: ignore[assignment]

#: The first byte of everything stored. Golden bytes in the tests pin what it promises.
FORMAT = 1

#: The first byte of what a `Keyring` encrypted.
SEALED = 0x81

#: Bodies below this many bytes are stored as they are: compressing them gains little and costs time.
COMPRESS_ABOVE_BYTES = 256

#: No value is larger than this, encoded and before compression; also the bound for a decompression bomb.
MAX_BYTES = 64 * 1024 * 1024

RAW, ZLIB, ZSTD = 0, 1, 2

_CHECKSUM_BYTES = 8
_HEADER_BYTES = 2 + _CHECKSUM_BYTES
_ZSTD_LEVEL = 3
_ZLIB_LEVEL = 6

_local = threading.local()  # zstd contexts are not safe to share between threads


def pack(raw: bytes, path: str = "value") -> bytes:
    """Wrap encoded bytes for storage, compressed when that makes them smaller.

    Args:
        raw: An encoded value.
        path: What errors call the value.

    Returns:
        Header and body.

    Raises:
        UnstorableValue: `raw` is larger than `MAX_BYTES`.
    """
    refuse_large(raw, path)
    compression, body = RAW, raw
    if len(raw) > COMPRESS_ABOVE_BYTES:
        candidate_kind, candidate = _compress(raw)
        if len(candidate) < len(raw):
            compression, body = candidate_kind, candidate
    start = bytes((FORMAT, compression))
    return start + _checksum(start, body) + body


def refuse_large(raw: bytes, path: str = "value") -> None:
    """Refuse an encoded value that could not be read again.

    Raises:
        UnstorableValue: It is larger than `MAX_BYTES`.
    """
    if len(raw) > MAX_BYTES:
        raise UnstorableValue(path, f"it takes {len(raw)} bytes and the limit is {MAX_BYTES}; store a reference")


def unpack(stored: bytes) -> bytes:
    """Return what `pack` was given.

    Args:
        stored: Header and body.

    Returns:
        The encoded value.

    Raises:
        CorruptedBytes: The header is not ours, the checksum fails, or the body is larger than `MAX_BYTES`.
        UnreadableValue: The body needs zstd and no implementation is installed, or more memory than there is.
    """
    if len(stored) < _HEADER_BYTES:
        raise CorruptedBytes(f"{len(stored)} bytes are fewer than the {_HEADER_BYTES} bytes of a header")
    if len(stored) > MAX_BYTES + _HEADER_BYTES:
        raise CorruptedBytes(f"{len(stored)} bytes are more than the limit of {MAX_BYTES}")
    if stored[0] != FORMAT:
        who = (
            "it may be encrypted, and is read with a Keyring"
            if stored[0] == SEALED
            else "a newer release may have written it"
        )
        raise CorruptedBytes(f"format byte must be {FORMAT}, got {stored[0]}; {who}")
    body = stored[_HEADER_BYTES:]
    if _checksum(stored[:2], body) != stored[2:_HEADER_BYTES]:
        raise CorruptedBytes("the checksum does not match")
    try:
        return _decompress(stored[1], body)
    except MemoryError as error:
        raise UnreadableValue("body", 0, f"its {len(body)} bytes need more memory than there is") from error


def _decompress(compression: int, body: bytes) -> bytes:
    match compression:
        case 0:
            return body
        case 1:
            return _inflate(body)
        case 2:
            return _zstd_decompress(body)
        case other:
            raise CorruptedBytes(f"compression byte must be 0, 1 or 2, got {other}")


def _checksum(start: bytes, body: bytes) -> bytes:
    return blake2b(start + body, digest_size=_CHECKSUM_BYTES, person=b"checkpoint.bytes").digest()


def _compress(raw: bytes) -> tuple[int, bytes]:
    if zstandard is None:
        return ZLIB, zlib.compress(raw, _ZLIB_LEVEL)
    compressed: bytes = _zstd_contexts()[0].compress(raw)
    return ZSTD, compressed


def _zstd_contexts() -> tuple[Any, Any]:
    contexts: tuple[Any, Any] | None = getattr(_local, "contexts", None)
    if contexts is None:
        contexts = zstandard.ZstdCompressor(level=_ZSTD_LEVEL), zstandard.ZstdDecompressor()
        _local.contexts = contexts
    return contexts


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise CorruptedBytes(f"zlib: {error}") from error
    if len(raw) > MAX_BYTES:
        raise CorruptedBytes(f"it decompresses to more than the limit of {MAX_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise CorruptedBytes("zlib: the stream does not end where the body ends")
    return raw


def _zstd_decompress(body: bytes) -> bytes:
    if zstandard is None:
        raise UnreadableValue("zstd", 0, "its writer compressed with zstd; install the package zstandard here too")
    try:
        # The frame's own size is what the decompressor would allocate, so it is checked and not only passed as a limit.
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MAX_BYTES:
            raise CorruptedBytes(f"its frame promises {size} bytes and the limit is {MAX_BYTES}")
        raw: bytes = _zstd_contexts()[1].decompress(body, max_output_size=MAX_BYTES)
    except zstandard.ZstdError as error:
        raise CorruptedBytes(f"zstd: {error}") from error
    return raw
