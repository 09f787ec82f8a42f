"""Registered attrs classes and pydantic models come back as they were; dataclasses, named tuples and Structs lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pytest

import checkpoint
from checkpoint import Opaque, Secret, UnreadableValue, UnstorableValue, codec, dumps, loads
from checkpoint.registry import registry
from tests.libraries import library

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _a_registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})


def back(value: Any) -> Any:
    """Store a value and read it, and see that it is of its own type and stored again by the same bytes."""
    stored = dumps(value)
    read = loads(stored)
    assert type(read) is type(value)
    assert dumps(read) == stored
    return read


# What is registered and has more to it than its fields


@dataclass
class Failed(Exception):
    code: int


class Doubling(NamedTuple("Doubling", [("x", int)])):
    __slots__ = ()

    def __new__(cls, x: int) -> Any:
        return super().__new__(cls, 2 * x)


class Grown(NamedTuple("Grown", [("x", int), ("y", list[int])])):  # noqa: SLOT002  # room for more is the point
    pass


class Open(msgspec.Struct, dict=True):
    x: int


def test_a_dataclass_that_is_an_exception_too_is_refused_when_it_is_saved() -> None:
    checkpoint.register("test.Failed", Failed)
    with pytest.raises(UnstorableValue, match=r"value\['error'\].*its fields are not all there is of it"):
        dumps({"error": Failed(3)})


def test_a_named_tuple_comes_back_without_running_its_code() -> None:
    checkpoint.register("test.Doubling", Doubling)
    assert Doubling(2).x == back(Doubling(2)).x == 4


@pytest.mark.parametrize("value", [Grown(1, []), Open(1)], ids=["named tuple", "struct"])
def test_an_attribute_that_is_no_field_would_be_lost(value: Any) -> None:
    checkpoint.register("test.It", type(value))
    assert back(value) == value
    value.note = "x"
    with pytest.raises(UnstorableValue, match="its attribute 'note' is not a field and would be lost"):
        dumps(value)


class Old(NamedTuple):
    x: int
    y: int = 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": 1}, "field 'x' of Old is missing and has no default; give an upcast"),
        ({"x": 1, "z": 1}, "Old has no field 'z'; raise its version and give an upcast"),
        ([1], "the data of a Old is a dict of its fields, and this is list"),
    ],
)
def test_data_that_does_not_fit_a_named_tuple_is_an_error(data: Any, message: str) -> None:
    checkpoint.register("test.Old", Old)
    assert loads(dumps(Opaque("test.Old", 1, codec.encode({"x": 1})))) == Old(1, 5)
    with pytest.raises(UnreadableValue, match=message):
        loads(dumps(Opaque("test.Old", 1, codec.encode(data))))


# attrs


@pytest.fixture
def attrs() -> Any:
    return library("attrs")


def test_an_attrs_class_comes_back_as_it_was(attrs: Any) -> None:
    @attrs.define
    class Line:
        item: str
        price: Decimal = Decimal(1)
        _note: str = attrs.field(default="", alias="note")
        tags: list[Any] = attrs.field(factory=list)
        made: int = attrs.field(init=False, default=0)

    @attrs.frozen(slots=False, cache_hash=True)
    class Key:
        x: int
        y: Any = attrs.Factory(lambda self: self.x + 1, takes_self=True)

    @attrs.frozen(cache_hash=True)
    class Slotted:
        x: int

    for cls in (Line, Key, Slotted):
        checkpoint.register(f"test.{cls.__name__}", cls)
    line = Line("tea", note="n", tags=[Line("cup", tags=[(1,)]), {Key(1): Slotted(2)}])
    line.made = 7
    assert back(line) == line
    used = Key(3), Slotted(3)
    assert {hash(member) for member in used}
    assert back(used) == used
    assert list(map(hash, back(used))) == list(map(hash, used))
    assert loads(dumps(Opaque("test.Key", 1, codec.encode({"x": 4})))) == Key(4, 5)
    assert loads(dumps(Opaque("test.Line", 1, codec.encode({"item": "tea"})))) == Line("tea")
    with pytest.raises(UnreadableValue, match=r"field 'x' of .*Slotted is missing and has no default"):
        loads(dumps(Opaque("test.Slotted", 1, codec.encode({}))))
    with pytest.raises(UnstorableValue) as refused:
        dumps([Line("tea", tags=[0, Secret("s")])])
    assert refused.value.path == "value[0].tags[1]"


def test_an_attrs_value_with_more_or_less_than_its_fields_is_refused(attrs: Any) -> None:
    @attrs.define(slots=False)
    class Loose:
        x: int = 1

    @attrs.define
    class Late:
        x: int = attrs.field(init=False)

    @attrs.define
    class Failure(Exception):
        code: int

    for cls in (Loose, Late, Failure):
        checkpoint.register(f"test.{cls.__name__}", cls)
    loose = Loose()
    loose.note = 1  # type: ignore[attr-defined]
    for value, message in (
        (loose, "its attribute 'note' is not a field"),
        (Late(), "it is not complete"),
        (Failure(3), "its fields are not all there is of it"),
    ):
        with pytest.raises(UnstorableValue, match=message):
            dumps(value)


def test_an_older_version_of_an_attrs_class_is_cast_up(attrs: Any) -> None:
    @attrs.define
    class Line:
        item: str

    checkpoint.register("test.Line", Line)
    old = dumps(Line("tea"))
    checkpoint.register("test.Line", Line, version=2, upcast={1: lambda data: {"item": data["item"].upper()}})
    assert loads(old) == Line("TEA")


# pydantic


@pytest.fixture
def pydantic() -> Any:
    return library("pydantic")


@pytest.fixture
def register_all() -> Iterator[Any]:
    def register(*classes: type) -> None:
        for number, cls in enumerate(classes):
            checkpoint.register(f"test.M{number}", cls)

    return register  # type: ignore[return-value]


def test_a_model_comes_back_as_it_was(pydantic: Any, register_all: Any) -> None:
    class Line(pydantic.BaseModel):
        item: str
        price: Decimal = Decimal(1)
        name: str = pydantic.Field("x", alias="theName")
        tags: tuple[Any, ...] = ()

    class Order(pydantic.BaseModel, frozen=True, extra="allow"):
        lines: list[Line]
        note: str | None = None
        _seen: int = pydantic.PrivateAttr(default=0)
        _late: int = pydantic.PrivateAttr()

        @pydantic.computed_field
        def count(self) -> int:
            return len(self.lines)

        @cached_property
        def first(self) -> Line:
            return self.lines[0]

    class Plain(pydantic.BaseModel):
        def model_post_init(self, _context: Any) -> None:
            pass

    class Root(pydantic.RootModel[list[Line]]):
        pass

    class Boxed(pydantic.BaseModel, Generic[T]):
        inner: T

    register_all(Line, Order, Plain, Root, Boxed[int], Boxed[Line])
    order = Order(lines=[Line(item="tea", theName="y"), Line(item="cup", price=Decimal("2.50"))], extra=(1, {2}), _x=3)
    order._seen = 4
    assert order.first.item == "tea"
    read = back(order)
    assert read == order
    assert (read.model_fields_set, read.model_extra, read._seen) == (
        order.model_fields_set,
        {"extra": (1, {2}), "_x": 3},
        4,
    )
    assert read.model_dump(exclude_unset=True) == order.model_dump(exclude_unset=True)
    assert [line.model_fields_set for line in read.lines] == [{"item", "name"}, {"item", "price"}]
    assert read.first == order.first
    with pytest.raises(AttributeError):
        read._late  # noqa: B018
    order._late = 5
    assert back(order)._late == 5
    for value in (Plain(), Root([Line(item="a")]), Boxed[int](inner=3), Boxed[Line](inner=Line(item="a"))):
        assert back(value) == value
        assert back([value])[0].model_fields_set == value.model_fields_set


def test_a_model_is_neither_validated_nor_coerced(pydantic: Any, register_all: Any) -> None:
    class Line(pydantic.BaseModel):
        price: float

        @pydantic.field_validator("price")
        @classmethod
        def doubled(cls, price: float) -> float:
            return 2 * price

    register_all(Line)
    assert back(Line(price=2)).price == 4.0
    odd = Line.model_construct(price="as it was")
    assert back(odd).price == "as it was"


def test_a_part_of_a_model_that_cannot_be_stored_is_refused_by_path(pydantic: Any, register_all: Any) -> None:
    class Line(pydantic.BaseModel, extra="allow"):
        tags: list[Any] = pydantic.Field(default_factory=list)
        key: pydantic.SecretStr | None = None
        _lock: Any = None
        _own: Any = None

    register_all(Line)
    locked, shadowed, incomplete, odd = Line(), Line(_own=1), Line.model_construct(), Line(**{"": 1})
    locked._lock = object()
    del incomplete.__dict__["tags"]
    for value, path, message in (
        (Line(tags=[0, Secret("s")]), "value.tags[1]", "it is a Secret"),
        (Line(key="s"), "value.key", "a SecretStr has no stored form"),
        (Line(more=[range(3)]), "value.more[0]", "a range has no stored form"),
        (locked, "value._lock", "an object has no stored form"),
        (shadowed, "value", "its extra '_own' has the name of another attribute"),
        (odd, "value", "its extra '' has the name of another attribute"),
        (incomplete, "value", "it is not complete: it has no 'tags'"),
    ):
        with pytest.raises(UnstorableValue) as refused:
            dumps(value)
        assert (refused.value.path, message in refused.value.reason) == (path, True), refused.value


def test_a_model_that_nobody_registered_says_what_to_do(pydantic: Any) -> None:
    class Line(pydantic.BaseModel):
        x: int

    with pytest.raises(
        UnstorableValue, match=r"a .*Line has no stored form; use its model_dump\(\), or checkpoint.register"
    ):
        dumps(Line(x=1))


def test_the_data_of_an_older_model_takes_defaults_and_upcasts(pydantic: Any, register_all: Any) -> None:
    class Line(pydantic.BaseModel):
        item: str
        tags: list[str] = pydantic.Field(default_factory=lambda: ["new"])
        _note: str = pydantic.PrivateAttr(default="n")

    register_all(Line)
    read = loads(dumps(Opaque("test.M0", 1, codec.encode({"item": "tea"}))))
    assert (read, read.model_fields_set, read._note) == (Line(item="tea"), {"item"}, "n")
    for data, message in (
        ({}, "field 'item' of .*Line is missing and has no default; give an upcast"),
        ({"item": "tea", "gone": 1}, "Line has no field 'gone'; raise its version and give an upcast"),
        (["tea"], "the data of a .*Line is a dict of its fields"),
        ({"item": "tea", "": 3}, "TypeError"),
        ({"item": "tea", "": [[]]}, "TypeError"),
    ):
        with pytest.raises(UnreadableValue, match=message):
            loads(dumps(Opaque("test.M0", 1, codec.encode(data))))
    checkpoint.register("test.M0", Line, version=2, upcast={1: lambda data: {"item": data["name"]}})
    assert loads(dumps(Opaque("test.M0", 1, codec.encode({"name": "tea"})))) == Line(item="tea")


def test_a_default_that_is_made_from_other_fields(pydantic: Any, register_all: Any) -> None:
    class Line(pydantic.BaseModel):
        item: str
        label: str = pydantic.Field(default_factory=lambda data: data["item"].upper())

    register_all(Line)
    assert loads(dumps(Opaque("test.M0", 1, codec.encode({"item": "tea"})))).label == "TEA"


def test_a_pydantic_dataclass_comes_back_as_it_was(pydantic: Any, register_all: Any) -> None:
    @pydantic.dataclasses.dataclass
    class Line:
        item: str
        price: Decimal = Decimal(1)

    register_all(Line)
    assert back(Line("tea", "2.50")) == Line("tea", Decimal("2.50"))
