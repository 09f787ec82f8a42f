"""What the crash explorer says of agents that are broken, of runs that never end, and of arguments that are slips."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from agent_tasks import Agent, Operation, Tool, done, fail, tool
from agent_tasks.states import RunStatus
from agent_tasks.testing import Exploration, VendorWorld, explore_crashes, play
from tests.agents import new_app, tool_of

#: The fewest schedules that crash at each boundary.
FEW: dict[str, Any] = {"brokers": ("emptied",), "lost_answers": False}


def agent_with(step: Callable[[Any], Any], *tools: Tool[..., Any]) -> Agent:
    agent = Agent("shop", app=new_app(), tools=tools)
    agent.step(name="buy")(step)
    return agent


def explored(step: Callable[[Any], Any], *tools: Tool[..., Any], world: VendorWorld, **options: Any) -> Exploration:
    return explore_crashes(agent_with(step, *tools), {"n": 1}, world, **{**FEW, **options})


@pytest.fixture
def world() -> VendorWorld:
    return VendorWorld()


@pytest.fixture
def order(world: VendorWorld) -> Tool[..., Any]:
    return tool_of("keyed", world)


def test_nobody_waits_for_the_pause_before_an_answer_is_asked_for_again(
    order: Tool[..., Any], world: VendorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    found = explored(lambda _state: done(order("tea")), order, world=world, brokers=(), lost_answers=True)
    assert not found.failures, found.report()
    assert {schedule.point.name for schedule in found.schedules} >= {"enqueue", "claim", "intent", "outcome", "step"}
    assert slept == []


# -- agents that are simply broken ------------------------------------------------------------------------------------------


class OutOfTea(LookupError):
    """There is none."""


def raises(error: Exception) -> Callable[[Any], Any]:
    def step(_state: Any) -> Any:
        raise error

    return step


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda state: done(state["nn"]), "failed in step buy: KeyError: 'nn'"),
        (lambda state: None, "failed in step buy: agent_tasks.errors.BadOutcome: .* returned nothing"),
        (
            lambda state: done(object()),
            "failed in step buy: UnstorableValue: the output of step 'buy' cannot be stored",
        ),
        (raises(OutOfTea("no tea")), r"failed in step buy: tests\..*\.OutOfTea: no tea"),
    ],
    ids=["a misspelt key", "no outcome", "an output that cannot be stored", "an exception of its own"],
)
def test_a_run_that_an_exception_ends_without_a_fault_is_an_error_that_says_why(
    step: Callable[[Any], Any], said: str, world: VendorWorld
) -> None:
    with pytest.raises(AssertionError, match=f"without any crash: it {said}.*may_raise="):
        explored(step, world=world)


def test_an_agent_that_forgot_its_tools_is_an_error_that_says_which_one(
    world: VendorWorld, order: Tool[..., Any]
) -> None:
    with pytest.raises(AssertionError, match=r"failed in step buy: .*UnguardedTool: .*'act'.* is not in tools="):
        explored(lambda _state: done(order("a")), world=world)


@pytest.mark.parametrize("allowed", [OutOfTea, LookupError, (OSError, Exception)])
def test_an_agent_that_is_meant_to_end_in_an_exception_is_explored_if_that_is_said(
    allowed: Any, world: VendorWorld
) -> None:
    found = explored(raises(OutOfTea("no tea")), world=world, may_raise=allowed)
    assert found.schedules
    assert not found.failures, found.report()


def test_another_exception_than_the_one_that_may_end_a_run_is_an_error(world: VendorWorld) -> None:
    with pytest.raises(AssertionError, match="KeyError: 'nn'"):
        explored(lambda state: done(state["nn"]), world=world, may_raise=OutOfTea)


def test_an_agent_that_ends_by_its_own_fail_is_explored_and_its_reason_is_reported(
    world: VendorWorld, order: Tool[..., Any]
) -> None:
    def step(_state: Any) -> Any:
        order("a")
        return fail("declined\n" + "by the bank " * 100)

    found = explored(step, order, world=world)
    assert not found.failures, found.report()
    assert "failed by its own fail(…) in step buy: declined\\nby the bank" in found.report()
    ending = found.summary()["ending"]
    assert (ending["status"], ending["step"]) == ("failed", "buy")
    assert len(ending["error"]) < 400


def test_a_report_says_with_what_output_the_run_succeeded(world: VendorWorld) -> None:
    found = explored(lambda _state: done({"tea": "x" * 10_000}), world=world)
    assert "the run succeeded with {" in found.report()
    ending = json.loads(json.dumps(found.summary()))["ending"]
    assert ending["status"] == "succeeded"
    assert ending["output"].startswith('{"tea": "xxx')
    assert len(ending["output"]) < 400


@pytest.mark.parametrize("one_ending", [True, False])
def test_a_later_release_that_is_broken_is_found_whatever_ending_is_allowed(
    one_ending: bool, world: VendorWorld, order: Tool[..., Any]
) -> None:
    def buy(_state: Any) -> Any:
        return done(order("a"))

    found = explore_crashes(
        agent_with(buy, order), {}, world, **FEW, one_ending=one_ending, next_release=agent_with(buy)
    )
    assert any("UnguardedTool" in str(schedule) for schedule in found.failures)


def test_a_run_that_fails_by_itself_and_after_a_crash_by_an_exception_did_not_end_alike(world: VendorWorld) -> None:
    tries: list[int] = []
    reset = world.reset

    def begin() -> None:
        reset()
        tries.clear()

    world.reset = begin  # type: ignore[method-assign]

    def step(_state: Any) -> Any:
        tries.append(1)
        if len(tries) > 1:
            raise KeyError("tea")
        return fail("declined")

    found = explored(step, world=world)
    assert any("failed in step buy: KeyError: 'tea'" in str(schedule) for schedule in found.failures)


# -- runs that never end ------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run counts as stuck after few rounds."""
    monkeypatch.setattr(play, "MAX_ROUNDS", 12)


