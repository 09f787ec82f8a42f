"""The walk that turns a value into what msgpack can carry, and refuses what would not come back the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

from checkpoint import kinds, shipped
from checkpoint.errors import CorruptedBytes, UnstorableValue
from checkpoint.nesting import MAX_DEPTH, depth_of
from checkpoint.pydantics import is_model
from checkpoint.registry import Registration, registry
from checkpoint.values import Opaque, Secret, kept_out
from checkpoint.words import class_name, said, shown

if TYPE_CHECKING:
    from collections.abc import Callable

_encoder = msgspec.msgpack.Encoder()
_pack = _encoder.encode

_AS_IS = frozenset((type(None), bool, int, float, str, bytes))
_TEXT = frozenset((str,))
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


class _Refused(Exception):
    """The reason, and the way to the refused value, collected from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way: list[str] = []


class Encoding:
    """One encoding of one value.

    Args:
        canonical: Sort dicts by their keys' bytes too, for digests.
    """

    def __init__(self, *, canonical: bool = False) -> None:
        self._canonical = canonical
        self._kept_out = kept_out.get()
        # A lone surrogate or a huge int is too rare to look at each text and int for it: msgpack itself refuses them,
        # and only then a second, careful walk finds where they are.
        self._careful = False

    def encode(self, value: Any, path: str, depth: int = 0) -> bytes:
        """Return the bytes of `value`, which will stand inside `depth` containers.

        Raises:
            UnstorableValue: A part of it would not come back equal and of its own type; `path` leads to it.
        """
        try:
            return self._encode(value, depth)
        except _Refused as refused:
            way = "".join(reversed(refused.way))
            if len(way) > 300:  # a value that holds itself has a very long way
                way = way[:300] + "…"
            raise UnstorableValue(path + way, refused.reason) from refused.__cause__
        except RecursionError as error:
            raise UnstorableValue(
                path, "the stack has no room for its depth; save it from fewer nested calls"
            ) from error

    def _encode(self, value: Any, depth: int) -> bytes:
        try:
            return _pack(self._plain(value, depth))
        except (UnicodeEncodeError, OverflowError):
            self._careful = True
            return _pack(self._plain(value, depth))

    def _plain(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _AS_IS:
            return _careful_scalar(value) if self._careful else value
        if self._kept_out and id(value) in self._kept_out:
            raise _Refused(self._kept_out[id(value)])
        if kind is list:
            return self._members(value, depth + 1)
        if kind is dict:
            return self._dict(value, depth + 1)
        convert = _CONVERTERS.get(kind)
        if convert is not None:
            return convert(self, value, depth + 2)
        known = registry.for_class(kind) or shipped.for_class(kind)
        if known is not None:
            return self._registered(known, value, depth + 2)
        raise _Refused(_reason(value))

    def _members(self, value: list[Any] | tuple[Any, ...], depth: int) -> Any:
        """Return the members, themselves where msgpack takes all of them as they are."""
        _refuse_depth(depth)
        if not self._careful and _AS_IS.issuperset(map(type, value)):
            return value
        plain: list[Any] = []
        try:
            for member in value:
                plain.append(self._plain(member, depth))  # noqa: PERF401  # its length is where a refusal happens
        except _Refused as refused:
            refused.way.append(f"[{len(plain)}]")
            raise
        return plain

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        """Return the dict, itself where msgpack takes all of it as it is: most of what agents store."""
        _refuse_depth(depth)
        if not _TEXT.issuperset(map(type, value)):
            return self._keyed_dict(value, depth + 1)
        plain = {key: value[key] for key in sorted(value)} if self._canonical else value
        if not self._careful and _AS_IS.issuperset(map(type, value.values())):
            return plain
        key = ""
        try:
            for key, member in value.items():
                if self._careful:
                    _careful_scalar(key)
                elif type(member) in _AS_IS:
                    continue
                converted = self._plain(member, depth)
                if converted is not member:
                    if plain is value:
                        plain = dict(value)
                    plain[key] = converted
        except _Refused as refused:
            refused.way.append(f"[{shown(key)}]")
            raise
        return plain

    def _keyed_dict(self, value: dict[Any, Any], depth: int) -> Ext:
        _refuse_depth(depth)
        pairs: list[tuple[bytes, Any, Any]] = []
        for key, member in value.items():
            try:
                plain_key = self._plain(key, depth)
                pairs.append((_pack(plain_key) if self._canonical else b"", plain_key, self._plain(member, depth)))
            except _Refused as refused:
                refused.way.append(f"[{shown(key)}]")
                raise
        if self._canonical:
            pairs.sort(key=lambda pair: pair[0])
        return Ext(kinds.DICT, _pack([part for _, key, member in pairs for part in (key, member)]))

    def _tuple(self, value: tuple[Any, ...], depth: int) -> Ext:
        return Ext(kinds.TUPLE, _pack(self._members(value, depth)))

    def _sorted(self, value: set[Any] | frozenset[Any], depth: int) -> Ext:
        _refuse_depth(depth)
        members: list[msgspec.Raw] = []
        for member in value:
            try:
                members.append(msgspec.Raw(_pack(self._plain(member, depth))))
            except _Refused as refused:
                refused.way.append(f"{{{shown(member)}}}")
                raise
        members.sort(key=bytes)
        return Ext(kinds.SET if type(value) is set else kinds.FROZENSET, _pack(members))

    def _registered(self, known: Registration, value: Any, depth: int) -> Ext:
        _refuse_depth(depth)
        try:
            data = known.to_data(value)
            if known.checked and not _same(known.from_data(data), value):
                raise ValueError("from_data(to_data(value)) is not an equal value of its own type")
        except (Exception, SystemExit) as error:  # it may do anything, and is the value's fault all the same
            raise _Refused(f"registered as {known.tag!r}: {said(error)}") from error
        try:
            plain = self._plain(data, depth)
        except _Refused as refused:
            if refused.way and type(data) is dict and not known.checked:  # a field reads as an attribute
                refused.way[-1] = "." + refused.way[-1][2:-2]
            raise
        return Ext(kinds.REGISTERED, _pack([known.tag, known.version, plain]))

    def _opaque(self, value: Opaque, depth: int) -> Ext:
        if (type(value.tag), type(value.version), type(value.data)) != (str, int, bytes):
            raise _Refused("an Opaque holds a str, an int and bytes; pass on the one that was loaded")
        try:
            deepest = depth_of(value.data)
        except CorruptedBytes as error:
            raise _Refused(f"its data was changed: {error.reason}") from error
        _refuse_depth(depth + deepest)
        return Ext(kinds.REGISTERED, _pack([value.tag, value.version, msgspec.Raw(value.data)]))

    def _zoned(self, value: time | datetime, _depth: int) -> Ext:
        try:
            zone = kinds.zone_data(value.tzinfo)
        except ValueError as error:
            raise _Refused(str(error)) from error
        code = kinds.DATETIME if type(value) is datetime else kinds.TIME
        return Ext(code, _pack([value.replace(tzinfo=None).isoformat(), value.fold, zone]))


def _bare(code: int, data: Callable[[Any], Any]) -> Callable[[Encoding, Any, int], Ext]:
    return lambda _encoding, value, _depth: Ext(code, _pack(data(value)))


_CONVERTERS: dict[type, Callable[[Encoding, Any, int], Ext]] = {
    tuple: Encoding._tuple,
    set: Encoding._sorted,
    frozenset: Encoding._sorted,
    bytearray: _bare(kinds.BYTEARRAY, bytes),
    complex: _bare(kinds.COMPLEX, lambda value: [value.real, value.imag]),
    Decimal: _bare(kinds.DECIMAL, str),
    UUID: _bare(kinds.UUID_, lambda value: value.bytes),
    date: _bare(kinds.DATE, date.isoformat),
    time: Encoding._zoned,
    datetime: Encoding._zoned,
    timedelta: _bare(kinds.TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    Opaque: Encoding._opaque,
}


def _refuse_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"it nests deeper than {MAX_DEPTH}, or holds itself; flatten it")


def _careful_scalar(value: Any) -> Any:
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            reason = f"the text has a lone surrogate at {error.start}; encode it with errors='replace'"
            raise _Refused(reason) from error
    elif type(value) is int and not _INT_MIN <= value <= _INT_MAX:
        size = (value + (value < 0)).bit_length() // 8 + 1
        return Ext(kinds.BIG_INT, _pack(value.to_bytes(size, "big", signed=True)))
    return value


def _same(rebuilt: Any, value: Any) -> bool:
    return type(rebuilt) is type(value) and bool(rebuilt == value)


def _reason(value: Any) -> str:
    if issubclass(type(value), Secret):
        return "it is a Secret; keep it out of the state and fetch it where it is used"
    name = class_name(value)
    for base in (bool, int, float, str, bytes, list, dict, tuple, set, frozenset):
        if issubclass(type(value), base):  # what the value says of its class may be anything
            back = _with_article(base.__name__)
            return f"{_with_article(name)} would come back as {back}; convert it, or checkpoint.register() {name}"
    if is_model(type(value)):
        remedy = "use its model_dump()"
    else:
        remedy = "use dict(…) of it" if _is_mapping(type(value)) else "convert it"
    return f"{_with_article(name)} has no stored form; {remedy}, or checkpoint.register() {name}"


def _with_article(name: str) -> str:
    # A class that begins with U is a User or a UUID more often than an Umbrella.
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"


def _is_mapping(kind: type) -> bool:
    try:
        return issubclass(kind, Mapping)
    except Exception:  # noqa: BLE001 - a metaclass may do anything when it is asked
        return False
