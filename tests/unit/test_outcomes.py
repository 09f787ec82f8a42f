"""What a step returns, and the state that it works on."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agent_tasks import done, fail
from agent_tasks.outcomes import Done, Fail
from agent_tasks.steps import Step, StepState
from checkpoint import CheckpointState


@pytest.fixture
def checkpoint() -> CheckpointState:
    return CheckpointState(
        run_id="run-1", seq=0, agent_state={"cart": [1]}, messages=[{"role": "user"}], metadata={"tenant": "a"}
    )


def test_a_run_is_done_with_or_without_output() -> None:
    assert (done(), done(7), done(None)) == (Done(None), Done(7), Done(None))


def test_a_run_is_done_with_its_state_as_a_plain_dict(checkpoint: CheckpointState) -> None:
    output = done(StepState(checkpoint)).output
    assert (type(output), output) == (dict, {"cart": [1]})


def test_a_state_within_the_state_is_kept_as_it_was(checkpoint: CheckpointState) -> None:
    state = StepState(checkpoint)
    state["before"] = state
    state["paid"] = True
    assert checkpoint.agent_state == {"cart": [1], "before": {"cart": [1]}, "paid": True}


def test_a_run_fails_with_a_reason() -> None:
    assert fail("declined") == Fail("declined")


def test_a_step_is_called_as_the_plain_function_that_it_is() -> None:
    step = Step("pay", "order", lambda state: done(state["cart"]))
    assert step({"cart": 3}) == Done(3)


def test_the_state_is_a_mapping_over_the_checkpoint(checkpoint: CheckpointState) -> None:
    state = StepState(checkpoint)
    state["order"] = 7
    state.update(paid=True)
    assert state.pop("cart") == [1]
    assert dict(state) == checkpoint.agent_state == {"order": 7, "paid": True}
    assert (len(state), list(state), "paid" in state) == (2, ["order", "paid"], True)
    assert repr(state) == "StepState({'order': 7, 'paid': True})"


def test_what_a_step_says_and_notes_reaches_the_checkpoint(checkpoint: CheckpointState) -> None:
    state = StepState(checkpoint)
    state.messages.append({"role": "assistant"})
    state.metadata["cost"] = 3
    assert checkpoint.messages == [{"role": "user"}, {"role": "assistant"}]
    assert checkpoint.metadata == {"tenant": "a", "cost": 3}


def test_a_name_that_is_not_in_the_state_is_a_key_error(checkpoint: CheckpointState) -> None:
    with pytest.raises(KeyError, match="order"):
        StepState(checkpoint)["order"]
    assert StepState(checkpoint).get("order") is None


def test_an_attribute_of_the_state_is_refused_where_it_would_be_lost(checkpoint: CheckpointState) -> None:
    state: Any = StepState(checkpoint)
    with pytest.raises(
        AttributeError, match=r"^an attribute of the state is not stored: write state\['order'\] = …\.$"
    ):
        state.order = 17
    with pytest.raises(AttributeError, match=r"^the state has no attribute 'cart': write del state\['cart'\]\.$"):
        del state.cart
    with pytest.raises(AttributeError, match=r"has no attribute 'cart': write state\['cart'\]\.$"):
        _ = state.cart
    with pytest.raises(AttributeError, match=r"has no attribute 'copy': write dict\(state\)\.$"):
        state.copy()
    assert dict(state) == checkpoint.agent_state == {"cart": [1]}
    assert getattr(state, "order", None) is None


def test_what_stands_beside_the_state_is_changed_in_place(checkpoint: CheckpointState) -> None:
    state: Any = StepState(checkpoint)
    with pytest.raises(
        AttributeError, match=r"^state\.messages is changed in place: write state\.messages\[:\] = …\.$"
    ):
        state.messages = []
    with pytest.raises(
        AttributeError, match=r"^state\.metadata is changed in place: write state\.metadata\.update\(…\)\.$"
    ):
        state.metadata = {}
    with pytest.raises(
        AttributeError, match=r"^state\.messages is emptied in place: write state\.messages\.clear\(\)\.$"
    ):
        del state.messages
    state.messages[:] = [{"role": "system"}]
    state.metadata.update(cost=3)
    assert (checkpoint.messages, checkpoint.metadata) == ([{"role": "system"}], {"tenant": "a", "cost": 3})


def test_a_state_is_copied_as_any_object_is(checkpoint: CheckpointState) -> None:
    for copied in (copy.copy(StepState(checkpoint)), copy.deepcopy(StepState(checkpoint))):
        assert dict(copied) == {"cart": [1]}
        assert copied.messages == [{"role": "user"}]
