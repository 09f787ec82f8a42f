"""The extension codes: what each built-in kind of value holds, and how it is rebuilt.

A code and its payload are part of the format and never change their meaning. Every payload is one encoded value.

====  ===========  =======================================================================
code  kind         payload
====  ===========  =======================================================================
1     tuple        list of its members
2     set          list of its members, sorted by their bytes
3     frozenset    as set
4     bytearray    bytes
5     int          two's complement, big-endian bytes, for what 64 bits cannot hold
6     complex      [real, imaginary]
7     Decimal      its text
8     UUID         16 bytes
9     date         ISO text
10    time         [ISO text without zone, fold, zone]
11    datetime     [ISO text without zone, fold, zone]
12    timedelta    [days, seconds, microseconds]
13    dict         [key, value, key, value, …], when a key is not text
14    registered   [tag, version, data]
====  ===========  =======================================================================

A zone is None, the key of a ZoneInfo, or [offset in microseconds] with a name as second member if it has one.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from checkpoint import shipped
from checkpoint.errors import CorruptedBytes, UnreadableValue
from checkpoint.registry import registry
from checkpoint.values import Opaque
from checkpoint.words import said, shown

TUPLE, SET, FROZENSET, BYTEARRAY, BIG_INT, COMPLEX, DECIMAL = 1, 2, 3, 4, 5, 6, 7
UUID_, DATE, TIME, DATETIME, TIMEDELTA, DICT, REGISTERED = 8, 9, 10, 11, 12, 13, 14

_MICROSECOND = timedelta(microseconds=1)
_ZONE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*)*")

_registered_decoder = msgspec.msgpack.Decoder(tuple[str, int, msgspec.Raw])


def zone_data(zone: tzinfo | None) -> Any:
    """Return the data of a time zone.

    Raises:
        ValueError: The zone is of a kind that data cannot name.
    """
    if zone is None:
        return None
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # its pickling form: name only if given
        return [offset // _MICROSECOND, *name]
    if type(zone) is ZoneInfo and _ZONE_KEY.fullmatch(zone.key or ""):
        return zone.key
    raise ValueError(f"its zone is a {type(zone).__qualname__}; use datetime.timezone or a ZoneInfo with a key")


def _zone(data: Any) -> tzinfo | None:
    match data:
        case None:
            return None
        case [int(offset)]:
            return timezone(_MICROSECOND * offset)
        case [int(offset), str(name)]:
            return timezone(_MICROSECOND * offset, name)
        case str(key) if _ZONE_KEY.fullmatch(key):
            try:
                return ZoneInfo(key)
            except (ZoneInfoNotFoundError, OSError) as error:
                reason = f"this machine has no time zone {key!r}; install tzdata"
                raise UnreadableValue("zone", 0, reason) from error
    raise CorruptedBytes(f"not a time zone: {shown(data)}")


def _rebuild(code: int, payload: memoryview) -> Any:
    if code == REGISTERED:
        return _rebuild_registered(payload)
    data = decoder.decode(payload)
    match code, data:
        case 1, list(members):
            return tuple(members)
        case 2, list(members):
            return set(members)
        case 3, list(members):
            return frozenset(members)
        case 4, bytes(content):
            return bytearray(content)
        case 5, bytes(content):
            return int.from_bytes(content, "big", signed=True)
        case 6, [float(real), float(imaginary)]:
            return complex(real, imaginary)
        case 7, str(text):
            return Decimal(text)
        case 8, bytes(content):
            return UUID(bytes=content)
        case 9, str(text):
            return date.fromisoformat(text)
        case 10, [str(text), 0 | 1 as fold, zone]:
            return time.fromisoformat(text).replace(tzinfo=_zone(zone), fold=fold)
        case 11, [str(text), 0 | 1 as fold, zone]:
            return datetime.fromisoformat(text).replace(tzinfo=_zone(zone), fold=fold)
        case 12, [int(days), int(seconds), int(microseconds)]:
            return timedelta(days, seconds, microseconds)
        case 13, list(flat) if len(flat) % 2 == 0:
            return dict(zip(flat[::2], flat[1::2], strict=True))
    raise CorruptedBytes(f"no value has the extension code {code} and a payload of {type(data).__name__}")


def _rebuild_registered(payload: memoryview) -> Any:
    tag, version, raw = _registered_decoder.decode(payload)
    known = registry.for_tag(tag) or shipped.for_tag(tag)
    if known is None or not 1 <= version <= known.version:
        return Opaque(tag, version, bytes(raw))
    data = decoder.decode(raw)
    try:
        return known.from_data(known.current(data, version))
    except (Exception, SystemExit) as error:  # it may do anything
        raise UnreadableValue(tag, version, said(error)) from error


decoder = msgspec.msgpack.Decoder(ext_hook=_rebuild)
