"""Batches of calls in a step: planned together, made by threads, drained, and the same in every attempt (I3-I5, I13-I15)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from sqlalchemy import text

from agent_tasks import (
    Agent,
    BadBatch,
    FailedCall,
    Operation,
    OutsideRun,
    RunHandle,
    Tool,
    UnguardedTool,
    UnorderedCalls,
    carry_run,
    current_run,
    done,
    run_calls,
    tool,
)
from agent_tasks.config import Settings
from agent_tasks.current import attempt_of_this_context
from agent_tasks.errors import ArgumentsNotStorable
from agent_tasks.identity import keyed_operation_id, nested_operation_id, operation_id
from agent_tasks.states import OperationStatus, RunStatus
from tests.agents import new_app
from tests.duel import RUN, Duel, Outage, duel, observed
from tests.waiting import wait_until

TIMEOUT = timedelta(seconds=10)
KEY_LIFETIME = timedelta(hours=24)


class Declined(Exception):
    """The bank answered, and the answer is no."""


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    """On SQLite only, for what asks nothing of the database."""
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        yield both


def manual(here: Duel, does: Callable[[str], Any] = str.upper, **options: Any) -> Tool[..., Any]:
    """Return a tool that notes its argument and does something with it."""

    @tool(effect="manual", timeout=TIMEOUT, refused=(Declined,), name="act", **options)
    def act(what: str) -> Any:
        here.requests.append(what)
        return does(what)

    return act


def calls_of(act: Tool[..., Any], letters: str) -> list[Any]:
    return [act.call(letter) for letter in letters]


def statuses(here: Duel) -> dict[str, str]:
    """The run's operations by their argument."""
    return {operation.args["what"]: str(operation.status) for operation in here.operations()}


# -- a batch ----------------------------------------------------------------------------------------------------------------


