"""A chain is the same however it is computed, and another one for other messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chain import ROOT, links, relinked

items_ = st.lists(st.binary(max_size=4), max_size=8)


@given(items_, items_)
def test_links_of_a_known_chain_are_taken_over_only_where_they_hold(items: list[bytes], known: list[bytes]) -> None:
    for other in (known, [*items, *known], items[: len(items) // 2], [*items[:-1], *known]):
        assert relinked(items, other, links(other)) == links(items)


@given(items_, items_)
def test_chains_are_equal_exactly_as_far_as_the_messages_are(one: list[bytes], other: list[bytes]) -> None:
    for index in range(min(len(one), len(other)) + 1):
        assert (links(one)[index] == links(other)[index]) == (one[:index] == other[:index])


def test_the_borders_between_messages_count() -> None:
    assert links([b"ab", b"c"])[-1] != links([b"a", b"bc"])[-1]
    assert links([]) == [ROOT]
