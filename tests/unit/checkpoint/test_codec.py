"""Values come back equal and of their own type, or are refused by path."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoint
from checkpoint import CheckpointState, Opaque, Secret, UnreadableValue, UnstorableValue, codec, dumps, loads, readable
from checkpoint.nesting import depth_of
from checkpoint.record import decode_head, encode_state
from checkpoint.registry import Registry, registry
from tests.values import (
    REGISTERED,
    Colour,
    Derived,
    Level,
    Line,
    Point,
    Right,
    Shape,
    keys,
    same,
    values,
)

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def types_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    for cls in REGISTERED:
        checkpoint.register(f"test.{cls.__name__}", cls)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, 1, -1, 2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 2**70, -(2**70), 255, -128, 10**400,
        0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, complex(-0.0, math.nan),
        "", "é\u0000\U0001f600", b"", b"\xff", bytearray(b"x"),
        [], [[]], (), ((),), {}, set(), frozenset(), {1, "1", (1,)}, frozenset({frozenset({1}), b"1"}), {True, 2.5, None},
        {1: 2}, {True: 1}, {None: 1, (1, (2,)): [3]}, {1.5: 1, "x": 2, b"y": 3}, {"b": 1, "a": 2}, {frozenset({1}): 1},
        Decimal("1.10"), Decimal("-0"), Decimal("NaN"), Decimal("sNaN12"), Decimal("-Infinity"), Decimal("1E+400"),
        UUID(int=7), date(1, 1, 1), date(9999, 12, 31), timedelta(-1, 1, 1), timedelta.max, timedelta.min,
        time(1, 2, 3, 4), time(2, fold=1), time(1, tzinfo=timezone.utc), time(1, tzinfo=BERLIN),
        datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN), datetime.min, datetime.max,  # noqa: DTZ901
        datetime(2024, 1, 1, fold=1),  # noqa: DTZ001

        datetime(2024, 1, 1, tzinfo=timezone.utc), datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, seconds=5, microseconds=7))),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "Zulu")), datetime.min.replace(tzinfo=timezone.utc),
        Colour.RED, Colour.BLUE, Right.READ | Right.WRITE, Right(0), Level.LOW, [Colour.RED, {"x": Level.LOW}],
        Line("tea", Decimal("2.50"), [Line("cup", Decimal(1))]), Derived(4), Point(1, 2), Shape("box"), {Point(1, 2): 3},
        Opaque("other.Type", 3, codec.encode({"a": (1, 2)})),
    ],
    ids=map(str, itertools.count()),
)  # fmt: skip
def test_a_value_comes_back_equal_and_of_its_own_type(value: Any) -> None:
    back = loads(dumps(value))
    assert same(back, value), back
    assert dumps(back) == dumps(value)


class Text(str):
    __slots__ = ()


class OddZone(tzinfo):
    def utcoffset(self, _moment: datetime | None) -> timedelta:
        return timedelta(hours=1)


@dataclass(unsafe_hash=True)
class Stranger:
    x: int = 1


@dataclass
class Base:
    x: int


class Child(Base):
    pass


class Loose:
    """Compares by identity, so that no copy is equal."""


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("value cannot be stored: an object has no stored form", object()),
        ("value['cart'][3].price cannot be stored: a Stranger has no", {"cart": [0, 1, 2, Line("a", Stranger())]}),  # type: ignore[arg-type]
        ("value[0].tags[1] cannot be stored: a Stranger", [Line("a", Decimal(1), [1, Stranger()])]),
        ("value['a'] cannot be stored: the text has a lone surrogate at 2", {"a": "xy\ud800"}),
        ("value['\\ud800'] cannot be stored: the text has a lone surrogate", {"\ud800": 1}),
        ("value[0][1] cannot be stored: the text has a lone surrogate", [("x", "\udfff")]),
        ("value cannot be stored: a Text would come back as a str; convert it", Text("x")),
        ("value['x'] cannot be stored: a Text would come back as a str", {Text("x"): 1}),
        ("value cannot be stored: an OrderedDict would come back as a dict", OrderedDict(a=1)),
        ("value cannot be stored: a Fraction has no stored form", Fraction(1, 3)),
        ("value cannot be stored: a Pair would come back as a tuple", namedtuple("Pair", "a b")(1, 2)),  # noqa: PYI024
        ("value cannot be stored: a type has no stored form", int),
        ("value cannot be stored: an Even would come back as an int", type("Even", (int,), {})(2)),
        ("value cannot be stored: a UserDict has no stored form; use dict(…) of it, or", UserDict(a=1)),
        (
            "value cannot be stored: its zone is a OddZone; use datetime.timezone",
            datetime(2024, 1, 1, tzinfo=OddZone()),
        ),
        ("value['k'] cannot be stored: it is a Secret; keep it out of the state", {"k": Secret("s")}),
        ("value{Stranger(x=1)} cannot be stored: a Stranger", {Stranger()}),
        ("value[(1, 'a')] cannot be stored: a Stranger", {(1, "a"): Stranger()}),
        ("value cannot be stored: a Child has no stored form", Child(1)),
    ],
    ids=map(str, itertools.count()),
)
def test_what_would_not_come_back_is_refused_by_path(message: str, value: Any) -> None:
    with pytest.raises(UnstorableValue) as refused:
        dumps(value)
    assert message in str(refused.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UnstorableValue, match="nests deeper than 128, or holds itself"):
        dumps(ring)


@pytest.mark.parametrize(
    "wrap",
    [lambda inner: [inner], lambda inner: (inner,), lambda inner: {1: inner}],
    ids=["list", "tuple", "dict"],
)
def test_what_is_just_shallow_enough_to_be_saved_can_be_read(wrap: Any) -> None:
    value: Any = 0
    saved = 0
    while True:
        value = wrap(value)
        try:
            stored = dumps(value)
        except UnstorableValue:
            break
        assert loads(stored) == value
        saved += 1
    assert saved >= 64


@pytest.mark.parametrize("part", ["agent_state", "metadata"])
def test_a_state_that_is_just_shallow_enough_to_be_saved_can_be_read(part: str) -> None:
    value: Any = {}
    while True:
        state = CheckpointState("run", 0, **{part: value})
        try:
            record = encode_state(state)
        except UnstorableValue as refused:
            assert refused.path.startswith(part)  # noqa: PT017  # how deep it goes is not the matter
            break
        assert dict(zip(("agent_state", "metadata"), decode_head(record.head), strict=True))[part] == value
        value = {"a": value}
    assert depth_of(codec.encode(value)) == 128


def test_a_value_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint.envelope.MAX_BYTES", 1000)
    with pytest.raises(UnstorableValue, match="it takes 1003 bytes and the limit is 1000; store a reference"):
        dumps("x" * 1000)


@given(values)
def test_any_value_is_shown_as_json_and_comes_back_with_the_same_bytes(value: Any) -> None:
    raw = codec.encode(value)
    shown = readable.to_readable(raw)
    assert "$raw" not in shown if isinstance(shown, dict) else True
    assert readable.from_readable(readable.load_json(readable.dump_json(shown))) == raw


@given(values, st.sampled_from(["\ud800", Fraction(1, 2), Text("x"), Stranger(), Secret(1), range(3), iter(())]))
def test_a_bad_part_anywhere_is_refused_by_path(value: Any, bad: Any) -> None:
    for path, holder in (
        ("value['x'][1]", {"x": [value, bad]}),
        ("value[0]['y']", ({"z": value, "y": bad},)),
        ("value['x'][(1, None)]", {"x": {(1, None): bad}, "z": value}),
        ("value.tags[0]", Line("a", Decimal(1), [bad, value])),
    ):
        with pytest.raises(UnstorableValue) as refused:
            dumps(holder)
        assert refused.value.path == path


@given(st.lists(st.integers() | st.text(), unique=True), st.randoms())
def test_equal_sets_give_equal_bytes(members: list[Any], chance: Any) -> None:
    shuffled = list(members)
    chance.shuffle(shuffled)
    assert dumps(set(members)) == dumps(set(shuffled))
    assert dumps(frozenset(members)) == dumps(frozenset(shuffled))


@settings(max_examples=50)
@given(st.dictionaries(keys, values, max_size=5), st.randoms())
def test_a_digest_does_not_depend_on_the_order_of_a_dict(value: dict[Any, Any], chance: Any) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert codec.digest({"args": [value]}) == codec.digest({"args": [dict(items)]})


def test_a_dict_keeps_its_order() -> None:
    assert list(loads(dumps({"b": 1, "a": 2}))) == ["b", "a"]
    assert list(loads(dumps({2: 1, 1: 2}))) == [2, 1]


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), ((1,), [1]), ("a", b"a"), ({1}, frozenset({1})), (0.0, -0.0), ({}, [])]
)
def test_values_of_different_types_have_different_digests(one: Any, other: Any) -> None:
    assert codec.digest(one) != codec.digest(other)


def test_a_digest_is_the_same_in_every_release() -> None:
    value = {"b": [1, (2.5, None)], "a": {Decimal("1.10"), "x"}, 3: Line("tea", Decimal(2))}
    assert codec.digest(value) == "9fec28358e050d1f483dc68693a55b2b"


# Registered types


def test_an_older_version_is_cast_up_step_by_step() -> None:
    registry.register("test.V", Stranger)
    old = dumps([Stranger(5)])
    registry.register(
        "test.V", Stranger, version=3, upcast={1: lambda data: {"y": data["x"]}, 2: lambda data: {"x": data["y"] + 1}}
    )
    assert loads(old) == [Stranger(6)]
    assert dumps(loads(old)) != old


def test_a_field_that_was_added_takes_its_default_and_one_without_is_an_error() -> None:
    raw = dumps(Opaque("test.Line", 1, codec.encode({"item": "tea", "price": Decimal(1)})))
    assert loads(raw) == Line("tea", Decimal(1), [])
    raw = dumps(Opaque("test.Line", 1, codec.encode({"item": "tea"})))
    with pytest.raises(UnreadableValue, match="field 'price' of Line is missing and has no default; give an upcast"):
        loads(raw)
    raw = dumps(Opaque("test.Line", 1, codec.encode({"item": "tea", "price": 1, "gone": 2})))
    with pytest.raises(UnreadableValue, match="Line has no field 'gone'; raise its version and give an upcast"):
        loads(raw)


def test_a_missing_upcast_and_a_failing_one_name_the_type() -> None:
    registry.register("test.V", Stranger)
    old = dumps(Stranger())
    registry.register("test.V", Stranger, version=3, upcast={2: dict})
    with pytest.raises(UnreadableValue, match=r"'test.V' \(version 1\).*no upcast from version 1 to 2"):
        loads(old)
    registry.register("test.V", Stranger, version=2, upcast={1: lambda data: data["gone"]})
    with pytest.raises(UnreadableValue, match="KeyError: 'gone'"):
        loads(old)


@pytest.mark.parametrize("version", [1, 9])
def test_an_unknown_tag_or_version_comes_back_opaque_and_goes_out_as_it_was(version: int) -> None:
    registry.register("test.V", Stranger, version=version)
    stored = dumps({"deep": [(Stranger([1, {2}]),)]})  # type: ignore[arg-type]
    if version == 1:
        registry._by_tag.clear()
    else:
        registry.register("test.V", Stranger, version=8)
    opaque = loads(stored)["deep"][0][0]
    assert opaque == Opaque("test.V", version, codec.encode({"x": [1, {2}]}))
    assert dumps(loads(stored)) == stored


def test_opaque_data_that_was_changed_is_refused() -> None:
    for data in (b"", b"\xc1", b"\x01\x02", b"\x91" * 200 + b"\x01"):
        with pytest.raises(UnstorableValue, match="its data was changed"):
            dumps(Opaque("a", 1, data))
    with pytest.raises(UnstorableValue, match="nests deeper"):
        dumps([Opaque("a", 1, b"\x91" * 127 + b"\x01")])
    with pytest.raises(UnstorableValue, match="an Opaque holds a str, an int and bytes"):
        dumps([Opaque("a", None, b"\x01")])  # type: ignore[arg-type]
    with pytest.raises(UnstorableValue, match="its data was changed: it holds a timestamp"):
        dumps(Opaque("a", 1, b"\xd6\xff\x00\x00\x00\x00"))


def test_a_type_with_its_own_functions_is_rebuilt_and_compared_at_save() -> None:
    registry.register("test.Money", Money, to_data=lambda money: money.cents, from_data=Money)
    assert loads(dumps([Money(5)])) == [Money(5)]
    registry.register("test.Money", Money, to_data=lambda money: money.cents // 10, from_data=Money)
    with pytest.raises(UnstorableValue, match="is not an equal value of its own type"):
        dumps(Money(5))
    registry.register("test.Loose", Loose, to_data=lambda _: None, from_data=lambda _: Loose())
    with pytest.raises(UnstorableValue, match=r"value\['a'\].*registered as 'test.Loose'"):
        dumps({"a": Loose()})
    registry.register("test.Text", Text, to_data=str, from_data=Text)
    assert type(loads(dumps(Text("x")))) is Text


class Counter(msgspec.Struct):
    """Its own code changes it whenever one is made."""

    count: int

    def __post_init__(self) -> None:
        self.count += 1


def test_a_struct_whose_own_code_changes_it_is_refused() -> None:
    registry.register("test.Counter", Counter)
    with pytest.raises(UnstorableValue, match="is not an equal value of its own type"):
        dumps(Counter(1))


def test_a_stack_that_is_nearly_used_up_is_no_damage() -> None:
    stored = dumps([(((((((1,),),),),),),)])

    def deeper_and_deeper() -> None:
        loads(stored)
        deeper_and_deeper()

    with pytest.raises((UnreadableValue, RecursionError)):  # and never CorruptedBytes
        deeper_and_deeper()


def test_a_stack_that_is_nearly_used_up_refuses_a_save_by_path() -> None:
    value = [[[[[[[[1]]]]]]]]

    def deeper_and_deeper() -> None:
        dumps(value, "cart")
        deeper_and_deeper()

    with pytest.raises((UnstorableValue, RecursionError)) as refused:
        deeper_and_deeper()
    if isinstance(refused.value, UnstorableValue):
        assert str(refused.value).startswith("cart cannot be stored: the stack has no room")


def test_a_dataclass_comes_back_with_its_computed_fields_and_without_running_its_code() -> None:
    value = Derived(2)
    object.__setattr__(value, "double", 99)
    assert loads(dumps(value)).double == 99


def test_an_attribute_that_is_no_field_would_be_lost() -> None:
    line = Line("tea", Decimal(1))
    line.note = "x"  # type: ignore[attr-defined]
    with pytest.raises(UnstorableValue, match="its attribute 'note' is not a field and would be lost"):
        dumps(line)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("the tag must be letters, digits, '_', '.', ':' or '-'", {"tag": "a b"}),
        ("the tag must be letters, digits", {"tag": ""}),
        ("version must be an int from 1 up, got 0", {"version": 0}),
        ("version must be an int from 1 up, got True", {"version": True}),
        ("cls must be a type, got 3", {"cls": 3}),
        ("upcast keys must be versions from 1 to 1, got 2", {"version": 2, "upcast": {2: dict}}),
        ("give both to_data and from_data, or neither", {"to_data": str}),
        (
            "Loose is no Enum, dataclass, attrs class, pydantic model, named tuple or msgspec Struct; give",
            {"cls": Loose},
        ),
        ("the tag belongs to Line already; choose another", {"tag": "test.Line"}),
        ("Line is registered as 'test.Line' already; keep that tag", {"cls": Line}),
    ],
)
def test_a_wrong_registration_is_refused(message: str, arguments: dict[str, Any]) -> None:
    given_arguments: dict[str, Any] = {"tag": "test.New", "cls": Stranger, **arguments}
    with pytest.raises(checkpoint.RegistrationError, match=message):
        Registry.register(registry, **given_arguments)


def test_a_reloaded_class_takes_its_tag_over() -> None:
    again = type("Line", (Line,), {"__module__": Line.__module__, "__qualname__": "Line"})
    registry.register("test.Line", again)
    assert type(loads(dumps(again("tea", Decimal(1))))) is again
    with pytest.raises(UnstorableValue):
        dumps(Line("tea", Decimal(1)))


# Secrets


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret("sk-123")
    assert secret.reveal() == "sk-123"
    assert "sk-123" not in f"{secret} {secret!r}"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)


# Values that do something when they are looked at


class Shy:
    """One whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no session")


