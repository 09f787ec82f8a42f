"""Values to bytes and back: equal and of their own type, or a loud refusal.

msgpack carries None, bool, int, float, str, bytes, list and dicts with text keys as they are. Everything else is an
extension whose payload is one more encoded value; see `checkpoint.kinds` for what each of them holds. Equal values
give equal bytes: sets are sorted by their members' bytes, dicts keep their order.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from checkpoint import kinds
from checkpoint.encoder import Encoding
from checkpoint.envelope import MAX_BYTES, pack, unpack
from checkpoint.errors import CorruptedBytes, UnreadableValue
from checkpoint.nesting import check_depth
from checkpoint.words import said


def dumps(value: Any, path: str = "value") -> bytes:
    """Encode a value for storage.

    Args:
        value: Anything made of None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
            frozenset, Decimal, UUID, date, time, datetime, timedelta and registered types.
        path: What errors call the value.

    Returns:
        Bytes for `loads`, with a checksum; equal values give equal bytes on one installation.

    Raises:
        UnstorableValue: A part would not come back equal and of its own type, or is a Secret; its path is named.

    Example:
        >>> from checkpoint import dumps, loads
        >>> loads(dumps({"due": (1, 2.0)}))
        {'due': (1, 2.0)}
    """
    return pack(encode(value, path), path)


def loads(stored: bytes) -> Any:
    """Decode what `dumps` wrote.

    Args:
        stored: The bytes.

    Returns:
        A new value. A registered type that this process does not know comes back as `Opaque`.

    Raises:
        CorruptedBytes: The bytes are damaged, not ours, or larger or deeper than the limits.
        UnreadableValue: They are whole, but an upcast, a factory or a package fails here, or memory ends.
    """
    return decode(unpack(stored))


def digest(value: Any) -> str:
    """Return a digest that is the same for equal values, whatever the order of their dicts.

    Args:
        value: As for `dumps`.

    Returns:
        32 hexadecimal digits.

    Raises:
        UnstorableValue: As for `dumps`.

    Example:
        >>> from checkpoint.codec import digest
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    raw = Encoding(canonical=True).encode(value, "value")
    return blake2b(raw, digest_size=16, person=b"checkpoint.value").hexdigest()


def encode(value: Any, path: str = "value", *, depth: int = 0) -> bytes:
    """Encode a value without header, compression and checksum; the same bytes on every installation.

    Args:
        value: As for `dumps`.
        path: As for `dumps`.
        depth: How many containers the bytes will be put into, which count for the depth that can be read.

    Raises:
        UnstorableValue: As for `dumps`.
    """
    return Encoding().encode(value, path, depth)


def decode(raw: bytes) -> Any:
    """Decode what `encode` wrote.

    Raises:
        CorruptedBytes: The bytes are not one encoded value, or larger or deeper than the limits.
        UnreadableValue: They are whole, but an upcast, a factory or a package fails here, or memory ends.
    """
    if len(raw) > MAX_BYTES:
        raise CorruptedBytes(f"{len(raw)} bytes are more than the limit of {MAX_BYTES}")
    try:
        check_depth(raw)
        return kinds.decoder.decode(raw)
    except (CorruptedBytes, UnreadableValue):
        raise
    except RecursionError as error:  # the stack was nearly used up before; the bytes are not to blame
        raise UnreadableValue(
            "value", 0, "the stack has no room for its depth; read it from fewer nested calls"
        ) from error
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError) as error:
        raise CorruptedBytes(said(error)) from error
    except MemoryError as error:
        raise UnreadableValue("value", 0, f"its {len(raw)} bytes need more memory than there is") from error
    except Exception as error:  # a registered type's own __hash__ or __eq__, as a member of a set or a key
        raise UnreadableValue("value", 0, said(error)) from error
