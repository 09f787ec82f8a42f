"""Values of every kind that the codec of `checkpoint` stores, and when two of them are the same."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from checkpoint import dumps


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Line:
    item: str
    price: Decimal
    tags: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Derived:
    base: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", self.base * 2)


class Point(NamedTuple):
    x: int
    y: int


class Shape(msgspec.Struct):
    name: str
    sides: int = 4


#: Each of these is registered as `test.` and its name.
REGISTERED: tuple[type, ...] = (Colour, Right, Level, Line, Derived, Point, Shape)


def same(one: Any, other: Any) -> bool:
    """Equal and of the same types all the way down, NaN and the sign of zero included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (
            one == other or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, (datetime, time)):
        return (one.replace(tzinfo=None), one.fold, one.tzinfo, type(one.tzinfo), str(one.tzinfo)) == (
            other.replace(tzinfo=None), other.fold, other.tzinfo, type(other.tzinfo), str(other.tzinfo)
        )  # fmt: skip
    if isinstance(one, (Shape, Line)):
        names = Shape.__struct_fields__ if isinstance(one, Shape) else ("item", "price", "tags")
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, c) and same(b, d) for (a, b), (c, d) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(dumps, one)) == sorted(map(dumps, other))
    return bool(one == other)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), st.decimals(),
    st.uuids(), st.dates(), st.timedeltas(), st.times(timezones=st.none() | st.just(timezone.utc)),
    st.datetimes(timezones=st.none() | st.timezones() | st.just(timezone(timedelta(hours=5, minutes=45), "NPT"))),
    st.sampled_from([Colour.RED, Right.WRITE, Level.LOW]),
)  # fmt: skip
keys = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),  # it cannot be hashed
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    scalars | st.binary().map(bytearray) | st.sets(keys, max_size=4),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Shape, st.text(), inner),
    ),
    max_leaves=20,
)
