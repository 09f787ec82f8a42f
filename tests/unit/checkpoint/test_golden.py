"""What each format version wrote is read for ever, and what this one writes is what it wrote in its first release.

One file a format version, in `golden/`: name → bytes. Lines are added to the newest, and none is ever changed. The value that
each must give stands here.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

import checkpoint
from checkpoint import Opaque, codec, dumps, envelope, loads
from checkpoint.registry import registry
from tests.libraries import library

FOLDER = Path(__file__).parent / "golden"
FILES = {version: FOLDER / f"format-{version}.json" for version in range(1, envelope.FORMAT + 1)}
GOLDEN = [
    pytest.param(version, name, stored, id=f"{version}-{name}")
    for version, file in FILES.items()
    for name, stored in json.loads(file.read_text(encoding="utf-8")).items()
]

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    item: str
    count: int
    unit: str


class Point(NamedTuple):
    x: int
    y: int


class Shape(msgspec.Struct):
    name: str
    sides: int = 4


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


def attrs_class() -> Any:
    attrs = library("attrs")
    cls = attrs.make_class("Cup", {"size": attrs.field(), "_note": attrs.field(default="", alias="note")})
    checkpoint.register("golden.Cup", cls)
    return cls


def model() -> Any:
    pydantic = library("pydantic")

    class Order(pydantic.BaseModel, extra="allow"):
        item: str
        tags: list[str] = []  # noqa: RUF012  # pydantic copies it
        _seen: int = pydantic.PrivateAttr(default=0)

    checkpoint.register("golden.Order", Order)
    return Order


def seen(order: Any) -> Any:
    order._seen = 2
    return order


AGENT_STATE = {
    "messages": [
        {"role": "user", "content": "tea?", "id": "m1"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "name": "search", "args": {"q": "tea", "n": 3}}],
        },
    ],
    "cart": {"tea": (2, Decimal("2.50")), 7: {"a", "b"}},
    "due": datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    "flags": [True, None, 1.5, -1, 2**63],
}
VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "int": lambda: 7,
    "smallest plain int": lambda: -(2**63),
    "largest plain int": lambda: 2**64 - 1,
    "big int": lambda: 2**64,
    "big negative int": lambda: -(2**70),
    "float": lambda: 1.5,
    "negative zero": lambda: -0.0,
    "complex": lambda: complex(1, -2),
    "text": lambda: "é\0\U0001f600",
    "bytes": lambda: b"\xff",
    "bytearray": lambda: bytearray(b"x"),
    "list": lambda: [1, [2]],
    "tuple": lambda: (1, (2,)),
    "dict": lambda: {"b": 1, "a": {}},
    "dict with any keys": lambda: {1: "a", None: "b", (1, "x"): []},
    "set": lambda: {1, "b", (2,)},
    "frozenset": lambda: frozenset({2, b"x"}),
    "decimal": lambda: Decimal("-1.10"),
    "uuid": lambda: UUID(int=7),
    "date": lambda: date(2024, 2, 29),
    "time": lambda: time(1, 2, 3, 4, fold=1),
    "time in utc": lambda: time(1, tzinfo=timezone.utc),
    "naive datetime": lambda: datetime(2024, 1, 1, 12),  # noqa: DTZ001
    "datetime in a zone": lambda: datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    "datetime at an offset": lambda: datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45), "NPT")),
    "timedelta": lambda: timedelta(days=-1, seconds=2, microseconds=3),
    "state of an agent": lambda: AGENT_STATE,
    "raw of 256 bytes": lambda: "x" * 253,
    "zlib": lambda: "message " * 40,
    "zstd": lambda: "message " * 40,
    "enum": lambda: Colour.RED,
    "flag": lambda: Right.READ | Right.WRITE,
    "dataclass, version 1": lambda: Line("tea", 2, "piece"),
    "dataclass, version 2": lambda: Line("tea", 2, "piece"),
    "dataclass, version 3": lambda: Line("tea", 2, "box"),
    "dataclass, version 4": lambda: Opaque("golden.Line", 4, codec.encode({"item": "tea", "lots": (1, 2)})),
    "named tuple": lambda: Point(1, 2),
    "struct": lambda: Shape("box"),
    "own functions": lambda: [Money(5)],
    "unknown tag": lambda: {"deep": [Opaque("orders.Order", 2, b"\x81\xa1a\x01")]},
    "attrs": lambda: attrs_class()("big", note="n"),
    "pydantic": lambda: seen(model()(item="tea", extra=(1,))),
}
#: Still read, and written in another way by now or by another release of a library.
ONLY_READ = {"zlib", "zstd", "dataclass, version 1", "dataclass, version 2"}


@pytest.fixture(autouse=True)
def _types_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    for cls in (Colour, Right, Point, Shape):
        checkpoint.register(f"golden.{cls.__name__}", cls)
    checkpoint.register(
        "golden.Line", Line, version=3,
        upcast={
            1: lambda data: {"item": data["name"], "count": data["count"]},
            2: lambda data: {**data, "unit": "piece"},
        },
    )  # fmt: skip
    checkpoint.register("golden.Money", Money, to_data=lambda money: money.cents, from_data=Money)


def test_each_format_version_has_its_golden_file() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(FILES.values())


def test_each_kind_that_is_written_is_in_the_newest_file() -> None:
    newest = json.loads(FILES[envelope.FORMAT].read_text(encoding="utf-8"))
    assert set(newest) == {*VALUES, "numpy", "langchain"}


@pytest.mark.parametrize(("version", "name", "stored"), [case for case in GOLDEN if case.values[1] in VALUES])
def test_what_was_written_is_read_and_written_again_by_the_same_bytes(version: int, name: str, stored: str) -> None:
    value = VALUES[name]()
    read = loads(bytes.fromhex(stored))
    assert read == value
    assert type(read) is type(value)
    assert repr(read) == repr(value) or isinstance(value, (set, frozenset, Money, list, dict))
    if version == envelope.FORMAT and name not in ONLY_READ:
        assert dumps(value).hex() == stored
        assert dumps(read).hex() == stored


@pytest.mark.parametrize(("version", "name", "stored"), [case for case in GOLDEN if case.values[1] == "numpy"])
def test_an_array_that_was_written_is_read(version: int, name: str, stored: str) -> None:
    numpy = library("numpy")
    read = loads(bytes.fromhex(stored))
    assert (read.dtype.str, read.tolist()) == (">f4", [[0.5, 1.0], [2.0, -3.0]])
    assert dumps(numpy.array([[0.5, 1], [2, -3]], ">f4")).hex() == stored


@pytest.mark.parametrize(("version", "name", "stored"), [case for case in GOLDEN if case.values[1] == "langchain"])
def test_a_message_that_was_written_is_read(version: int, name: str, stored: str) -> None:
    messages = library("langchain_core.messages")
    call = {"name": "search", "args": {"q": "tea"}, "id": "c1", "type": "tool_call"}
    human, ai, tool = loads(bytes.fromhex(stored))
    assert (type(human), human.content, human.id) == (messages.HumanMessage, "tea?", "h1")
    assert (type(ai), ai.tool_calls, ai.usage_metadata["total_tokens"]) == (messages.AIMessage, [call], 7)
    assert (type(tool), tool.content, tool.tool_call_id, tool.artifact) == (
        messages.ToolMessage,
        "found",
        "c1",
        {"rows": (1,)},
    )
