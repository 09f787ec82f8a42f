"""Steps and tools that are ``async def``: order, identity, deadlines, cancels, and what is said where they do not fit (I4-I6, I15)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    AgentTasksError,
    Happened,
    LeaseLost,
    NotAwaited,
    NotHappened,
    Operation,
    RunFailed,
    StepSuspended,
    Tool,
    UnguardedTool,
    UnorderedCalls,
    calls,
    done,
    loops,
    run_calls,
    tool,
)
from agent_tasks.errors import ConfigurationError
from agent_tasks.loops import KeptLoop
from agent_tasks.states import OperationStatus, RunStatus
from agent_tasks.testing import VendorWorld, explore_crashes
from agent_tasks.worker import _refuse_async
from tests.agents import new_app
from tests.duel import Duel, Outage, duel
from tests.forked import forked
from tests.waiting import wait_until

TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def mail_of(here: Duel, **options: Any) -> Tool[..., Any]:
    @tool(effect="manual", timeout=TIMEOUT, **options)
    async def mail(to: str) -> str:
        here.requests.append(to)
        await asyncio.sleep(0)
        return f"mailed {to}"

    return mail


def hanging(here: Duel, effect: str = "manual", **options: Any) -> Tool[..., Any]:
    """A tool whose effect happens, and whose answer never comes."""
    options = {"timeout": TIMEOUT, **options} if effect != "read" else options

    @tool(effect=effect, **options)
    async def hang() -> None:
        here.requests.append("sent")
        await asyncio.get_running_loop().create_future()

    return hang


# -- order and identity ---------------------------------------------------------------------------------------------------


def test_calls_that_are_awaited_one_after_another_are_recorded_in_their_order_and_found_again(here: Duel) -> None:
    mail = mail_of(here)

    async def send(_state: Any) -> Any:
        got = [await mail("kim"), await mail("robin")]
        if len(here.requests) == 2 and here.row()["attempts"] == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(mail, send=send))
    assert run.get(timeout=0) == ["mailed kim", "mailed robin"]
    assert here.requests == ["kim", "robin"]
    assert [operation.args["to"] for operation in here.operations()] == here.requests
    here.sound()


async def gathered(mail: Any) -> None:
    await asyncio.gather(mail("one"), mail("two"))


async def in_tasks(mail: Any) -> None:
    for task in [asyncio.create_task(mail(to)) for to in ("one", "two")]:
        await task


@pytest.mark.parametrize("way", [gathered, in_tasks])
def test_calls_without_a_key_that_run_at_the_same_time_are_refused_before_anything_is_recorded(
    here: Duel, way: Callable[[Any], Any]
) -> None:
    mail = mail_of(here)

    async def send(_state: Any) -> Any:
        with pytest.raises(UnorderedCalls, match="another asyncio task"):
            await way(mail)
        await asyncio.sleep(0)
        return done(await mail("last"))

    assert here.run(here.agent(mail, send=send)).get(timeout=0) == "mailed last"
    assert here.requests == ["last"]
    assert len(here.operations()) == 1


def test_calls_with_keys_run_at_the_same_time_however_many_they_are(here: Duel) -> None:
    everybody = [f"reader {number}" for number in range(40)]
    arrived: list[str] = []
    all_here = asyncio.Event()

    @tool(effect="manual", timeout=TIMEOUT, key=lambda to: to)
    async def mail(to: str) -> str:
        arrived.append(to)
        if len(arrived) == len(everybody):
            all_here.set()
        await all_here.wait()
        return to

    async def send(_state: Any) -> Any:
        return done(await asyncio.gather(*map(mail, everybody)))

    assert here.run(here.agent(mail, send=send)).get(timeout=0) == everybody
    here.sound()


def test_a_tool_inside_an_async_tool_is_awaited_in_its_order(here: Duel) -> None:
    mail = mail_of(here)

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=False)
    async def newsletter() -> list[str]:
        return [await mail("kim"), await mail("robin")]

    async def send(_state: Any) -> Any:
        return done(await newsletter())

    assert here.run(here.agent(mail, newsletter, send=send)).get(timeout=0) == ["mailed kim", "mailed robin"]
    outer = next(o for o in here.operations() if o.tool == "newsletter")
    assert {o.row["parent_operation"] for o in here.operations() if o.tool == "mail"} == {outer.operation_id}


# -- one loop -------------------------------------------------------------------------------------------------------------


def test_all_steps_and_bodies_of_a_process_run_on_one_loop_that_outlives_them(here: Duel) -> None:
    loops: list[Any] = []

    @tool(effect="read")
    async def look() -> int:
        loops.append(asyncio.get_running_loop())
        return len(loops)

    async def first(_state: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        await look()
        return agent.steps["second"]

    async def second(_state: Any) -> Any:
        return done(await look())

    agent = here.agent(look, first=first, second=second)
    assert here.run(agent).get(timeout=0) == 3
    assert len(set(loops)) == 1
    assert not loops[0].is_closed()


def test_the_statements_of_the_ledger_never_run_on_the_loop(here: Duel) -> None:
    mail, crossed = mail_of(here), []
    here.runtime.boundary.observer = lambda point: crossed.append((point.kind, KeptLoop.is_running_here()))

    async def send(_state: Any) -> Any:
        return done(await mail("kim"))

    here.run(here.agent(mail, send=send))
    assert ("commit", False) in crossed
    assert {on_loop for _, on_loop in crossed} == {False}


def test_a_step_that_ends_in_what_ends_a_process_leaves_the_loop_to_others(here: Duel) -> None:
    async def leave(_state: Any) -> Any:
        async def child() -> None:
            raise SystemExit(3)

        await asyncio.create_task(child())

    async def go_on(_state: Any) -> Any:
        return done(await asyncio.sleep(0, "went on"))

    assert here.run(here.agent(leave=leave, name="leaves"), run_id="left").status is RunStatus.NEEDS_ATTENTION
    assert here.run(here.agent(go_on=go_on), run_id="run-2").get(timeout=0) == "went on"


# -- deadlines and cancels ------------------------------------------------------------------------------------------------


def test_the_deadline_of_a_tool_cancels_its_body_and_the_step_sees_no_doubt(here: Duel) -> None:
    hang, seen = hanging(here, timeout=timedelta(seconds=1)), []

    async def send(_state: Any) -> Any:
        try:
            await hang()
        except BaseException as error:
            seen.append(error)
            raise

    run = here.run(here.agent(hang, send=send))
    assert run.status is RunStatus.WAITING
    assert [type(error) for error in seen] == [StepSuspended]
    assert here.operation().status is OperationStatus.UNKNOWN
    here.sound()


async def in_a_thread(blocking: Callable[[], Any]) -> None:
    await asyncio.to_thread(blocking)


async def through_every_cancel(blocking: Callable[[], Any]) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.to_thread(blocking)
    await asyncio.to_thread(blocking)


@pytest.mark.parametrize("way", [in_a_thread, through_every_cancel])
@pytest.mark.parametrize("gives_up", [False, True], ids=["at its deadline", "when its step gives up"])
def test_the_parent_sees_a_body_that_overstays_as_no_cancel_stops_it(
    here: Duel, way: Callable[[Any], Any], gives_up: bool
) -> None:
    """In prefork it kills the process then. A call that ended before that would be done again beside the old one."""
    overdue, goes_on, begun = threading.Event(), threading.Event(), asyncio.Event()

    @tool(effect="manual", timeout=timedelta(seconds=1), settle=timedelta(seconds=5), key=lambda: "once")
    async def charge() -> None:
        begun.set()
        await way(lambda: goes_on.wait(30))

    def look() -> None:
        """Longer past the deadline than the parent needs: a grace of a second, and two looks."""
        with suppress(AssertionError):
            wait_until(
                lambda: any(s.deadline + 1.0 < here.runtime.clock.local() for s in here.runtime.slots.leases()),
                limit_seconds=10,
            )
            overdue.set()
        goes_on.set()

    async def send(_state: Any) -> Any:
        if gives_up:
            calling = asyncio.create_task(charge())
            await begun.wait()
            await asyncio.wait_for(calling, 0.01)
        return done(await charge())

    watcher = threading.Thread(target=look)
    watcher.start()
    run = here.run(here.agent(charge, send=send))
    watcher.join()
    assert overdue.is_set()
    assert run.status in (RunStatus.WAITING, RunStatus.SUCCEEDED)  # what it returned all the same counts
    assert here.operation().attempts == 1
    here.sound()


def deaf(here: Duel, ends: threading.Event, came_to: Callable[[], Any], **options: Any) -> Tool[..., Any]:
    """A tool whose first body hears no cancel until it is let go; the second one is quick."""

    @tool(**{"effect": "manual", "timeout": timedelta(seconds=0.2), "key": lambda: "once", **options})
    async def charge() -> Any:
        here.requests.append("sent")
        while len(here.requests) == 1 and not ends.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return came_to() if len(here.requests) == 1 else "charged again"

    return charge


def given_up(here: Duel, charge: Tool[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Agent, Any]:
    """Let a run give the first body up; nothing is killed here."""
    monkeypatch.setattr(loops, "END_SECONDS", 0.05)

    async def send(_state: Any) -> Any:
        return done(await charge())

    agent = here.agent(charge, send=send)
    run = here.run(agent)
    assert (run.status, here.operation().status) == (RunStatus.WAITING, OperationStatus.UNKNOWN)
    return agent, run


def evidence_of(here: Duel) -> list[str]:
    return [str(fact["what"]) for fact in here.operation().evidence]


def test_what_a_body_returns_that_was_given_up_settles_the_doubt_about_it(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    agent, run = given_up(here, deaf(here, ends, lambda: "charged"), monkeypatch)
    ends.set()
    wait_until(lambda: run.status is RunStatus.QUEUED, "the run was woken")
    assert (here.operation().status, evidence_of(here)) == (OperationStatus.SUCCEEDED, ["unknown", "late succeeded"])
    here.work(agent)
    assert (run.get(timeout=0), here.requests) == ("charged", ["sent"])
    here.sound()


def test_what_a_body_returns_late_after_its_call_was_done_again_is_shown_as_doubled(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    agent, run = given_up(here, deaf(here, ends, lambda: "charged"), monkeypatch)
    here.later(agent, 60)
    here.reply(agent, "did-not-happen")
    assert run.get(timeout=5) == "charged again"
    ends.set()
    wait_until(lambda: here.questions() == ["doubled"], "the late outcome is shown")
    assert (run.get(timeout=0), here.operation().result) == ("charged again", "charged again")
    assert "late succeeded" in evidence_of(here)
    here.sound()


def named_late(here: Duel, ends: threading.Event, heard: list[BaseException]) -> Tool[..., Any]:
    """As :func:`deaf`, and the body says the vendor's name of its effect when it is let go."""

    @tool(effect="manual", timeout=timedelta(seconds=0.2), key=lambda: "once", bind=True)
    async def charge(operation: Operation) -> Any:
        here.requests.append("sent")
        if len(here.requests) > 1:
            await operation.aio.record_external_id("pi_2")
            return "charged again"
        while not ends.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        await operation.aio.record_external_id("pi_1")
        try:
            await operation.aio.save_progress("charged")
        except BaseException as error:  # noqa: BLE001 - what it hears is what this is about
            heard.append(error)
        return "charged"

    return charge


