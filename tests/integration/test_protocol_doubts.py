"""No step's code acts on a doubt, whatever it catches, and no step commits one (I14, I15)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Happened, NotHappened, Operation, StepSuspended, Tool, current_run, done, tool
from agent_tasks.current import attempt_of_this_context
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel
from tests.waiting import wait_until

HORIZON = 11.0
TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def timing_out(here: Duel, effect: str = "probed", error: Callable[[], BaseException] = TimeoutError) -> Tool[..., Any]:
    """Return a charge whose first request happens, and whose answer is lost."""

    @tool(
        effect=effect,
        timeout=TIMEOUT,
        name="charge",
        key_lifetime=timedelta(hours=1) if effect == "keyed" else None,
        bind=False,
    )
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) == 1:
            raise error()
        return f"charge {len(here.requests)}"

    if effect == "probed":

        @charge.probe
        def look(_operation: Operation) -> Happened:
            return Happened("charge 1")

    return charge


def swallow_and_end(charge: Any) -> Any:
    try:
        return done(charge(100))
    except BaseException:  # noqa: BLE001 - the point of the test
        return done("the doubt was swallowed")


def swallow_and_call_again(charge: Any) -> Any:
    try:
        return done(charge(100))
    except BaseException:  # noqa: BLE001
        return done(charge(100))


def swallow_and_fail(charge: Any) -> Any:
    try:
        return done(charge(100))
    except BaseException:  # noqa: BLE001
        raise ValueError("something else") from None


def swallow_and_crash(charge: Any) -> Any:
    try:
        return done(charge(100))
    except BaseException:  # noqa: BLE001
        raise SystemExit from None


def call_in_finally(charge: Any) -> Any:
    try:
        return done(charge(100))
    finally:
        if current_run.number == 1:
            charge(100)


def retry_on_exception(charge: Any) -> Any:
    for _ in range(5):
        try:
            return done(charge(100))
        except Exception:  # noqa: BLE001
            continue
    raise AssertionError("unreachable")


def call_in_a_group(charge: Any) -> Any:
    async def one() -> Any:
        return charge(100)

    async def both() -> list[Any]:
        return await asyncio.gather(one(), return_exceptions=True)

    (answer,) = asyncio.run(both())
    return done(answer if isinstance(answer, str) else "the doubt was swallowed")


WAYS = [
    swallow_and_end,
    swallow_and_call_again,
    swallow_and_fail,
    swallow_and_crash,
    call_in_finally,
    retry_on_exception,
    call_in_a_group,
]


@pytest.mark.parametrize("effect", ["probed", "keyed"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_step_that_swallows_a_doubt_neither_acts_on_it_nor_commits_it(
    here: Duel, way: Callable[[Any], Any], effect: str
) -> None:
    charge = timing_out(here, effect)
    order = here.agent(charge, pay=lambda _state: way(charge))

    run = here.run(order)
    assert run.status is RunStatus.WAITING
    here.sound()

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert run.get(timeout=0) == ("charge 1" if effect == "probed" else "charge 2")
    assert len(here.requests) == (1 if effect == "probed" else 2)
    assert len(here.operations()) == 1


@pytest.mark.parametrize("other", ["read", "manual"])
def test_after_a_swallowed_doubt_neither_a_read_nor_a_call_with_a_key_of_its_own_is_made(
    here: Duel, other: str
) -> None:
    charge, calls = timing_out(here), list[str]()

    @tool(effect=other, timeout=TIMEOUT, key=None if other == "read" else lambda text: text, bind=False)
    def tell(text: str) -> None:
        calls.append(text)

    def pay(_state: Any) -> Any:
        try:
            charged = charge(100)
        except BaseException:
            tell("the charge failed")
            raise
        return done(charged)

    order = here.agent(charge, tell, pay=pay)
    run = here.run(order)
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert (run.get(timeout=0), calls) == ("charge 1", [])
    assert len(here.operations()) == 1


class Speechless(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


HOSTILE = {
    "no text": Speechless,
    "a lone surrogate": lambda: TimeoutError("\ud800"),
    "a NUL": lambda: TimeoutError("a\0b"),
    "a huge text": lambda: TimeoutError("x" * 5_000_000),
    "memory": MemoryError,
    "exit": SystemExit,
}


@pytest.mark.parametrize("effect", ["probed", "keyed"])
@pytest.mark.parametrize("error", HOSTILE)
def test_no_exception_of_a_body_reaches_a_step_that_would_charge_again(here: Duel, error: str, effect: str) -> None:
    charge = timing_out(here, effect, HOSTILE[error])
    order = here.agent(charge, pay=lambda _state: retry_on_exception(charge))

    here.run(order)

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert len(here.operations()) == 1
    assert len(here.requests) == (1 if effect == "probed" else 2)


class Unfaithful:
    """A value that raises whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "an object": object,
    "an object that raises": Unfaithful,
    "a lone surrogate": lambda: "\ud800",
    "a lock in a dict": lambda: {"lock": threading.Lock()},
}


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_result_that_cannot_be_stored_is_a_success_that_a_person_completes(here: Duel, what: str) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> Any:
        here.requests.append(cents)
        return UNSTORABLE[what]()

    order = here.agent(charge, pay=lambda _state: retry_on_exception(charge))
    run = here.run(order)

    assert (run.status, here.questions()) == (RunStatus.NEEDS_ATTENTION, ["result"])
    here.sound()
    here.reply(order, "happened", result="ch_1")
    assert (run.get(timeout=0), here.requests) == ("ch_1", [100])


# -- doubts that the next attempt does not ask for ----------------------------------------------------------------------


