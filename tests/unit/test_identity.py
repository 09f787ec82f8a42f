"""Identities: stable, short, and never the same for two different things."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_tasks.identity import (
    item_id,
    keyed_operation_id,
    nested_operation_id,
    operation_id,
    renewed_operation_id,
)

TEXT, NUMBER = st.text(max_size=200), st.integers(0, 2**31)
CALLS = st.tuples(TEXT, NUMBER, TEXT, NUMBER)


def test_identities_are_the_same_in_every_release() -> None:
    """A change here would make every run that is under way repeat its effects."""
    assert operation_id("run-1", 1, "charge", 0) == "op_f4adf713f89d0abbaec24bf29306c512"
    assert keyed_operation_id("run-1", "charge", "order-7") == "op_c2938b56f5b2f567530aaf965abd9333"
    assert nested_operation_id("op_1", "charge", 0) == "op_e75ce940275399240e7951203a301945"
    assert renewed_operation_id("op_1", "digest") == "op_5ccb98b0279b4f4046f1691e11c938fa"
    assert item_id("unknown", "op_1", 2, "") == "q_55d445c1ba400901315dcc01f88bfd2c"


@given(CALLS, CALLS)
def test_two_calls_have_the_same_id_only_if_they_stand_at_the_same_place(
    one: tuple[str, int, str, int], other: tuple[str, int, str, int]
) -> None:
    assert (operation_id(*one) == operation_id(*other)) == (one == other)


def test_parts_do_not_run_together() -> None:
    assert operation_id("run-1", 11, "charge", 0) != operation_id("run-11", 1, "charge", 0)
    assert operation_id("run", 1, "charge1", 0) != operation_id("run", 1, "charge", 10)
    assert keyed_operation_id("run", "charge", "") != keyed_operation_id("run", "", "charge")


@given(TEXT, TEXT, TEXT)
def test_kinds_of_identities_do_not_meet(one: str, two: str, three: str) -> None:
    ids = {
        operation_id(one, 1, two, 0),
        keyed_operation_id(one, two, three),
        nested_operation_id(one, two, 0),
        renewed_operation_id(one, two),
        item_id(one, two, 0, three),
    }
    assert len(ids) == 5


@given(CALLS)
def test_an_identity_fits_its_column(call: tuple[str, int, str, int]) -> None:
    assert len(operation_id(*call)) <= 40
    assert len(item_id(call[0], call[2], call[1], "")) <= 40
