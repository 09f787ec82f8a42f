"""Values as JSON for people: the same bytes back, and nothing else taken for a value."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import CorruptedBytes, Opaque
from checkpoint.codec import encode
from checkpoint.readable import dump_json, from_readable, load_json, to_readable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [1, "é", None, True, -0.0]}, {"a": [1, "é", None, True, -0.0]}),
        (math.inf, {"$float": "7ff0000000000000"}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        (bytearray(b"x"), {"$bytearray": "eA=="}),
        ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
        ({"b", "a"}, {"$set": ["a", "b"]}),
        (frozenset({1}), {"$frozenset": [1]}),
        (2**64, {"$int": "0x10000000000000000"}),
        (-(2**70), {"$int": "-0x400000000000000000"}),
        (complex(1, -2), {"$complex": [1.0, -2.0]}),
        (Decimal("1.10"), {"$decimal": "1.10"}),
        (UUID(int=7), {"$uuid": "00000000-0000-0000-0000-000000000007"}),
        (timedelta(1, 2, 3), {"$timedelta": [1, 2, 3]}),
        (datetime(2024, 1, 1, tzinfo=timezone.utc), {"$datetime": ["2024-01-01T00:00:00", 0, [0]]}),
        ({1: "a", (2,): b""}, {"$dict": [[1, "a"], [{"$tuple": [2]}, {"$bytes": ""}]]}),
        ({"$x": 1, "y": (2,)}, {"$literal": {"$x": 1, "y": {"$tuple": [2]}}}),
        ({"$raw": "eA=="}, {"$literal": {"$raw": "eA=="}}),
        (
            Opaque("orders.Order", 2, encode({"cart": ("tea",)})),
            {"$type": "orders.Order", "version": 2, "data": {"cart": {"$tuple": ["tea"]}}},
        ),
    ],
    ids=map(str, itertools.count()),
)
def test_each_kind_of_value_has_its_words(value: Any, shown: Any) -> None:
    raw = encode(value)
    assert to_readable(raw) == shown
    assert from_readable(load_json(dump_json(shown, indent=2))) == raw


def test_what_a_newer_release_wrote_stays_the_same_bytes() -> None:
    raw = b"\xd4\x63\x01"  # an extension that does not exist yet
    shown = to_readable(raw)
    assert shown == {"$raw": "1GMB"}
    assert from_readable(shown) == raw
    not_ours = b"\xd9\x01a"  # text that is longer than it need be
    assert from_readable(to_readable(not_ours)) == not_ours


@given(st.binary(max_size=40))
def test_any_bytes_come_back_or_are_refused(raw: bytes) -> None:
    with contextlib.suppress(CorruptedBytes):
        assert from_readable(to_readable(raw)) == raw


@pytest.mark.parametrize(
    "shown",
    [
        {"$what": 1}, {"$tuple": [1], "x": 2}, {"$bytes": "?"}, {"$bytes": 1}, {"$bytes": "eA"}, {"$uuid": "7"}, {"$uuid": 7},
        {"$int": "ten"}, {"$float": "00"}, {"$dict": [[1]]}, {"$dict": {}}, {"$literal": [1]}, {"$type": "t", "version": "1", "data": 0},
        {"$type": "t", "version": 1}, {"$raw": "?"}, {"$raw": "gQ=="}, {"a": {"$raw": "eA=="}}, 2**64, "\ud800", {"\ud800": 1},
    ],
    ids=map(str, itertools.count()),
)  # fmt: skip
def test_what_shows_no_value_is_refused(shown: Any) -> None:
    with pytest.raises(CorruptedBytes):
        from_readable(shown)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"{}x", b"NaN", b"[Infinity]", b'{"a":1,"a":1}', b"[" * 100_000, b"1" * 5_000],
    ids=map(str, itertools.count()),
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptedBytes):
        load_json(text)


def test_what_nests_too_deep_is_refused() -> None:
    deep: Any = 0
    for _ in range(500):
        deep = [deep]
    with pytest.raises(CorruptedBytes):
        from_readable(deep)


@given(st.recursive(st.none() | st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists, max_leaves=5))
def test_json_is_one_line_of_utf_8(value: Any) -> None:
    written = dump_json(value)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    assert json.loads(written) == value == load_json(written)
