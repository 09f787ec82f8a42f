"""The bytes of format version 1 stay readable, and bytes that are not ours are refused."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import CheckpointError, CorruptedBytes, Opaque, UnreadableValue, dumps, envelope, kinds, loads
from checkpoint.codec import decode, encode
from checkpoint.nesting import MAX_DEPTH, check_depth, depth_of
from checkpoint.registry import registry

GOLDEN = {
    "010031edffc91ec285cdc0": None,
    "0100817b0edc23e081aec3": True,
    "0100ae4db5f7406e1bc507": 7,
    "0100d2c35cb13e53d549d38000000000000000": -(2**63),
    "0100d0c654e388fa966fcfffffffffffffffff": 2**64 - 1,
    "0100937793a5b05f7f39cb3ff8000000000000": 1.5,
    "0100fc187eeff959f8a3a2c3a9": "é",
    "010039e4aac334676549c401ff": b"\xff",
    "0100aae7b7c25524d3b192019102": [1, [2]],
    "010031fd97d3b71cc93d81a16101": {"a": 1},
    "01001385440ada25b0ddc706019201d5019102": (1, (2,)),
    "0100d175cec9f06c8aded6029201a162": {1, "b"},
    "0100b08d0ad4a679869ad5039102": frozenset({2}),
    "0100c90cd99babf89812c70304c40178": bytearray(b"x"),
    "010088d9de86a490dc50c70b05c409010000000000000000": 2**64,
    "0100a35e5a467e5822a4c70b05c409c00000000000000000": -(2**70),
    "01007ac08da8573f8a7ec7130692cb3ff0000000000000cbc000000000000000": complex(1, -2),
    "0100ebfe3f7d9dda6823c70507a4312e3130": Decimal("1.10"),
    "0100228d7f1b6da07727c71208c41000000000000000000000000000000007": UUID(int=7),
    "01008109a9283a18df85c70b09aa323032342d30322d3239": date(2024, 2, 29),
    "0100bef3fd24a4067b95c7130a93af30313a30323a30332e30303030303401c0": time(1, 2, 3, 4, fold=1),
    "01001904a65059c05680c7240b93b3323032342d31302d32375430323a33303a303001ad4575726f70652f4265726c696e": datetime(
        2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")
    ),
    "0100e3b789b94ffb82e6c7180b93b3323032342d30312d30315430303a30303a3030009100": datetime(
        2024, 1, 1, tzinfo=timezone.utc
    ),
    "0100257a04e7c8c39366c7240b93b3323032342d30312d30315430303a30303a30300092cf00000004d1d0ef00a34e5054": datetime(
        2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45), "NPT")
    ),
    "0100f38ddfa462f6e8c4d60c93ff0203": timedelta(days=-1, seconds=2, microseconds=3),
    "0100110169d134e5e255c7070d9401a161c0a162": {1: "a", None: "b"},
    "01000c4f818786a69f37c7130e93ac6f72646572732e4f726465720281a16101": Opaque("orders.Order", 2, b"\x81\xa1a\x01"),
}


@pytest.mark.parametrize("stored", GOLDEN)
def test_every_kind_of_format_1_is_written_and_read_as_it_always_was(stored: str) -> None:
    value = GOLDEN[stored]
    assert loads(bytes.fromhex(stored)) == value
    assert type(loads(bytes.fromhex(stored))) is type(value)
    assert dumps(value).hex() == stored


def test_compressed_values_of_format_1_are_still_read() -> None:
    text = "message " * 40
    assert loads(bytes.fromhex("0101a76b85f520142a5e789cbbc5e8909b5a5c9c989eaa304a93470300520e79e4")) == text
    assert loads(bytes.fromhex("010253d0534b0f28927928b52ffd60430095000058da01406d65737361676520010035538b17")) == text


def test_without_zstandard_zlib_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "message " * 40
    with_zstd = dumps(text)
    monkeypatch.setattr(envelope, "zstandard", None)
    stored = dumps(text)
    assert stored[1] == envelope.ZLIB
    assert len(stored) < 100
    assert loads(stored) == text
    with pytest.raises(UnreadableValue, match="install the package zstandard"):
        loads(with_zstd)


def test_what_does_not_shrink_or_is_short_is_stored_as_it_is() -> None:
    assert dumps("a" * 200)[1] == envelope.RAW
    assert dumps(bytes(range(256)) + bytes(range(255, -1, -1)))[1] == envelope.RAW
    assert dumps("a" * 300)[1] == envelope.ZSTD


# Bytes that are not ours


@given(st.data())
def test_a_changed_byte_is_always_noticed(data: st.DataObject) -> None:
    stored = bytearray(dumps({"cart": [1, "tea", (Decimal(1), {2})], "note": "x" * 300}))
    place = data.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptedBytes):
        loads(bytes(stored))


def test_every_truncation_and_every_addition_is_noticed() -> None:
    stored = dumps({"cart": [1, "tea", (Decimal(1), {2})]})
    for length in range(len(stored)):
        with pytest.raises(CorruptedBytes):
            loads(stored[:length])
    with pytest.raises(CorruptedBytes):
        loads(stored + b"\x00")


@given(st.binary(max_size=200))
def test_any_bytes_behind_a_right_checksum_give_a_value_or_an_error_of_ours(raw: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        loads(envelope.pack(raw))


@given(st.integers(0, 255).map(lambda code: code - 128), st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=6,
))  # fmt: skip
def test_a_forged_extension_gives_a_value_or_an_error_of_ours(code: int, payload: Any) -> None:
    raw = msgspec.msgpack.encode([msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload))])
    with contextlib.suppress(CheckpointError):
        decode(raw)


@pytest.mark.parametrize(
    ("code", "payload"),
    [
        (0, 1), (15, 1), (127, None), (-2, b""),
        (kinds.TUPLE, 1), (kinds.SET, [[1]]), (kinds.SET, {"a": 1}), (kinds.BIG_INT, "1"), (kinds.COMPLEX, [1.0]),
        (kinds.COMPLEX, [1, 2]), (kinds.DECIMAL, "one"), (kinds.DECIMAL, "1E+99999999999999999999999"), (kinds.UUID_, b"1"),
        (kinds.DATE, "2024-13-01"), (kinds.TIME, ["25:00", 0, None]), (kinds.TIME, ["01:00", 2, None]),
        (kinds.DATETIME, ["2024-01-01T00:00:00", 0, "../../etc/passwd"]), (kinds.DATETIME, ["2024-01-01T00:00:00", 0, "/x"]),
        (kinds.DATETIME, ["2024-01-01T00:00:00", 0, [10**12]]), (kinds.DATETIME, ["2024-01-01T00:00:00", 0, [1, 2]]),
        (kinds.TIMEDELTA, [10**12, 0, 0]), (kinds.DICT, [1]), (kinds.DICT, [[], 1]), (kinds.DICT, {}),
        (kinds.REGISTERED, [1, 2, 3]), (kinds.REGISTERED, ["tag"]), (kinds.REGISTERED, ["tag", "1", None]),
    ],
)  # fmt: skip
def test_a_forged_payload_is_an_error(code: int, payload: Any) -> None:
    raw = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload)))
    with pytest.raises(CorruptedBytes):
        decode(raw)


def test_a_zone_that_this_machine_lacks_is_no_damage() -> None:
    raw = msgspec.msgpack.encode(["2024-01-01T00:00:00", 0, "Mars/Olympus_Mons"])
    with pytest.raises(UnreadableValue, match="no time zone 'Mars/Olympus_Mons'; install tzdata"):
        decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(kinds.DATETIME, raw)))


def test_a_tag_never_names_code() -> None:
    raw = msgspec.msgpack.encode(["os.system", 1, "echo"])
    value = decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(kinds.REGISTERED, raw)))
    assert value == Opaque("os.system", 1, encode("echo"))


@pytest.mark.parametrize("error", [AttributeError("no id yet"), RuntimeError("no session")], ids=repr)
def test_whatever_a_registered_type_raises_as_a_key_or_a_member_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Unhashable:
        def __hash__(self) -> int:
            raise error

    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    registry.register("test.U", Unhashable, to_data=lambda _: None, from_data=lambda _: Unhashable())
    member = msgspec.msgpack.Ext(kinds.REGISTERED, msgspec.msgpack.encode(["test.U", 1, None]))
    for code, payload in ((kinds.SET, [member]), (kinds.DICT, [member, 1])):
        raw = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload)))
        with pytest.raises(UnreadableValue, match=str(error)):
            decode(raw)


def nested(opener: bytes, depth: int) -> bytes:
    return opener * depth + b"\xc0"


def nested_extensions(depth: int) -> bytes:
    raw = b"\x90"
    for _ in range(depth):
        raw = msgspec.msgpack.encode(msgspec.msgpack.Ext(kinds.TUPLE, b"\x91" + raw))
    return raw


def behind_a_timestamp(depth: int) -> bytes:
    """A list of msgpack's own timestamp and a bomb, whose payload, read as a value, begins bytes as long as the bomb."""
    size = depth.to_bytes(4, "big")
    assert size[3] == 0x91
    return b"\x92\xd6\xff\xc6" + size[:3] + b"\x91" * depth + b"\xc0\xc0"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (nested(b"\x91", 100_000), "nests deeper than 128"),
        (nested(b"\x81\xa0", 100_000), "nests deeper than 128"),
        (nested(b"\xdc\x00\x01", 50_000), "nests deeper than 128"),
        (nested_extensions(3_000), "nests deeper than 128"),
        (behind_a_timestamp(0x018691), "a timestamp of msgpack's own"),
    ],
    ids=["lists", "dicts", "wide lists", "extensions", "behind a timestamp"],
)
def test_a_depth_bomb_is_refused_on_a_small_stack_too(raw: bytes, message: str) -> None:
    caught: list[BaseException] = []

    def read() -> None:
        try:
            loads(envelope.pack(raw))
        except BaseException as error:  # noqa: BLE001  # judged in the test's own thread
            caught.append(error)

    before, limit = threading.stack_size(256 * 1024), sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(timeout=60)
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(before)
    assert [type(error) for error in caught] == [CorruptedBytes]
    assert message in str(caught[0])