def crash_after(here: Duel, effect: str, **options: Any) -> Tool[..., Any]:
    """Return a tool whose first request takes its worker with it."""
    if effect == "probed":
        options["timeout"] = TIMEOUT

    @tool(effect=effect, **options, name="charge", bind=False)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) == 1:
            here.meanwhile(order_of[0])
            raise KeyboardInterrupt  # the zombie is never heard of again
        return f"charge {len(here.requests)}"

    if effect == "probed":

        @charge.probe
        def look(operation: Operation) -> Happened:
            return Happened(f"probed {operation.attempts}")

    return charge


order_of: list[Any] = []


@pytest.mark.parametrize("options", [{}, {"key": lambda cents: f"k{cents}"}], ids=["in order", "with a key"])
def test_a_doubt_that_the_next_attempt_does_not_ask_for_is_settled_before_its_commit(
    here: Duel, options: dict[str, Any]
) -> None:
    charge = crash_after(here, "probed", **options)

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge(100)
        return order.steps["ship"]

    order = here.agent(charge, pay=pay, ship=lambda _state: done("shipped"))
    order_of[:] = [order]
    run = here.run(order)
    assert run.status is RunStatus.WAITING
    here.sound()

    here.drive(order)
    assert here.operation().status is OperationStatus.SUCCEEDED
    if not options:  # an effect in the order of the step is an orphan, too
        assert here.questions() == ["orphan"]
        here.reply(order, "ignore")
    assert run.get(timeout=0) == "shipped"
    assert here.requests == [100]
    here.sound()


def test_a_doubt_inside_a_body_is_settled_although_the_outer_call_is_known(here: Duel) -> None:
    """The probe of the outer call says that it happened; nobody asks for the inner one any more (I14)."""
    inner = crash_after(here, "probed")

    @tool(effect="probed", timeout=TIMEOUT, bind=False)
    def outer() -> str:
        return str(inner(100))

    @outer.probe
    def look(_operation: Operation) -> Happened:
        return Happened("as probed")

    order = here.agent(inner, outer, pay=lambda _state: done(outer()))
    order_of[:] = [order]
    run = here.run(order)

    assert here.drive(order) is RunStatus.SUCCEEDED
    assert run.get(timeout=0) == "as probed"
    assert {each.status for each in here.operations()} == {OperationStatus.SUCCEEDED}
    assert here.requests == [100]


# -- threads ---------------------------------------------------------------------------------------------------------------


def started(work: Callable[[], Any]) -> threading.Thread:
    """Start a thread that works for the current run."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    return thread


def test_a_keyed_call_of_a_thread_is_waited_for_before_the_step_is_committed(here: Duel) -> None:
    begun, end = threading.Event(), threading.Event()

    @tool(effect="manual", timeout=TIMEOUT, key=lambda cents: f"k{cents}")
    def charge(cents: int) -> str:
        begun.set()
        assert end.wait(30)
        return "charged"

    threads: list[threading.Thread] = []

    def pay(_state: Any) -> Any:
        threads.append(started(lambda: charge(100)))
        assert begun.wait(30)
        attempt = attempt_of_this_context()
        threads.append(threading.Thread(target=lambda: wait_until(lambda: attempt.over) and end.set()))
        threads[-1].start()
        return done("paid")

    order = here.agent(charge, pay=pay)
    run = here.run(order)

    assert here.operation().status is OperationStatus.SUCCEEDED
    assert run.get(timeout=0) == "paid"
    here.sound()
    for thread in threads:
        thread.join()


def test_a_call_in_another_thread_does_not_change_the_identity_of_the_steps_own(here: Duel) -> None:
    """A crash while the thread is in its body must not make the step's own charge look like a nested one (I4)."""
    begun, end = threading.Event(), threading.Event()

    @tool(effect="repeatable", why="sets a value", key=lambda: "k")
    def slow() -> str:
        begun.set()
        assert end.wait(30)
        return "slow"

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        return "charged"

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            thread = started(slow)
            assert begun.wait(30)
            charge(100)
            end.set()
            thread.join()
            raise MemoryError
        return done((slow(), charge(100)))

    order = here.agent(slow, charge, pay=pay)
    assert here.run(order).get(timeout=0) == ("slow", "charged")
    assert here.requests == [100]


def test_an_unkeyed_call_of_another_thread_is_refused_before_anything_is_recorded(here: Duel) -> None:
    charge = timing_out(here)
    seen: list[str] = []

    def pay(_state: Any) -> Any:
        def call() -> None:
            try:
                charge(100)
            except Exception as error:  # noqa: BLE001
                seen.append(type(error).__name__)

        started(call).join()
        return done()

    here.run(here.agent(charge, pay=pay)).get(timeout=0)
    assert (seen, here.requests, here.operations()) == (["UnorderedCalls"], [], [])


def test_a_call_after_the_step_has_ended_is_refused(here: Duel) -> None:
    contexts: list[contextvars.Context] = []
    charge = timing_out(here)

    def pay(_state: Any) -> Any:
        contexts.append(contextvars.copy_context())
        return done()

    here.run(here.agent(charge, pay=pay)).get(timeout=0)
    with pytest.raises(StepSuspended, match="had ended"):
        contexts[0].run(charge, 100)
    assert here.requests == []


def test_a_probe_that_finds_nothing_lets_the_step_charge_once(here: Duel) -> None:
    @tool(effect="probed", timeout=TIMEOUT, bind=False)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) == 1:
            raise TimeoutError
        return "charged"

    @charge.probe
    def look(_operation: Operation) -> NotHappened:
        return NotHappened()

    order = here.agent(charge, pay=lambda _state: retry_on_exception(charge))
    run = here.run(order)
    assert here.drive(order) is RunStatus.SUCCEEDED
    assert (run.get(timeout=0), here.requests) == ("charged", [100, 100])
