"""Whatever a value is made of, it comes back equal and of its own type, or it is refused and its path is named."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import checkpoint
from checkpoint import Opaque, Secret, UnstorableValue, codec, dumps, loads
from checkpoint.registry import registry
from tests.values import REGISTERED, Colour, Line, Point, Shape, keys, same, scalars, values

#: So many values of each property in CI.
EXAMPLES = 1000 if os.environ.get("CI") == "true" else 200


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Unregistered(Line):
    pass


STRANGERS = (OrderedDict, deque, Fraction, Text, Number, Unregistered, Secret, range, type, object, slice, memoryview)


@pytest.fixture(autouse=True, scope="module")
def _types() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_by_class", {})
        patch.setattr(registry, "_by_tag", {})
        for cls in REGISTERED:
            checkpoint.register(f"test.{cls.__name__}", cls)
        yield


@settings(max_examples=EXAMPLES)
@given(values)
def test_any_value_comes_back_equal_and_of_its_own_type(value: Any) -> None:
    stored = dumps(value)
    back = loads(stored)
    assert same(back, value)
    assert dumps(back) == stored


strangers = st.one_of(
    st.text(st.characters(categories=["Cs"]), min_size=1), st.fractions(), st.integers().map(Number), st.text().map(Text),
    st.builds(OrderedDict), st.builds(deque), st.just(Secret(1)), st.just(range(3)), st.just(int), st.builds(object),
    st.just(slice(1)), st.just(memoryview(b"x")), st.builds(Unregistered, st.text(), st.just(1)),
)  # fmt: skip
anything = st.recursive(
    st.one_of(*[scalars] * 9, strangers, st.builds(Opaque, st.text(), st.integers(0, 9), values.map(codec.encode))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text() | keys, inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Shape, st.text(), inner),
        st.builds(Line, st.text(), inner, st.lists(inner, max_size=2)),
    ),
    max_leaves=20,
)


def parts(value: Any) -> Iterator[Any]:
    """A value and all that it holds."""
    yield value
    inner: list[Any] = []
    if type(value) in (list, tuple, Point):
        inner = list(value)
    elif type(value) is dict:
        inner = [part for pair in value.items() for part in pair]
    elif type(value) is Shape:
        inner = [value.name, value.sides]
    elif type(value) is Line:
        inner = [value.item, value.price, value.tags]
    for part in inner:
        yield from parts(part)


def is_stranger(part: Any) -> bool:
    return type(part) in STRANGERS or (type(part) is str and any("\ud800" <= letter <= "\udfff" for letter in part))


@settings(max_examples=EXAMPLES)
@given(anything)
def test_anything_comes_back_or_is_refused_by_the_path_of_a_part_that_cannot(value: Any) -> None:
    bad = [part for part in parts(value) if is_stranger(part)]
    event("refused" if bad else "stored")
    if not bad:
        assert same(loads(dumps(value)), value)
        return
    with pytest.raises(UnstorableValue) as refused:
        dumps(value, "it")
    # The path is the expression that gives the part, where the keys on its way can be written as they are shown.
    names = {"it": value, "Colour": Colour}
    try:
        part = eval(refused.value.path, names)
    except (NameError, SyntaxError, KeyError, UnicodeError, TypeError, AttributeError):
        assert refused.value.path.startswith("it")
    else:
        assert any(part is one for one in bad), refused.value