@pytest.mark.usefixtures("soon_stuck")
def test_a_run_that_a_random_argument_keeps_from_its_end_is_reported_with_the_question_and_its_reason(
    world: VendorWorld, order: Tool[..., Any]
) -> None:
    found = explored(lambda _state: done(order(str(random.random()))), order, world=world)
    stuck = [text for schedule in found.failures for text in schedule.problems if text.startswith("stuck")]
    assert stuck
    for text in stuck:
        assert "act was asked for again with other arguments" in text
        assert 'conflict about act {"recorded": {"what": "0.' in text
        assert "recorded by tester" in text
        assert "a random number" in text


@pytest.mark.usefixtures("soon_stuck")
def test_a_run_whose_step_always_takes_its_worker_with_it_is_reported_with_that_question(world: VendorWorld) -> None:
    def step(_state: Any) -> Any:
        raise SystemExit(1)

    with pytest.raises(AssertionError, match=r"stuck after .* step buy lost its worker 3 times.*crashes {") as error:
        explored(step, world=world)
    assert "does the step end its process" in str(error.value)


@pytest.mark.usefixtures("soon_stuck")
def test_a_run_that_waits_for_ever_is_reported_with_what_it_waits_for(world: VendorWorld) -> None:
    agent = Agent("shop", app=new_app())

    @agent.step(max_retries=1_000, default_retry_delay=60)
    def buy(_state: Any) -> Any:
        raise ConnectionError("the warehouse is away")

    with pytest.raises(AssertionError, match=r"stuck after .* waiting in .* the warehouse is away"):
        explore_crashes(agent, {}, world, **FEW)


# -- effects where none should be ---------------------------------------------------------------------------------------------


def test_an_effect_in_a_read_is_reported_with_the_name_of_the_tool(world: VendorWorld) -> None:
    @tool(effect="read", bind=True)
    def peek(operation: Operation) -> int:
        return world.act(operation.operation_id)

    with pytest.raises(AssertionError, match="peek is a `read` and had an effect"):
        explored(lambda _state: done(peek()), peek, world=world)


def test_an_effect_in_the_body_of_a_step_is_reported_with_its_likely_cause(world: VendorWorld) -> None:
    with pytest.raises(AssertionError, match=r"invoice-7 happened .* an effect outside a tool"):
        explored(lambda _state: done(world.act("invoice-7")), world=world)