def test_a_batch_runs_at_the_same_time_and_its_results_come_in_the_order_of_the_list(here: Duel) -> None:
    all_here = threading.Barrier(4, timeout=60)

    def meet(what: str) -> str:
        all_here.wait()
        return what.upper()

    act = manual(here, meet)
    run = here.run(here.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abcd")))))

    assert run.get(timeout=0) == ["A", "B", "C", "D"]
    assert sorted(here.requests) == ["a", "b", "c", "d"]
    expected = [operation_id(RUN, 1, "act", number) for number in range(4)]
    assert sorted(operation.operation_id for operation in here.operations()) == sorted(expected)
    by_argument = {operation.args["what"]: operation.operation_id for operation in here.operations()}
    assert [by_argument[what] for what in "abcd"] == expected  # whichever began first
    here.sound()


def test_the_whole_batch_is_planned_before_the_first_call_begins(here: Duel) -> None:
    seen: list[dict[str, str]] = []

    def look(what: str) -> None:
        seen.append(statuses(here))

    act = manual(here, look)
    here.run(here.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abc"), max_concurrency=1))))

    assert seen == [
        {"a": "executing", "b": "pending", "c": "pending"},
        {"a": "succeeded", "b": "executing", "c": "pending"},
        {"a": "succeeded", "b": "succeeded", "c": "executing"},
    ]


def test_no_more_calls_are_under_way_than_was_said(one: Duel) -> None:
    under_way, most, both = [0], [0], threading.Barrier(2, timeout=60)
    lock = threading.Lock()

    def count(_what: str) -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        both.wait()
        with lock:
            under_way[0] -= 1

    act = manual(one, count)
    one.run(one.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abcdef"), max_concurrency=2)))).get(
        timeout=0
    )
    assert most == [2]


def test_the_same_call_twice_is_two_operations(one: Duel) -> None:
    act = manual(one)
    run = one.run(one.agent(act, pay=lambda _state: done(run_calls([act.call("a")] * 2 + [act.call("b")]))))
    assert run.get(timeout=0) == ["A", "A", "B"]
    assert sorted(one.requests) == ["a", "a", "b"]
    assert len(one.operations()) == 3


def test_calls_after_a_batch_go_on_counting(one: Duel) -> None:
    act = manual(one)
    one.run(one.agent(act, pay=lambda _state: done([run_calls(calls_of(act, "ab")), act("c")])))
    assert one.operations()[-1].operation_id == operation_id(RUN, 1, "act", 2)


def test_one_key_twice_with_the_same_arguments_is_one_operation_and_both_places_get_its_result(here: Duel) -> None:
    act = manual(here, lambda what: [what], key=lambda what: what)

    def pay(_state: Any) -> Any:
        results = run_calls(calls_of(act, "aba"))
        results[0].append("changed")
        return done(results)

    run = here.run(here.agent(act, pay=pay))

    assert run.get(timeout=0) == [["a", "changed"], ["b"], ["a"]]
    assert sorted(here.requests) == ["a", "b"]
    assert {o.operation_id for o in here.operations()} == {keyed_operation_id(RUN, "act", what) for what in "ab"}
    here.sound()


def test_a_failure_stands_in_both_places_of_its_key(one: Duel) -> None:
    def decline(_what: str) -> None:
        raise Declined("no")

    act = manual(one, decline, key=lambda what: what)

    def pay(_state: Any) -> Any:
        first, second = run_calls(calls_of(act, "aa"), on_error="collect")
        return done([str(first.error), str(second.error)])

    assert one.run(one.agent(act, pay=pay)).get(timeout=0) == ["no", "no"]
    assert one.requests == ["a"]


def test_a_keyed_call_that_was_made_in_an_earlier_step_returns_its_recorded_result(here: Duel) -> None:
    act = manual(here, key=lambda what: what)

    def first(state: Any) -> Any:
        state["first"] = act("a")
        return agent.steps["second"]

    agent = here.agent(act, first=first, second=lambda _state: done(run_calls(calls_of(act, "ab"))))
    assert here.run(agent).get(timeout=0) == ["A", "B"]
    assert here.requests == ["a", "b"]
    here.sound()


def test_every_kind_of_tool_may_be_called_in_one_batch_by_many_threads(here: Duel) -> None:
    with here.runtime.engine.begin() as connection:
        connection.execute(text("CREATE TABLE booked (what VARCHAR(40))"))

    def noted(effect: str, **options: Any) -> Tool[..., Any]:
        @tool(effect=effect, name=effect, **options)
        def act(what: str) -> str:
            here.requests.append((effect, what))
            return what.upper()

        return act

    @tool(effect="transactional", bind=True)
    def book(operation: Operation, what: str) -> str:
        assert operation.connection is not None
        operation.connection.execute(text("INSERT INTO booked VALUES (:what)"), {"what": what})
        return what.upper()

    tools = [
        noted("read"),
        noted("repeatable", why="sets a value"),
        noted("keyed", key_lifetime=KEY_LIFETIME, bind=False),
        noted("manual", timeout=TIMEOUT),
        book,
    ]
    letters = "abcde"
    agent = here.agent(*tools, pay=lambda _state: done(run_calls([t.call(x) for x in letters for t in tools])))

    assert here.run(agent).get(timeout=0) == [x.upper() for x in letters for _ in tools]
    assert sorted(here.requests) == sorted((t.name, x) for t in tools[:-1] for x in letters)
    with here.runtime.engine.connect() as connection:
        assert sorted(connection.execute(text("SELECT what FROM booked")).scalars()) == list(letters)
    assert {(o.status, o.attempts) for o in here.operations()} == {(OperationStatus.SUCCEEDED, 1)}
    here.sound()


def test_a_read_that_is_not_recorded_runs_in_a_batch_and_leaves_no_row(one: Duel) -> None:
    @tool(effect="read", record=False)
    def look(what: str) -> str:
        one.requests.append(what)
        return what.upper()

    assert one.run(one.agent(look, pay=lambda _state: done(run_calls(calls_of(look, "aab"))))).get(timeout=0) == list(
        "AAB"
    )
    assert (sorted(one.requests), one.operations()) == (["a", "a", "b"], [])


def test_an_empty_batch_has_no_results(one: Duel) -> None:
    act = manual(one)
    assert one.run(one.agent(act, pay=lambda _state: done(run_calls([])))).get(timeout=0) == []


def test_a_batch_runs_inline() -> None:
    made = Agent("inline-batch", app=new_app(), tools=[shout])
    made.step(lambda _state: done(run_calls([shout.call("a"), shout.call("b")])), name="pay")
    assert made.run_inline({}) == ["A", "B"]


@tool(effect="keyed", key_lifetime=KEY_LIFETIME, bind=False)
def shout(what: str) -> str:
    return what.upper()


def test_the_arguments_of_a_call_are_those_of_the_moment_at_which_it_was_made(one: Duel) -> None:
    @tool(effect="read")
    def count(items: list[str]) -> int:
        items.append("more")
        return len(items)

    def pay(_state: Any) -> Any:
        items = ["a"]
        call = count.call(items)
        items += ["b", "c"]
        return done([run_calls([call]), run_calls([call]), call == count.call(["a"]), len(items)])

    assert one.run(one.agent(count, pay=pay)).get(timeout=0) == [[2], [2], True, 3]


# -- failures ---------------------------------------------------------------------------------------------------------------


def test_the_first_failure_in_the_list_is_raised_after_the_others_under_way_have_ended(here: Duel) -> None:
    second_failed = threading.Event()

    def decline(what: str) -> str:
        if what == "a":
            assert second_failed.wait(60)
            wait_until(lambda: statuses(here)["b"] == "failed")
        if what == "b":
            second_failed.set()
        raise Declined(what)

    act = manual(here, decline)

    def pay(_state: Any) -> Any:
        with pytest.raises(Declined, match="a"):
            run_calls(calls_of(act, "abcd"), max_concurrency=2)
        return done(statuses(here))

    at_the_end_of_the_batch = here.run(here.agent(act, pay=pay)).get(timeout=0)

    assert sorted(here.requests) == ["a", "b"]
    assert at_the_end_of_the_batch == {"a": "failed", "b": "failed", "c": "pending", "d": "pending"}
    assert statuses(here) == {"a": "failed", "b": "failed", "c": "dropped", "d": "dropped"}
    here.sound()


def test_failures_are_collected_in_their_places(here: Duel) -> None:
    def decline(what: str) -> str:
        if what in "bd":
            raise Declined(what)
        return what.upper()

    act = manual(here, decline)

    def pay(_state: Any) -> Any:
        results = run_calls(calls_of(act, "abcd"), on_error="collect", max_concurrency=1)
        failed = [result for result in results if isinstance(result, FailedCall)]
        assert [type(each.error) for each in failed] == [Declined, Declined]
        assert [each.call for each in failed] == calls_of(act, "bd")
        return done([getattr(result, "error", result) and str(getattr(result, "error", result)) for result in results])

    assert here.run(here.agent(act, pay=pay)).get(timeout=0) == ["A", "b", "C", "d"]
    assert here.requests == ["a", "b", "c", "d"]
    here.sound()


def test_a_retried_step_makes_again_all_that_failed_in_the_batch_that_it_ended_on(here: Duel) -> None:
    def decline(what: str) -> str:
        if what in "bc" and here.requests.count(what) == 1:
            raise Declined(what)
        return what.upper()

    act = manual(here, decline)
    order = Agent("order", app=here.app, tools=[act])

    @order.step(name="pay", max_retries=3, default_retry_delay=60)
    def pay(_state: Any) -> Any:
        found = run_calls(calls_of(act, "abcd"), on_error="collect", max_concurrency=1)
        if any(isinstance(each, FailedCall) for each in found):
            raise ConnectionError("not all of them")
        return done(found)

    run = here.run(order)
    assert statuses(here) == {"a": "succeeded", "b": "pending", "c": "pending", "d": "succeeded"}
    here.later(order, 60)
    assert run.get(timeout=0) == ["A", "B", "C", "D"]
    assert here.requests == ["a", "b", "c", "d", "b", "c"]
    here.sound()


def test_a_retry_makes_the_calls_that_a_failure_kept_from_beginning(here: Duel) -> None:
    def decline(what: str) -> str:
        if what == "b" and here.requests.count(what) == 1:
            raise Declined(what)
        return what.upper()

    act = manual(here, decline)
    order = Agent("order", app=here.app, tools=[act])
    order.step(max_retries=1, default_retry_delay=60, name="pay")(
        lambda _state: done(run_calls(calls_of(act, "abcd"), max_concurrency=1))
    )
    run = here.run(order)
    assert here.requests == ["a", "b"]
    here.later(order, 60)
    assert run.get(timeout=0) == ["A", "B", "C", "D"]
    assert here.requests == ["a", "b", "b", "c", "d"]
    here.sound()


class DeclinedOnRecord(Declined):
    """One that a later attempt makes of its record after the other calls that it begins, if there are any, have begun."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        attempt = attempt_of_this_context()
        if attempt is not None and attempt.number > 1 and len(attempt.together.open) > 1:
            wait_until(lambda: attempt.doomed is not None, "another call began, out of order")


def test_a_later_attempt_begins_nothing_that_a_failure_kept_from_beginning(here: Duel) -> None:
    """Else it would come after what the step did about the failure, which is an effect out of order (I13)."""

    @tool(effect="manual", timeout=TIMEOUT, refused=(DeclinedOnRecord,))
    def charge(what: str) -> str:
        here.requests.append(what)
        raise DeclinedOnRecord(what)

    @tool(effect="manual", timeout=TIMEOUT)
    def refund() -> str:
        here.requests.append("refund")
        return "refunded"

    def pay(_state: Any) -> Any:
        try:
            run_calls(calls_of(charge, "abc"), max_concurrency=1 if current_run.number == 1 else 3)
        except Declined:
            got = refund()
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(charge, refund, pay=pay))

    assert run.get(timeout=0) == "refunded"
    assert here.requests == ["a", "refund"]
    assert here.questions() == []
    here.sound()


@pytest.mark.parametrize("on_error", ["raise", "collect"])
@pytest.mark.parametrize("kind", [MemoryError, SystemExit])
def test_a_read_that_takes_its_worker_along_ends_the_attempt_whatever_the_batch_does_about_errors(
    one: Duel, kind: type[BaseException], on_error: str
) -> None:
    @tool(effect="read")
    def look(what: str) -> str:
        one.requests.append(what)
        if one.requests.count("b") == 1 and what == "b":
            raise kind
        return what.upper()

    agent = one.agent(
        look, pay=lambda _state: done(run_calls(calls_of(look, "abc"), on_error=on_error, max_concurrency=1))
    )
    run = one.run(agent)
    assert run.get(timeout=0) == ["A", "B", "C"]
    assert one.requests == ["a", "b", "b", "c"]
    one.sound()


# -- doubts, lost leases, cancels, interruptions -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_doubt_ends_the_step_after_the_others_have_ended_and_no_code_of_it_sees_the_doubt(
    here: Duel, on_error: str
) -> None:
    begun, doubted, ended = threading.Event(), threading.Event(), []

    def time_out(what: str) -> str:
        if what == "b":
            assert begun.wait(60)
            doubted.set()
            raise TimeoutError
        if what == "a":
            begun.set()
            assert doubted.wait(60)
            wait_until(lambda: statuses(here)["b"] == "unknown")
        ended.append(what)
        return what.upper()

    act = manual(here, time_out)
    went_on: list[Any] = []

    def pay(_state: Any) -> Any:
        try:
            found = run_calls(calls_of(act, "abcd"), on_error=on_error, max_concurrency=2)
        except BaseException:
            went_on.append((list(ended), statuses(here)))
            act("z")
            raise
        return done(found)

    order = here.agent(act, pay=pay)
    run = here.run(order)

    assert went_on == [(["a"], {"a": "succeeded", "b": "unknown", "c": "pending", "d": "pending"})]
    here.later(order, 20)
    assert here.questions() == ["unknown"]
    here.reply(order, "happened", "B by hand")
    assert run.get(timeout=0) == ["A", "B by hand", "C", "D"]
    assert sorted(here.requests) == ["a", "b", "c", "d"]
    here.sound()


def test_the_outcomes_of_a_batch_whose_lease_was_lost_count_and_nothing_is_begun_any_more(here: Duel) -> None:
    def be_overtaken(what: str) -> str:
        if what == "a":
            here.meanwhile(order)
        return what.upper()

    act = manual(here, be_overtaken)
    order = here.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abc"), max_concurrency=1)))
    assert here.run(order).get(timeout=0) == ["A", "B", "C"]  # a late outcome wakes its run
    assert here.requests == ["a", "b", "c"]
    assert here.row()["fence"] == 3
    here.sound()


def test_a_batch_of_which_the_lease_is_lost_before_it_is_planned_begins_nothing(here: Duel) -> None:
    act = manual(here)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            here.meanwhile(order)
        return done(run_calls(calls_of(act, "ab")))

    order = here.agent(act, pay=pay)
    here.run(order)
    assert RunHandle(here.rival, RUN).get(timeout=0) == ["A", "B"]
    assert sorted(here.requests) == ["a", "b"]
    here.sound()


def test_a_cancel_lets_the_calls_under_way_end_and_begins_no_other(here: Duel) -> None:
    def be_cancelled(what: str) -> str:
        RunHandle(here.rival, RUN).cancel(who="kim", why="changed her mind")
        return what.upper()

    act = manual(here, be_cancelled)
    run = here.run(here.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abc"), max_concurrency=1))))

    assert run.status is RunStatus.CANCELLED
    assert statuses(here) == {"a": "succeeded", "b": "pending", "c": "pending"}
    here.sound()


def test_a_batch_of_a_run_that_was_cancelled_meanwhile_is_not_planned(here: Duel) -> None:
    act = manual(here)

    def pay(_state: Any) -> Any:
        RunHandle(here.rival, RUN).cancel(who="kim", why="changed her mind")
        return done(run_calls(calls_of(act, "abc")))

    run = here.run(here.agent(act, pay=pay))
    assert (run.status, here.requests, here.operations()) == (RunStatus.CANCELLED, [], [])
    here.sound()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_plan_whose_answer_is_lost_is_written_once(here: Duel, moment: str) -> None:
    outage = Outage("plan", moment)
    observed(here.runtime, outage)
    act = manual(here)
    run = here.run(here.agent(act, pay=lambda _state: done(run_calls(calls_of(act, "abc")))))
    assert (run.get(timeout=0), outage.hits) == (["A", "B", "C"], 1)
    assert sorted(here.requests) == ["a", "b", "c"]
    here.sound()


def test_a_time_limit_that_strikes_while_calls_are_under_way_is_raised_after_their_end(one: Duel) -> None:
    ended: list[str] = []

    def strike(_signal: int, _frame: object) -> None:
        struck.set()
        raise SoftTimeLimitExceeded

    struck, both = threading.Event(), threading.Barrier(2, timeout=60)

    def hold(what: str) -> str:
        both.wait()
        if what == "a":
            os.kill(os.getpid(), signal.SIGUSR1)
        assert struck.wait(60)
        ended.append(what)
        return what.upper()

    act = manual(one, hold)

    def pay(_state: Any) -> Any:
        try:
            run_calls(calls_of(act, "abc"), max_concurrency=2)
        except SoftTimeLimitExceeded:
            return done([sorted(ended), statuses(one)])
        return done("no limit struck")

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        run = one.run(one.agent(act, pay=pay))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert run.get(timeout=0) == [["a", "b"], {"a": "succeeded", "b": "succeeded", "c": "pending"}]
    assert statuses(one)["c"] == "dropped"
    one.sound()


# -- other attempts -----------------------------------------------------------------------------------------------------------


def test_planned_calls_that_another_attempt_does_not_ask_for_are_dropped(here: Duel) -> None:
    act = manual(here)

    @tool(effect="read", name="look")
    def look(what: str) -> str:
        return what.upper()

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            observed(here.runtime, Outage("intent", "before", times=10**6))
            here.runtime.clock.advance(here.runtime.settings.step_timeout_seconds)
            run_calls([*calls_of(act, "ab"), look.call("c")], max_concurrency=1)
        return done("another way")

    order = here.agent(act, look, pay=pay)
    here.run(order)
    assert set(statuses(here).values()) == {"pending"}
    here.meanwhile(order)
    assert RunHandle(here.rival, RUN).get(timeout=0) == "another way"
    assert set(statuses(here).values()) == {"dropped"}
    assert here.requests == []
    here.sound()


def test_a_planned_call_that_was_never_begun_may_be_asked_for_with_other_arguments(here: Duel) -> None:
    act = manual(here)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            observed(here.runtime, Outage("intent", "before", times=10**6))
            here.runtime.clock.advance(here.runtime.settings.step_timeout_seconds)
        return done(run_calls(calls_of(act, "ab" if current_run.number == 1 else "xy")))

    order = here.agent(act, pay=pay)
    here.run(order)
    assert here.requests == []
    here.meanwhile(order)
    assert RunHandle(here.rival, RUN).get(timeout=0) == ["X", "Y"]
    assert statuses(here) == {"x": "succeeded", "y": "succeeded"}
    here.sound()


def test_an_effect_inside_one_call_is_no_orphan_for_another_one(
    here: Duel,
) -> None:
    """In the second attempt the other call begins while the first one's body has not come to its inner call yet (I13)."""
    inner = manual(here)
    again, began = threading.Event(), threading.Event()

    @tool(effect="read")
    def hold() -> None:
        assert again.wait(60)

    @tool(effect="keyed", key_lifetime=KEY_LIFETIME, bind=False)
    def outer(what: str) -> str:
        attempt = attempt_of_this_context()
        assert attempt is not None
        if attempt.number > 1:
            again.set()
            wait_until(lambda: began.is_set() or attempt.doomed is not None, "the other call began")
        got = inner(what)
        if attempt.number == 1:
            raise TimeoutError
        return str(got)

    @tool(effect="manual", timeout=TIMEOUT)
    def other() -> str:
        began.set()
        return "other"

    def pay(_state: Any) -> Any:
        return done(run_calls([outer.call("a"), hold.call(), other.call()], max_concurrency=current_run.number))

    order = here.agent(outer, inner, hold, other, pay=pay)
    run = here.run(order)
    assert not began.is_set()
    here.later(order, 10)

    assert (here.questions(), run.get(timeout=0)) == ([], ["A", None, "other"])
    assert here.requests == ["a"]
    here.sound()


# -- inside a body, in other threads -------------------------------------------------------------------------------------------


def test_a_batch_in_the_body_of_a_tool_belongs_to_its_call(here: Duel) -> None:
    act = manual(here)

    @tool(effect="repeatable", why="sets a value")
    def outer() -> Any:
        got = run_calls(calls_of(act, "ab"))
        if current_run.number == 1:
            raise MemoryError
        return got

    run = here.run(here.agent(act, outer, pay=lambda _state: done([outer(), run_calls([act.call("c")])])))

    assert run.get(timeout=0) == [["A", "B"], ["C"]]
    assert sorted(here.requests) == ["a", "b", "c"]
    (of_outer,) = (o.operation_id for o in here.operations() if o.tool == "outer")
    inside = {nested_operation_id(of_outer, "act", number) for number in range(2)}
    assert {o.operation_id for o in here.operations() if o.row["parent_operation"] == of_outer} == inside
    here.sound()


def test_a_doubt_in_a_batch_in_a_body_leaves_the_outer_call_in_doubt_as_well(one: Duel) -> None:
    def time_out(what: str) -> str:
        raise TimeoutError

    act = manual(one, time_out)

    @tool(effect="manual", timeout=TIMEOUT)
    def outer() -> str:
        with suppress(BaseException):
            run_calls(calls_of(act, "ab"), max_concurrency=1)
        return "built on a doubt"

    order = one.agent(act, outer, pay=lambda _state: done(outer()))
    one.run(order)
    assert {o.tool: str(o.status) for o in one.operations() if o.args.get("what") != "b"} == {
        "outer": "executing",
        "act": "unknown",
    }
    one.sound()


def test_calls_without_a_key_are_no_batch_in_another_thread_and_keyed_ones_are(one: Duel) -> None:
    act = manual(one)

    @tool(effect="manual", timeout=TIMEOUT, key=lambda what: what)
    def keyed(what: str) -> str:
        return what.upper()

    def pay(_state: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(UnorderedCalls, match="'act' was called from another thread"):
                pool.submit(carry_run(run_calls), [*calls_of(keyed, "a"), *calls_of(act, "b")]).result()
            return done(pool.submit(carry_run(run_calls), calls_of(keyed, "ab")).result())

    assert one.run(one.agent(act, keyed, pay=pay)).get(timeout=0) == ["A", "B"]
    assert one.requests == []
    one.sound()


# -- what is no batch ----------------------------------------------------------------------------------------------------------


def test_a_batch_outside_a_run_is_refused() -> None:
    with pytest.raises(OutsideRun, match=r"run_calls was called outside a run.*none of its 1 calls was made"):
        run_calls([shout.call("a")])


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (lambda act: act.call("a"), {}, r"a batch is a list of calls, got <call act\(what='a'\)>.*write \[tool.call"),
        (lambda act: 5, {}, "a batch is a list of calls, got 5"),
        (lambda act: "ab", {}, "a batch is a list of calls, got 'ab'"),
        (lambda act: [act.call("a"), "A"], {}, r"number 1 of a batch is no call, got 'A'.*tool.call\(…\)"),
        (lambda act: [act], {}, "number 0 of a batch is no call, got <tool act"),
        (lambda act: [act.call("a")], {"on_error": "colect"}, "got 'colect'. Did you mean 'collect'"),
        (lambda act: [act.call("a")], {"on_error": None}, "on_error must be 'raise' or 'collect', got None"),
        (lambda act: [act.call("a")], {"max_concurrency": 0}, "max_concurrency must be a whole number above 0, got 0"),
        (lambda act: [act.call("a")], {"max_concurrency": True}, "got True"),
        (lambda act: [act.call("a")], {"max_concurrency": "2"}, "got '2'"),
    ],
)
def test_what_is_no_batch_is_refused_and_nothing_is_sent_or_recorded(
    one: Duel, given: Any, options: dict[str, Any], said: str
) -> None:
    act = manual(one)

    def pay(_state: Any) -> Any:
        with pytest.raises(BadBatch, match=said):
            run_calls(given(act), **options)
        return done("went on")

    assert one.run(one.agent(act, pay=pay)).get(timeout=0) == "went on"
    assert (one.requests, one.operations()) == ([], [])


def test_a_call_is_checked_when_it_is_made() -> None:
    with pytest.raises(
        TypeError, match=r"'shout' is called as shout\(what\): too many positional arguments. Nothing was sent"
    ):
        shout.call("a", "b")
    with pytest.raises(
        ArgumentsNotStorable, match="argument 'what' of tool 'shout' cannot be stored, so nothing was sent"
    ):
        shout.call(object())

    @tool(effect="read", key=lambda what: "")
    def keyless(what: str) -> None: ...

    with pytest.raises(ArgumentsNotStorable, match="key= of tool 'keyless' must return a text"):
        keyless.call("a")


def test_two_calls_with_one_key_and_other_arguments_are_refused_before_anything_is_recorded(one: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT, key=lambda to, words: to, name="mail")
    def mail(to: str, words: str) -> None:
        one.requests.append(to)

    def send(_state: Any) -> Any:
        with pytest.raises(
            BadBatch, match="two calls of tool 'mail' in one batch have the key 'kim' and different arg"
        ):
            run_calls([mail.call("ada", "hi"), mail.call("kim", "hello"), mail.call("kim", "bye")])
        return done()

    one.run(one.agent(mail, send=send)).get(timeout=0)
    assert (one.requests, one.operations()) == ([], [])


def test_a_call_of_a_tool_that_the_agent_does_not_list_keeps_the_whole_batch_from_beginning(one: Duel) -> None:
    act = manual(one)

    def pay(_state: Any) -> Any:
        with pytest.raises(UnguardedTool, match="'shout' was called in step 'pay' and is not in tools="):
            run_calls([act.call("a"), shout.call("b")])
        return done()

    one.run(one.agent(act, pay=pay)).get(timeout=0)
    assert (one.requests, one.operations()) == ([], [])


def test_a_batch_in_the_body_of_a_transactional_tool_is_refused(one: Duel) -> None:
    act = manual(one)

    @tool(effect="transactional")
    def book() -> None:
        run_calls(calls_of(act, "ab"))

    run = one.run(one.agent(act, book, pay=lambda _state: done(book())))
    assert run.status is RunStatus.FAILED
    assert one.requests == []


def test_a_batch_has_at_most_as_many_calls_as_the_settings_allow(here: Duel) -> None:
    @tool(effect="read", record=False)
    def look(number: int) -> int:
        return number

    most = Settings("sqlite:///x").max_batch

    def pay(_state: Any) -> Any:
        with pytest.raises(
            BadBatch, match=f"has {most + 1} calls, and agent_max_batch allows {most}. Nothing was sent"
        ):
            run_calls([look.call(number) for number in range(most + 1)])
        return done(sum(run_calls([look.call(number) for number in range(most)])))

    assert here.run(here.agent(look, pay=pay)).get(timeout=0) == sum(range(most))


def test_the_largest_batch_is_planned_in_one_commit(here: Duel) -> None:
    """And most of it is dropped when its first call fails."""

    def decline(_what: str) -> str:
        raise Declined

    act = manual(here, decline)
    most = here.runtime.settings.max_batch
    crossed: list[str] = []
    here.runtime.boundary.observer = lambda point: crossed.append(str(point))

    def pay(_state: Any) -> Any:
        with pytest.raises(Declined):
            run_calls([act.call(str(number)) for number in range(most)], max_concurrency=1)
        return done()

    here.run(here.agent(act, pay=pay)).get(timeout=0)
    assert (here.requests, crossed.count("after commit plan")) == (["0"], 1)
    counted = [str(operation.status) for operation in here.operations()]
    assert (counted.count("failed"), counted.count("dropped")) == (1, most - 1)
    here.sound()
