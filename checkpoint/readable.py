"""Encoded values as JSON that a person can read and edit, and exactly the same bytes back.

What JSON has no word for is an object whose key begins with ``$``: ``{"$decimal": "1.10"}``, ``{"$tuple": [1, 2]}``,
``{"$type": "orders.Order", "version": 2, "data": {…}}``. No type is looked up on the way, so a process that does not
know the types of a state can still copy, compare and check it.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

from checkpoint import kinds
from checkpoint.errors import CorruptedBytes
from checkpoint.nesting import check_depth, depth_of

_NAMES = {
    kinds.TUPLE: "$tuple",
    kinds.SET: "$set",
    kinds.FROZENSET: "$frozenset",
    kinds.COMPLEX: "$complex",
    kinds.DECIMAL: "$decimal",
    kinds.DATE: "$date",
    kinds.TIME: "$time",
    kinds.DATETIME: "$datetime",
    kinds.TIMEDELTA: "$timedelta",
}
_CODES = {name: code for code, name in _NAMES.items()}

_decoder = msgspec.msgpack.Decoder()  # extensions stay what they are
_pack = msgspec.msgpack.Encoder().encode


def to_readable(raw: bytes) -> Any:
    """Return an encoded value in the types of JSON.

    Args:
        raw: An encoded value.

    Example:
        >>> from checkpoint.codec import encode
        >>> to_readable(encode({"due": (1, 2.5), "by": {"kim"}}))
        {'due': {'$tuple': [1, 2.5]}, 'by': {'$set': ['kim']}}
    """
    try:
        shown = _shown(_decoder.decode(raw))
        if from_readable(shown) == raw:
            return shown
    except (msgspec.MsgspecError, CorruptedBytes, ValueError, TypeError):
        pass
    return {"$raw": _base64(raw)}  # such as what a newer release wrote: unreadable, but the same bytes


def from_readable(shown: Any) -> bytes:
    """Return the encoded value that `to_readable` showed.

    Args:
        shown: What JSON holds.

    Raises:
        CorruptedBytes: It shows no value.
    """
    try:
        if type(shown) is dict and shown.keys() == {"$raw"}:
            raw = b64decode(shown["$raw"], validate=True)
            depth_of(raw)  # it is one value, and not half of one
        else:
            raw = _pack(_plain(shown))
    except RecursionError as error:
        raise CorruptedBytes("it nests too deep") from error
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise CorruptedBytes(f"{type(error).__name__}: {error}") from error
    check_depth(raw)
    return raw


def dump_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, with a line end; of one line if it is not indented."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    return text.encode() + b"\n"


def load_json(stored: bytes) -> Any:
    """Return what JSON holds.

    Raises:
        CorruptedBytes: It is none, or says two things of one key.
    """
    try:
        return json.loads(stored.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise CorruptedBytes("it nests too deep") from error
    except ValueError as error:
        raise CorruptedBytes(f"it is no JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _shown(plain: Any) -> Any:
    kind = type(plain)
    if kind is list:
        return [_shown(member) for member in plain]
    if kind is dict:
        members = {key: _shown(member) for key, member in plain.items()}
        return {"$literal": members} if any(key.startswith("$") for key in members) else members
    if kind is float and not math.isfinite(plain):
        return {"$float": struct.pack(">d", plain).hex()}
    if kind is bytes:
        return {"$bytes": _base64(plain)}
    return _shown_extension(plain.code, bytes(plain.data)) if kind is Ext else plain


def _shown_extension(code: int, data: bytes) -> Any:
    if code in _NAMES:
        return {_NAMES[code]: _shown(_decoder.decode(data))}
    inner = _decoder.decode(data)
    if code == kinds.REGISTERED:
        tag, version, content = inner
        return {"$type": tag, "version": version, "data": _shown(content)}
    if code == kinds.DICT:
        return {"$dict": [[_shown(key), _shown(inner[at + 1])] for at, key in enumerate(inner) if at % 2 == 0]}
    if code == kinds.UUID_:
        return {"$uuid": str(UUID(bytes=inner))}
    if code == kinds.BIG_INT:  # in base 16, which has no limit of digits
        return {"$int": hex(int.from_bytes(inner, "big", signed=True))}
    if code == kinds.BYTEARRAY:
        return {"$bytearray": _base64(inner)}
    raise ValueError(f"no value has the extension code {code}")


def _plain(shown: Any) -> Any:
    if type(shown) is list:
        return [_plain(member) for member in shown]
    if type(shown) is not dict:
        return shown
    if not any(key.startswith("$") for key in shown):
        return {key: _plain(member) for key, member in shown.items()}
    match shown:
        case {"$type": str(tag), "version": int(version), "data": data} if len(shown) == 3:
            return Ext(kinds.REGISTERED, _pack([tag, version, _plain(data)]))
        case _ if len(shown) == 1:
            ((name, content),) = shown.items()
            return _plain_tagged(name, content)
    raise ValueError(f"an object with the keys {', '.join(shown)} shows no value")


def _plain_tagged(name: str, content: Any) -> Any:
    if name in _CODES:
        return Ext(_CODES[name], _pack(_plain(content)))
    match name, content:
        case "$literal", dict(members):
            return {key: _plain(member) for key, member in members.items()}
        case "$float", str(digits):
            return struct.unpack(">d", bytes.fromhex(digits))[0]
        case "$bytes", str(text):
            return b64decode(text, validate=True)
        case "$bytearray", str(text):
            return Ext(kinds.BYTEARRAY, _pack(b64decode(text, validate=True)))
        case "$uuid", str(text):
            return Ext(kinds.UUID_, _pack(UUID(text).bytes))
        case "$int", str(digits):
            number = int(digits, 16)
            size = (number + (number < 0)).bit_length() // 8 + 1
            return Ext(kinds.BIG_INT, _pack(number.to_bytes(size, "big", signed=True)))
        case "$dict", list(pairs):
            return Ext(kinds.DICT, _pack([part for key, member in pairs for part in (_plain(key), _plain(member))]))
    raise ValueError(f"{name} shows no value")


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