def test_a_charge_that_is_declared_repeatable_may_repeat_as_the_page_says(world: VendorWorld) -> None:
    charge = tool_of("repeatable", world)
    most = 0
    effects = world.effects

    def counted() -> Any:
        nonlocal most
        most = max(most, *effects().values(), 0)
        return effects()

    world.effects = counted  # type: ignore[method-assign]
    found = explored(lambda _state: done(charge("a")), charge, world=world)
    assert (found.failures, most) == ([], 2)


# -- arguments that are slips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        ({"brokers": ("redelivers", "emptyed")}, ValueError, "got 'emptyed'. Did you mean 'emptied'?"),
        ({"brokers": ("redis",)}, ValueError, "brokers must be of 'redelivers' and 'emptied', got 'redis'"),
        ({"brokers": "redelivers"}, TypeError, r"the text 'redelivers'. Write brokers=\('redelivers',\)"),
        ({"brokers": "redeliver"}, TypeError, "the text 'redeliver'. Did you mean 'redelivers'?"),
        ({"brokers": 1}, TypeError, "brokers must be a tuple of .*, got 1"),
        ({"brokers": (), "lost_answers": False}, ValueError, "nothing would be played"),
        ({"lost_answers": "no"}, TypeError, "lost_answers must be True or False, got 'no'"),
        ({"cancels": 1}, TypeError, "cancels must be True or False, got 1"),
        ({"one_ending": None}, TypeError, "one_ending must be True or False, got None"),
        ({"faults": 3}, ValueError, "faults must be 1 or 2, got 3"),
        ({"faults": True}, ValueError, "faults must be 1 or 2, got True"),
        ({"faults": "2"}, ValueError, "faults must be 1 or 2, got '2'"),
        ({"sample": 0}, ValueError, "sample must be 1 or more"),
        ({"sample": "x"}, TypeError, "sample must be a whole number or None, got 'x'"),
        ({"sample": 2.5}, TypeError, "sample must be a whole number or None, got 2.5"),
        ({"seed": "x", "sample": 1}, TypeError, "seed must be a whole number or None, got 'x'"),
        ({"may_raise": "KeyError"}, TypeError, "may_raise must be a class of exceptions .*, got 'KeyError'"),
        ({"may_raise": KeyError("a")}, TypeError, "may_raise must be a class of exceptions"),
        ({"database_url": 5}, TypeError, "database_url must be a URL as a text, or None, got 5"),
        ({"next_release": "v2"}, TypeError, "next_release must be an Agent, got 'v2'"),
        ({"input": [("n", 1)]}, TypeError, r"input must be a dict, .*, got \[\('n', 1\)\]"),
        ({"input": None}, TypeError, "input must be a dict"),
        ({"agent": "shop"}, TypeError, "agent must be an Agent, got 'shop'"),
        ({"world": VendorWorld}, TypeError, r"got the class VendorWorld. Write VendorWorld\(\)"),
        ({"world": object()}, TypeError, "without reset, effects, person"),
    ],
)
def test_a_slip_in_an_argument_is_refused_before_anything_is_played(
    wrong: dict[str, Any], kind: type[Exception], said: str, world: VendorWorld
) -> None:
    played: list[int] = []

    def step(_state: Any) -> Any:
        played.append(1)
        return done()

    arguments = {"agent": agent_with(step), "input": {}, "world": world, **wrong}
    with pytest.raises(kind, match=said):
        explore_crashes(**arguments)
    assert not played


def test_a_next_release_of_another_agent_is_refused(world: VendorWorld) -> None:
    renamed = Agent("shops", app=new_app())
    with pytest.raises(ValueError, match=r"must have the name of the agent, 'shop', .* Did you mean 'shop'?"):
        explore_crashes(agent_with(lambda _state: done()), {}, world, next_release=renamed)


def test_brokers_may_be_a_list_too(world: VendorWorld) -> None:
    found = explored(lambda _state: done(), world=world, brokers=["emptied", "emptied"])
    assert {schedule.broker for schedule in found.schedules} == {"emptied"}
    assert len(found.schedules) == len(found.points)
    assert found.ending.status is RunStatus.SUCCEEDED