def test_a_body_that_was_given_up_says_the_vendors_name_of_its_effect_and_what_it_returns_settles_it(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, heard = threading.Event(), list[BaseException]()
    agent, run = given_up(here, named_late(here, ends, heard), monkeypatch)
    ends.set()
    wait_until(lambda: run.status is RunStatus.QUEUED, "the run was woken")
    assert evidence_of(here) == ["unknown", "late external id", "late succeeded"]
    assert [type(error) for error in heard] == [LeaseLost]
    here.work(agent)
    assert (run.get(timeout=0), here.requests) == ("charged", ["sent"])
    here.sound()


def test_the_name_of_an_effect_that_comes_late_is_shown_as_doubled_after_its_call_was_done_again(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, heard = threading.Event(), list[BaseException]()
    agent, run = given_up(here, named_late(here, ends, heard), monkeypatch)
    here.later(agent, 60)
    here.reply(agent, "did-not-happen")
    assert run.get(timeout=5) == "charged again"
    ends.set()
    wait_until(lambda: "late succeeded" in evidence_of(here), "the late outcome is kept")
    assert here.questions() == ["doubled"]
    assert ("late external id", "pi_1") in [(fact["what"], fact.get("said")) for fact in here.operation().evidence]
    assert here.operation().external_id == "pi_2"
    here.sound()


class Declined(Exception):
    """The vendor said no."""


@pytest.mark.parametrize(
    ("options", "status", "kept"),
    [
        ({"refused": (Declined,)}, OperationStatus.FAILED, ["unknown", "late failed"]),
        ({}, OperationStatus.UNKNOWN, ["unknown", "late unknown"]),
    ],
    ids=["a refusal", "any other exception"],
)
def test_what_a_body_raises_that_was_given_up_is_kept(
    here: Duel, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], status: OperationStatus, kept: list[str]
) -> None:
    def declines() -> None:
        raise Declined("no")

    ends = threading.Event()
    given_up(here, deaf(here, ends, declines, **options), monkeypatch)
    ends.set()
    wait_until(lambda: len(evidence_of(here)) == 2, "it is kept")
    assert (here.operation().status, evidence_of(here)) == (status, kept)
    here.sound()


def test_a_late_outcome_waits_for_a_ledger_that_is_away(here: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    _, run = given_up(here, deaf(here, ends, lambda: "charged"), monkeypatch)
    here.runtime.boundary.observer = Outage("outcome", "before", times=2)
    ends.set()
    wait_until(lambda: run.status is RunStatus.QUEUED, "the run was woken")
    assert here.operation().result == "charged"
    here.sound()


class Struck(Exception):
    """What a soft time limit raises in the thread that waits for a body."""


def test_a_time_limit_ends_no_call_before_the_thread_that_its_body_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would have its effect beside that of the next attempt, and no parent would know of it."""
    monkeypatch.setattr(loops, "END_SECONDS", 0.05)
    goes_on, ended, timers = threading.Event(), [], []

    def strike(*_: object) -> None:
        timers.append(threading.Timer(0.5, goes_on.set))
        timers[0].start()
        raise Struck

    def blocking() -> None:
        ended.append(goes_on.wait(30))

    async def body() -> None:
        await asyncio.to_thread(blocking)

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Struck):
            loops.run_body(body(), "a body", 20, with_threads=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended == [True]


def test_a_body_that_a_blocked_loop_keeps_from_beginning_until_its_deadline_leaves_no_doubt(here: Duel) -> None:
    @tool(effect="manual", timeout=timedelta(seconds=0.1), key=lambda: "once")
    async def charge() -> None:
        here.requests.append("sent")

    given_up, never_sent = threading.Event(), here.runtime.recorder.never_sent

    def gives_up(*arguments: Any) -> None:
        never_sent(*arguments)
        given_up.set()

    here.runtime.recorder.never_sent = gives_up  # type: ignore[method-assign]

    async def send(_state: Any) -> Any:
        task = asyncio.create_task(charge())
        await asyncio.sleep(0)
        wait_until(given_up.is_set, limit_seconds=30)  # on the loop, as no step should
        return done(await task)

    run = here.run(here.agent(charge, send=send))
    assert here.requests == []
    assert (run.status, here.operation().status) == (RunStatus.WAITING, OperationStatus.PENDING)
    assert "the deadline of charge passed before its body began" in str(run.waiting_for)
    here.sound()


async def under_wait_for(call: Any) -> None:
    await asyncio.wait_for(call(), 0.2)


async def in_a_task_that_is_cancelled_again_and_again(call: Any) -> None:
    task = asyncio.create_task(call())
    while not task.done():
        await asyncio.sleep(0.1)
        task.cancel()
    await task


async def gathered_with_what_it_raises(call: Any) -> None:
    task = asyncio.create_task(call())
    asyncio.get_running_loop().call_later(0.2, task.cancel)
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "way", [under_wait_for, in_a_task_that_is_cancelled_again_and_again, gathered_with_what_it_raises]
)
def test_a_step_that_gives_up_in_the_middle_of_an_effect_acts_on_no_doubt(
    here: Duel, way: Callable[[Any], Any]
) -> None:
    hang = hanging(here, key=lambda: "once")

    @tool(effect="manual", timeout=TIMEOUT)
    async def charge_elsewhere() -> None:
        here.requests.append("doubled")

    async def send(_state: Any) -> Any:
        with suppress(BaseException):
            await way(hang)
        await charge_elsewhere()
        return done()

    run = here.run(here.agent(hang, charge_elsewhere, send=send))
    assert run.status is RunStatus.WAITING
    # On a busy machine it gives up before the body began, and nothing is in doubt then.
    status = OperationStatus.UNKNOWN if here.requests else OperationStatus.PENDING
    assert (here.requests[:1], here.operation().status) == (here.requests, status)
    here.sound()


def test_a_result_that_came_before_the_cancel_was_heard_counts(here: Duel) -> None:
    begun = asyncio.Event()

    @tool(effect="manual", timeout=TIMEOUT, key=lambda: "once")
    async def stubborn() -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return "done all the same"

    async def send(_state: Any) -> Any:
        task = asyncio.create_task(stubborn())
        await begun.wait()
        task.cancel()
        return done(await task)

    assert here.run(here.agent(stubborn, send=send)).get(timeout=0) == "done all the same"


def test_a_read_that_is_given_up_is_a_time_out_for_the_step_and_is_bought_again(here: Duel) -> None:
    look = hanging(here, effect="read", key=lambda: "price")

    async def send(_state: Any) -> Any:
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(look(), 0.2)
        return done("without the price")

    assert here.run(here.agent(look, send=send)).get(timeout=0) == "without the price"
    assert here.operations() == []


def test_a_cancel_before_the_body_began_sends_nothing_and_leaves_no_doubt(here: Duel) -> None:
    mail, intent_is_written, cancelled = mail_of(here, key=lambda to: to), threading.Event(), threading.Event()

    def hold_the_first_intent(point: Any) -> None:
        if str(point) == "after commit intent" and not cancelled.is_set():
            intent_is_written.set()
            assert cancelled.wait(30)

    here.runtime.boundary.observer = hold_the_first_intent

    async def send(_state: Any) -> Any:
        task = asyncio.create_task(mail("kim"))
        if not cancelled.is_set():
            await asyncio.to_thread(intent_is_written.wait, 30)
            task.cancel()
            await asyncio.sleep(0.01)  # the cancel is heard
            cancelled.set()
        return done(await task)

    agent = here.agent(mail, send=send)
    run = here.run(agent)
    assert (run.status, here.requests) == (RunStatus.WAITING, [])
    assert here.operation().status is OperationStatus.PENDING
    assert here.drive(agent) is RunStatus.SUCCEEDED
    assert here.requests == ["kim"]


# -- probes ---------------------------------------------------------------------------------------------------------------


def test_an_async_probe_is_asked(here: Duel) -> None:
    @tool(effect="probed", timeout=timedelta(seconds=5), bind=False)
    async def charge() -> str:
        here.requests.append("sent")
        raise ConnectionError

    @charge.probe
    async def outcome(operation: Operation) -> Happened:
        await asyncio.sleep(0)
        return Happened("found")

    async def pay(_state: Any) -> Any:
        return done(await charge())

    agent = here.agent(charge, pay=pay)
    run = here.run(agent)
    assert here.drive(agent) is RunStatus.SUCCEEDED
    assert (run.get(timeout=0), here.requests) == ("found", ["sent"])


# -- what does not fit ----------------------------------------------------------------------------------------------------


def why(here: Duel, *tools: Any, step: Callable[[Any], Any]) -> str:
    with pytest.raises(RunFailed) as failed:
        here.run(here.agent(*tools, pay=step)).get(timeout=0)
    assert (here.requests, here.operations()) == ([], [])
    assert NotAwaited.__name__ in str(failed.value)
    return str(failed.value)


def test_an_async_tool_in_a_plain_step_is_refused_and_the_step_is_told_how(here: Duel) -> None:
    mail = mail_of(here)
    said = why(here, mail, step=lambda _state: done(mail("kim")))
    assert "no event loop runs where step 'pay' called it" in said
    assert "make what calls it `async def`, up to the step, and write `await mail(…)`" in said


def test_a_call_that_nobody_awaits_fails_the_step(here: Duel) -> None:
    mail = mail_of(here)

    async def forgets(_state: Any) -> Any:
        mail("kim")
        return done()

    assert "called tool 'mail' and ended before that was awaited" in why(here, mail, step=forgets)


def test_a_plain_tool_in_an_async_step_is_refused_and_awaited_by_aio(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def mail(to: str) -> str:
        here.requests.append(to)
        return threading.current_thread().name

    async def blocks(_state: Any) -> Any:
        return done(mail("kim"))

    async def waits(_state: Any) -> Any:
        return done([await mail.aio("kim"), await mail.aio("robin")])

    assert "write `await mail.aio(…)`" in why(here, mail, step=blocks)
    assert here.run(here.agent(mail, name="waits", pay=waits), run_id="run-2").get(timeout=0) == ["agent-call"] * 2
    assert here.requests == ["kim", "robin"]


def test_a_batch_of_async_tools_is_made_by_a_plain_step_and_refused_on_the_loop(here: Duel) -> None:
    mail = mail_of(here, bind=False)
    letters = Agent("letters", app=here.app, tools=[mail])

    @letters.step(start=True)
    async def ask(state: Any) -> Any:
        with pytest.raises(NotAwaited, match="run_calls was called on the event loop of step 'ask'"):
            run_calls([mail.call("kim")])
        return calls([mail.call("lee"), mail.call("max")], then=add)

    @letters.step
    async def add(state: Any, results: list[str]) -> Any:
        state["mailed"] = results
        return last

    @letters.step
    def last(state: Any) -> Any:
        return done([*state["mailed"], *run_calls([mail.call("noa"), mail.call("ole")])])

    assert here.run(letters).get(timeout=0) == ["mailed lee", "mailed max", "mailed noa", "mailed ole"]
    assert sorted(here.requests) == ["lee", "max", "noa", "ole"]


def test_a_plain_step_may_await_on_a_loop_of_its_own(here: Duel) -> None:
    mail = mail_of(here)

    async def main() -> list[str]:
        return [await mail("kim"), await mail("robin")]

    run = here.run(here.agent(mail, send=lambda _state: done(asyncio.run(main()))))
    assert run.get(timeout=0) == ["mailed kim", "mailed robin"]


def test_a_transactional_tool_cannot_be_async() -> None:
    async def book() -> None: ...

    with pytest.raises(UnguardedTool, match="tool 'book' must be a plain function, got async"):
        tool(effect="transactional")(book)


def test_a_gevent_worker_refuses_what_is_async(here: Duel) -> None:
    async def send(_state: Any) -> Any: ...

    agent = here.agent(mail_of(here), send=send)
    with pytest.raises(
        ConfigurationError, match=r"step 'send' and tool 'mail' of agent 'order' are async, .*prefork, threads"
    ):
        _refuse_async([agent])


# -- crashes --------------------------------------------------------------------------------------------------------------


def async_agent(world: VendorWorld) -> Agent:
    @tool(effect="probed", timeout=timedelta(seconds=10), settle=timedelta(seconds=5), bind=True)
    async def charge(operation: Operation, what: str) -> int:
        await asyncio.sleep(0)
        return world.act(operation.operation_id)

    @charge.probe
    async def look(operation: Operation) -> Happened | NotHappened:
        number = world.look_up(operation.operation_id)
        return NotHappened() if number is None else Happened(number)

    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True, key=lambda what: what)
    async def order(operation: Operation, what: str) -> int:
        return world.act(operation.operation_id, key=operation.idempotency_key)

    agent = Agent("async", app=new_app(), tools=[charge, order])

    @agent.step(start=True)
    async def first(state: Any) -> Any:
        state["charged"] = await charge("tea")
        return second

    @agent.step
    async def second(state: Any) -> Any:
        ordered = [await order("tea"), await asyncio.wait_for(order("milk"), 600)]
        return done([state["charged"], *ordered, await charge("milk")])

    return agent


@pytest.mark.slow
def test_crashes_of_an_async_agent_repeat_no_effect() -> None:
    world = VendorWorld()
    found = explore_crashes(async_agent(world), {}, world, brokers=("redelivers",))
    assert not found.failures, found.report()


# -- processes ------------------------------------------------------------------------------------------------------------


def test_a_process_that_is_forked_after_the_loop_was_made_makes_its_own() -> None:
    async def look() -> int:
        return os.getpid()

    assert KeptLoop.of_this_process().run(look(), "a look") == os.getpid()
    assert forked(lambda: KeptLoop.of_this_process().run(look(), "a look") == os.getpid() or os._exit(9)) == 0


def test_what_would_wait_for_itself_on_the_loop_is_refused() -> None:
    kept = KeptLoop.of_this_process()

    async def inner() -> None: ...

    async def outer() -> None:
        kept.run(inner(), "run 'inner'")

    with pytest.raises(AgentTasksError, match=r"run 'inner' was called on the event loop .* await asyncio\.to_thread"):
        kept.run(outer(), "run 'outer'")