# Each takes a few KB as it is stored, and as values, or as bytes already, more memory than its process has.
SWELLING = """
import resource, sys
from checkpoint import UnreadableValue, envelope, loads
unit, wanted, room = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
count = wanted * 1024 * 1024 // len(unit)
stored = envelope.pack(b"\\xdd" + count.to_bytes(4, "big") + unit * count)
assert len(stored) < 100_000, len(stored)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = now + room * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    loads(stored)
except UnreadableValue as error:
    assert "more memory than there is" in str(error), error
    print("refused")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads how much memory it has from Linux")
@pytest.mark.parametrize(
    ("unit", "wanted", "room"),
    [("90", 3, 30), ("80", 3, 30), ("a26162", 3, 30), ("d40290", 3, 30), ("a26162", 48, 20)],
    ids=["lists", "dicts", "texts", "sets", "decompressed"],
)
def test_what_swells_beyond_the_memory_is_an_error_of_ours(unit: str, wanted: int, room: int) -> None:
    command = [sys.executable, "-c", SWELLING, unit, str(wanted), str(room)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.stdout.strip(), ended.returncode) == ("refused", 0), ended.stderr[-2000:]


@pytest.mark.parametrize(
    "opener", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01"]
)
def test_a_promise_of_four_billion_members_is_refused(opener: bytes) -> None:
    with pytest.raises(CorruptedBytes):
        loads(envelope.pack(opener + b"\xc0" * 10))


def forged(compression: int, body: bytes) -> bytes:
    start = bytes((envelope.FORMAT, compression))
    return start + envelope._checksum(start, body) + body


@pytest.mark.parametrize(
    ("compression", "body", "message"),
    [
        (envelope.ZLIB, zlib.compress(bytes(2 * 1024 * 1024)), "decompresses to more than the limit"),
        (envelope.ZSTD, zstandard.compress(bytes(2 * 1024 * 1024)), "its frame promises 2097152 bytes"),
        (
            envelope.ZSTD,
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2 * 1024 * 1024)),
            "promises -1",
        ),
        (envelope.ZLIB, b"nonsense", "zlib"),
        (envelope.ZLIB, zlib.compress(b"\xc0") + b"\x00", "does not end where the body ends"),
        (envelope.ZLIB, zlib.compress(b"\xc0" * 100)[:-1], "does not end where the body ends"),
        (envelope.ZSTD, b"nonsense", "zstd"),
        (envelope.ZSTD, zstandard.compress(b"\xc0" * 100)[:-3], "zstd"),
        (3, b"\xc0", "compression byte must be 0, 1 or 2, got 3"),
        (0, bytes(1024 * 1024 + 11), "more than the limit"),
    ],
    ids=str,
)
def test_a_decompression_bomb_or_a_broken_body_is_refused(
    monkeypatch: pytest.MonkeyPatch, compression: int, body: bytes, message: str
) -> None:
    monkeypatch.setattr(envelope, "MAX_BYTES", 1024 * 1024)
    with pytest.raises(CorruptedBytes, match=message):
        loads(forged(compression, body))


def test_a_newer_format_says_so() -> None:
    with pytest.raises(CorruptedBytes, match="format byte must be 1, got 2; a newer release may have written it"):
        loads(b"\x02" + dumps(1)[1:])


# Depth


@given(
    st.recursive(
        st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary() | st.none() | st.decimals(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.sets(st.integers()),
        max_leaves=30,
    )
)
def test_depth_is_measured_for_everything_that_is_written(value: Any) -> None:
    raw = encode(value)
    check_depth(raw)
    assert 0 <= depth_of(raw) <= MAX_DEPTH


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize(
    "make",
    [lambda n: "x" * n, lambda n: b"x" * n, lambda n: [None] * n, lambda n: dict.fromkeys(map(str, range(n)))],
    ids=["text", "bytes", "list", "dict"],
)
def test_every_width_of_a_length_is_understood(make: Callable[[int], Any], size: int) -> None:
    assert depth_of(encode([make(size)])) == (2 if type(make(0)) in (list, dict) else 1)


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x01\x02", b"\x91", b"\xa5ab", b"\xd9", b"\xcf\x00", struct.pack(">BI", 0xDD, 9)]
)
def test_what_is_not_one_value_has_no_depth(raw: bytes) -> None:
    with pytest.raises(CorruptedBytes):
        depth_of(raw)