class _Hiding(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__"):
            raise RuntimeError("hidden")
        return type.__getattribute__(cls, name)


class Hidden(metaclass=_Hiding):
    """One whose class says no name."""


class Masked:
    """One that does not say its class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("masked")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({Shy(): 1}, "value[<Shy without a repr>] cannot be stored: a Shy has no stored form"),
        ({1: {Shy()}}, "value[1]{<Shy without a repr>} cannot be stored: a Shy has no stored form"),
        ([Hidden()], "value[0] cannot be stored: a Hidden has no stored form"),
        ((Masked(),), "value[0] cannot be stored: a Masked has no stored form"),
    ],
)
def test_a_value_that_raises_when_it_is_looked_at_is_refused_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(UnstorableValue) as refused:
        dumps(value)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("error", "said"),
    [(SystemExit(3), "SystemExit: 3"), (MemoryError(), "MemoryError: "), (Mute(), "Mute: <without a text>")],
)
def test_whatever_a_registered_type_raises_refuses_its_value(error: BaseException, said: str) -> None:
    def to_data(_value: Any) -> Any:
        raise error

    cls = type("Raises", (), {})
    Registry.register(registry, f"test.Raises{id(cls)}", cls, to_data=to_data, from_data=lambda _data: cls())
    with pytest.raises(UnstorableValue) as refused:
        dumps({"cart": cls()})
    assert (refused.value.path, refused.value.reason) == (
        "value['cart']",
        f"registered as 'test.Raises{id(cls)}': {said}",
    )
