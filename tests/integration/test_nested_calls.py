"""Tools called inside the bodies of tools: crashes at each boundary, doubts inside and outside, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from agent_tasks import Agent, Happened, NotHappened, Operation, Tool, current_run, done, tool
from agent_tasks.current import attempt_of_this_context
from agent_tasks.identity import nested_operation_id
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.testing import explore_crashes
from tests.agents import World, new_app
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)
KEY_LIFETIME = timedelta(hours=24)


def declare(
    world: World, effect: str, name: str, inner: Callable[[str], Any] | None = None, **more: Any
) -> Tool[..., Any]:
    """Return a tool that calls another one, and then acts on the world in the way of its effect."""
    options: dict[str, dict[str, Any]] = {
        "repeatable": {"why": "sets a value"},
        "keyed": {"key_lifetime": KEY_LIFETIME},
        "probed": {"timeout": TIMEOUT},
        "manual": {"timeout": TIMEOUT},
    }

    @tool(effect=effect, bind=True, name=name, **options.get(effect, {}), **more)
    def act(operation: Operation, what: str) -> Any:
        got = None if inner is None else inner(what)
        if effect == "transactional":
            assert operation.connection is not None
            insert = text("INSERT INTO effects VALUES (:id)")
            operation.connection.execute(insert, {"id": operation.operation_id})
        elif effect != "read":
            world.act(operation.operation_id, key=operation.idempotency_key if effect == "keyed" else None)
        return [name, got]

    if effect == "probed":

        @act.probe
        def look(operation: Operation) -> Happened | NotHappened:
            return NotHappened() if world.look_up(operation.operation_id) is None else Happened("as probed")

    return act


def agent_of(world: World, *tools: Tool[..., Any]) -> Agent:
    """Return an agent whose step calls the last tool, and whose output does not depend on who answered a doubt."""
    agent = Agent("nested", app=new_app(), tools=tools)

    @agent.step
    def work(_state: Any) -> Any:
        tools[-1]("a")
        return done("done")

    return agent


#: The outer effect, and the inner one.
PAIRS = [
    ("read", "manual"),
    ("repeatable", "probed"),
    ("keyed", "probed"),
    ("probed", "manual"),
    ("manual", "keyed"),
    ("manual", "transactional"),
]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_a_crash_at_any_boundary_of_a_call_inside_a_call_repeats_no_effect(
    outer: str, inner: str, tmp_path: Any
) -> None:
    with closing(World(url := f"sqlite:///{tmp_path / 'agent.db'}")) as world:
        inside = declare(world, inner, "inner")
        agent = agent_of(world, inside, declare(world, outer, "outer", inside))
        found = explore_crashes(agent, {}, world, database_url=url, brokers=("emptied",), lost_answers=False)
    assert not found.failures, found.report()


def test_a_crash_at_any_boundary_two_levels_deep_repeats_no_effect(tmp_path: Any) -> None:
    with closing(World(url := f"sqlite:///{tmp_path / 'agent.db'}")) as world:
        innermost = declare(world, "probed", "innermost")
        middle = declare(world, "keyed", "middle", innermost)
        agent = agent_of(world, innermost, middle, declare(world, "manual", "outer", middle))
        found = explore_crashes(agent, {}, world, database_url=url, brokers=("emptied",), lost_answers=False)
    assert not found.failures, found.report()


@pytest.mark.parametrize("options", [{"key": str}, {"record": False}], ids=["keyed inside", "unrecorded between"])
def test_a_crash_at_any_boundary_around_calls_of_other_identities_repeats_no_effect(
    options: dict[str, Any], tmp_path: Any
) -> None:
    with closing(World(url := f"sqlite:///{tmp_path / 'agent.db'}")) as world:
        if "key" in options:
            inside = declare(world, "manual", "inner", key=lambda what: what)
            tools = (inside, declare(world, "probed", "outer", inside))
        else:
            inside = declare(world, "manual", "inner")
            between = declare(world, "read", "between", inside, **options)
            tools = (inside, between, declare(world, "probed", "outer", between))
        found = explore_crashes(
            agent_of(world, *tools), {}, world, database_url=url, brokers=("emptied",), lost_answers=False
        )
    assert not found.failures, found.report()


def test_a_transactional_body_may_hold_a_read_that_is_not_recorded(tmp_path: Any) -> None:
    with closing(World(url := f"sqlite:///{tmp_path / 'agent.db'}")) as world:
        inside = declare(world, "read", "inner", record=False)
        agent = agent_of(world, inside, declare(world, "transactional", "outer", inside))
        found = explore_crashes(agent, {}, world, database_url=url, brokers=("emptied",))
    assert not found.failures, found.report()


# -- what a body does with what is inside it ----------------------------------------------------------------------------------


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


class Declined(Exception):
    """It did not happen."""


def failing_inner(here: Duel, error: type[Exception]) -> Tool[..., Any]:
    @tool(effect="manual", timeout=TIMEOUT, name="inner", refused=(Declined,))
    def inner(cents: int) -> str:
        here.requests.append(("inner", cents))
        if here.requests.count(("inner", cents)) == 1:
            raise error("the bank said so")
        return "charged"

    return inner


def outer_of(here: Duel, effect: str, inner: Tool[..., Any], caught: type[BaseException], then: Any) -> Tool[..., Any]:
    options: dict[str, Any] = {
        "keyed": {"key_lifetime": KEY_LIFETIME},
        "manual": {"timeout": TIMEOUT},
        "repeatable": {"why": "sets a value"},
    }.get(effect, {})

    @tool(effect=effect, name="outer", refused=(Declined,), **options, bind=False)
    def outer() -> str:
        here.requests.append("outer")
        try:
            return str(inner(100))
        except caught:
            return str(then())

    return outer


def test_an_inner_failure_that_the_outer_body_catches_is_recorded_and_not_repeated(here: Duel) -> None:
    inner = failing_inner(here, Declined)
    outer = outer_of(here, "manual", inner, Declined, lambda: "without a charge")

    def pay(_state: Any) -> Any:
        got = outer()
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    assert here.run(here.agent(inner, outer, pay=pay)).get(timeout=0) == "without a charge"
    assert here.requests == ["outer", ("inner", 100)]
    assert {(o.tool, o.status) for o in here.operations()} == {
        ("outer", OperationStatus.SUCCEEDED),
        ("inner", OperationStatus.FAILED),
    }
    here.sound()


def refuse() -> None:
    raise Declined("built on a doubt")


@pytest.mark.parametrize("then", [lambda: "built on a doubt", refuse], ids=["returns", "refuses"])
@pytest.mark.parametrize("effect", ["read", "repeatable", "keyed", "manual"])
def test_nothing_that_an_outer_body_builds_on_an_inner_doubt_is_recorded(
    here: Duel, effect: str, then: Callable[[], Any]
) -> None:
    """The body catches even StepSuspended, and goes on as if the inner call had failed (I15)."""
    inner = failing_inner(here, TimeoutError)
    outer = outer_of(here, effect, inner, BaseException, then)
    order = here.agent(inner, outer, pay=lambda _state: done(outer()))
    run = here.run(order)
    assert {o.tool: o.status for o in here.operations()} == {"inner": OperationStatus.UNKNOWN} | (
        {} if effect == "read" else {"outer": OperationStatus.EXECUTING}
    )

    asked = []
    while here.drive(order) is RunStatus.NEEDS_ATTENTION:
        (item,) = run.inbox()
        asked.append(item.detail["tool"])
        happened = item.detail["tool"] == "inner"
        here.reply(order, "happened" if happened else "did-not-happen", result="charged" if happened else None)
    assert run.get(timeout=0) == "charged"
    assert asked == (["outer", "inner"] if effect == "manual" else ["inner"])
    assert here.requests.count(("inner", 100)) == 1
    here.sound()


def test_a_person_answers_for_the_outer_call_while_the_inner_one_is_in_doubt(here: Duel) -> None:
    inner = failing_inner(here, TimeoutError)
    outer = outer_of(here, "manual", inner, Declined, lambda: "")
    order = here.agent(inner, outer, pay=lambda _state: done(outer()))
    run = here.run(order)

    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert [item.detail["tool"] for item in run.inbox()] == ["outer"]
    here.reply(order, "happened", result="as Kim says")
    assert (
        here.drive(order) is RunStatus.NEEDS_ATTENTION
    )  # nobody asks for the inner one any more, and it is in doubt (I14)
    assert [item.detail["tool"] for item in run.inbox()] == ["inner"]
    here.reply(order, "happened", result="charged")

    assert run.get(timeout=0) == "as Kim says"
    assert here.requests == ["outer", ("inner", 100)]
    here.sound()


def test_an_outer_call_that_is_sent_again_finds_what_it_had_done(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def inner(cents: int) -> str:
        here.requests.append(cents)
        return f"charged {cents}"

    @tool(effect="keyed", key_lifetime=KEY_LIFETIME, bind=False)
    def outer() -> str:
        got = inner(1), inner(2)
        here.requests.append("outer")
        if here.requests.count("outer") == 1:
            raise TimeoutError
        return str(got)

    order = here.agent(inner, outer, pay=lambda _state: done(outer()))
    run = here.run(order)
    assert run.status is RunStatus.WAITING
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert run.get(timeout=0) == "('charged 1', 'charged 2')"
    assert here.requests == [1, 2, "outer", "outer"]
    assert {o.tool: o.attempts for o in here.operations()} == {"outer": 2, "inner": 1}


# -- the order, and the line ----------------------------------------------------------------------------------------------------


def test_calls_inside_a_keyed_call_may_come_after_a_new_effect(here: Duel) -> None:
    """The order of a call with a key may vary, and so that of what is inside it (I13)."""

    @tool(effect="manual", timeout=TIMEOUT)
    def inner(what: str) -> str:
        here.requests.append(what)
        return what

    @tool(effect="repeatable", why="sets a value", key=lambda: "k")
    def outer() -> str:
        got = inner("inside")
        if current_run.number == 1:
            raise MemoryError
        return got

    def pay(_state: Any) -> Any:
        got = [] if current_run.number == 1 else [inner("of the step")]
        return done([*got, outer()])

    run = here.run(here.agent(inner, outer, pay=pay))
    assert (run.status, here.questions()) == (RunStatus.SUCCEEDED, [])
    assert run.get(timeout=0) == ["of the step", "inside"]
    assert here.requests == ["inside", "of the step"]
    here.sound()


@pytest.mark.parametrize("key", [None, lambda: "k"], ids=["outer without a key", "outer with a key"])
def test_a_new_line_asks_for_the_inner_calls_of_a_recorded_outer_one(here: Duel, key: Any) -> None:
    """The line of the run is another one in the second attempt, as after falling back to an older checkpoint (I13)."""

    @tool(effect="manual", timeout=TIMEOUT)
    def inner(what: str) -> str:
        here.requests.append(what)
        return what

    @tool(effect="repeatable", why="sets a value", key=key)
    def outer() -> str:
        return str(inner("inside"))

    def pay(_state: Any) -> Any:
        outer()
        attempt = attempt_of_this_context()
        assert attempt is not None
        if attempt.number == 1:
            raise MemoryError
        attempt.line = 1
        with here.runtime.engine.connect().execution_options(agent_reads_only=True) as connection:
            assert here.runtime.ledger.left_behind(connection, attempt) == []
        with here.runtime.engine.connect() as connection, connection.begin():
            here.runtime.ledger.adopt(connection, attempt)
        attempt.line = 0
        return done("paid")

    assert here.run(here.agent(inner, outer, pay=pay)).get(timeout=0) == "paid"
    assert here.requests == ["inside"]
    assert {operation.row["line"] for operation in here.operations()} == {1}


def test_an_unrecorded_read_is_transparent(here: Duel) -> None:
    """It is run in every attempt, so what it calls is called by whoever called it."""

    @tool(effect="manual", timeout=TIMEOUT)
    def inner(what: str) -> str:
        here.requests.append(what)
        return what

    look = tool(effect="read", record=False, name="look")(lambda: inner("a") + inner("b"))

    @tool(effect="repeatable", why="sets a value")
    def outer() -> str:
        return str(look())

    def pay(_state: Any) -> Any:
        got = [outer(), look()]
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(inner, look, outer, pay=pay))
    assert run.get(timeout=0) == ["ab", "ab"]
    assert here.requests == ["a", "b", "a", "b"]
    top = next(o for o in here.operations() if o.tool == "outer")
    of_inner = {o.operation_id: o.row["parent_operation"] for o in here.operations() if o.tool == "inner"}
    assert [i for i, parent in of_inner.items() if parent] == [
        nested_operation_id(top.operation_id, "inner", number) for number in range(2)
    ]
    here.sound()
