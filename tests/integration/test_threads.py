"""Calls from threads and asyncio tasks: who works for the run, whose calls have an order, and nothing doubles (I4, I14)."""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    CarriedElsewhere,
    OutsideRun,
    RunFailed,
    StepSuspended,
    UnorderedCalls,
    carry_run,
    current_run,
    done,
    tool,
)
from agent_tasks.current import attempt_of_this_context
from agent_tasks.ledger import Ledger
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel
from tests.waiting import wait_until

TIMEOUT = timedelta(seconds=10)
READERS = ["ada", "ben", "cy", "dee"]


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    """On SQLite only, for what asks nothing of the database."""
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        yield both


def keyed_mail(here: Duel) -> Any:
    @tool(effect="manual", timeout=TIMEOUT, key=lambda to: to)
    def mail(to: str) -> str:
        here.requests.append(to)
        return f"mailed {to}"

    return mail


def plain_charge(here: Duel) -> Any:
    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        return f"charged {cents}"

    return charge


# -- carry_run -------------------------------------------------------------------------------------------------------------


def in_threads(mail: Any) -> list[str]:
    got: list[str] = []
    carried = carry_run(lambda to: got.append(mail(to)))
    threads = [threading.Thread(target=carried, args=(to,)) for to in READERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(got)


def in_a_pool(mail: Any) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return [pool.submit(carry_run(mail), READERS[0]).result(), *pool.map(carry_run(mail), READERS[1:])]


def in_asyncio_threads(mail: Any) -> list[str]:
    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(mail, to) for to in READERS))

    return asyncio.run(all_of_them())


def in_the_loops_executor(mail: Any) -> list[str]:
    async def all_of_them() -> list[str]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(None, carry_run(mail), to) for to in READERS))

    return asyncio.run(all_of_them())


WAYS = [in_threads, in_a_pool, in_asyncio_threads, in_the_loops_executor]


@pytest.mark.parametrize("way", WAYS)
def test_keyed_calls_may_be_made_in_any_threads_that_carry_the_run(here: Duel, way: Callable[[Any], list[str]]) -> None:
    mail = keyed_mail(here)

    def send(_state: Any) -> Any:
        got = way(mail)
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(mail, send=send))

    assert run.get(timeout=0) == [f"mailed {to}" for to in READERS]
    assert sorted(here.requests) == READERS
    assert {operation.row["call_key"] for operation in here.operations()} == set(READERS)
    here.sound()


@pytest.mark.parametrize("executor", [False, True])
def test_a_thread_that_does_not_carry_the_run_is_outside_of_it(one: Duel, executor: bool) -> None:
    mail = keyed_mail(one)

    async def in_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, mail, "kim")

    def in_pool() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(mail, "kim").result()

    def send(_state: Any) -> Any:
        with pytest.raises(OutsideRun):
            asyncio.run(in_executor()) if executor else in_pool()
        return done()

    one.run(one.agent(mail, send=send)).get(timeout=0)
    assert (one.requests, one.operations()) == ([], [])


def test_what_is_carried_keeps_its_name_and_refuses_what_would_run_elsewhere() -> None:
    async def later() -> None: ...

    def some() -> Iterator[int]:
        yield 1

    assert carry_run(plain_charge).__name__ == "plain_charge"
    for lazy in (later, some):
        with pytest.raises(TypeError, match=f"got '{lazy.__name__}', which is async or a generator"):
            carry_run(lazy)


class Later:
    async def __call__(self) -> None: ...

    async def method(self) -> None: ...


@pytest.mark.parametrize(
    "lazy", [Later(), Later().method, functools.partial(Later().method)], ids=["object", "method", "partial"]
)
def test_whatever_can_be_seen_to_be_async_is_refused(lazy: Any) -> None:
    with pytest.raises(TypeError, match="which is async or a generator"):
        carry_run(lazy)


@pytest.mark.parametrize("hidden", [lambda: Later()() or None, functools.partial(Later())], ids=["lambda", "partial"])
def test_what_turns_out_to_be_async_is_refused_at_the_call(hidden: Any) -> None:
    with pytest.raises(TypeError, match="which is async or a generator"):
        carry_run(hidden)()


@pytest.mark.parametrize("nothing", [None, 5, "mail"])
def test_what_cannot_be_called_is_not_carried(nothing: Any) -> None:
    with pytest.raises(TypeError, match=f"carry_run takes a plain function, got {nothing!r}, which cannot be called"):
        carry_run(nothing)


def test_a_carried_function_that_outlives_its_step_changes_nothing(one: Duel) -> None:
    mail = keyed_mail(one)
    left: list[Callable[[str], str]] = []

    def send(_state: Any) -> Any:
        left.append(carry_run(mail))
        return done()

    one.run(one.agent(mail, send=send)).get(timeout=0)
    said = "'mail' was carried in step 'send' of run 'run-1', attempt 1, and was called after that step had ended. Nothing was"
    with ThreadPoolExecutor(1) as pool, pytest.raises(CarriedElsewhere, match=said):
        pool.submit(left[0], "kim").result()
    assert (one.requests, one.operations()) == ([], [])


def here_and_now(carried: Callable[[str], str]) -> str:
    return carried("kim")


def in_another_thread(carried: Callable[[str], str]) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(carried, "kim").result()


@pytest.mark.parametrize("call", [here_and_now, in_another_thread])
def test_a_function_that_another_run_carried_is_refused_and_the_run_that_calls_it_is_told(one: Duel, call: Any) -> None:
    mail = keyed_mail(one)
    kept: list[Callable[[str], str]] = []

    def send(_state: Any) -> Any:
        if not kept:  # as a module's cache does
            kept.append(carry_run(mail))
        return done(call(kept[0]))

    order = one.agent(mail, send=send)
    assert one.run(order, "run-a").get(timeout=0) == "mailed kim"
    run = one.run(order, "run-b")
    with pytest.raises(RunFailed, match="'mail' was carried in step 'send' of run 'run-a', attempt 1, and was called"):
        run.get(timeout=0)
    assert (run.status, one.requests) == (RunStatus.FAILED, ["kim"])  # at once: its lease was not left to run out
    one.sound()


def test_a_function_that_an_earlier_attempt_carried_is_refused_and_not_tried_again(one: Duel) -> None:
    mail = keyed_mail(one)
    kept: list[Callable[[str], str]] = []

    def send(_state: Any) -> Any:
        if not kept:
            kept.append(carry_run(mail))
            raise ConnectionError
        return done(kept[0]("kim"))

    order = Agent("order", app=one.app, tools=[mail])
    order.step(send, name="send", max_retries=5, default_retry_delay=1)
    run = one.run(order)
    one.later(order, 1)
    with pytest.raises(
        RunFailed, match="of run 'run-1', attempt 1, and was called in step 'send' of run 'run-1', attempt 2"
    ):
        run.get(timeout=0)
    assert one.requests == []


def test_a_step_that_waits_for_what_another_run_left_behind_fails_and_says_why(one: Duel) -> None:
    """The carried function was called in time, and its tool after the end of the step."""
    mail = keyed_mail(one)
    goes_on, left = threading.Event(), []

    def late() -> str:
        assert goes_on.wait(30)
        return mail("kim")

    with ThreadPoolExecutor(1) as pool:

        def send(_state: Any) -> Any:
            if not left:
                left.append(pool.submit(carry_run(late)))
                return done("left it behind")
            goes_on.set()
            return done(left[0].result())

        order = one.agent(mail, send=send)
        assert one.run(order, "run-a").get(timeout=0) == "left it behind"
        run = one.run(order, "run-b")
    with pytest.raises(RunFailed, match="another attempt was suspended by: run 'run-a': tool 'mail' was called after"):
        run.get(timeout=0)
    assert (one.requests, run.status) == ([], RunStatus.FAILED)
    one.sound()


# -- the end of a step -------------------------------------------------------------------------------------------------------


def test_a_call_made_inside_one_that_the_end_waits_for_is_made_too(here: Duel) -> None:
    """The step returns while a thread is in the body of the outer call; its inner call belongs to it (I14)."""
    begun = threading.Event()
    charge = plain_charge(here)

    @tool(effect="manual", timeout=TIMEOUT, key=lambda: "k")
    def outer() -> str:
        begun.set()
        wait_until(lambda: attempt_of_this_context().over)  # type: ignore[union-attr]
        return charge(100) + charge(200)

    threads: list[threading.Thread] = []

    def pay(_state: Any) -> Any:
        threads.append(threading.Thread(target=carry_run(outer)))
        threads[0].start()
        assert begun.wait(30)
        return done("paid")

    run = here.run(here.agent(charge, outer, pay=pay))
    threads[0].join()

    assert run.get(timeout=0) == "paid"
    assert here.requests == [100, 200]
    assert {operation.status for operation in here.operations()} == {OperationStatus.SUCCEEDED}
    here.sound()


def test_a_call_that_outlasts_the_steps_time_limit_keeps_the_step_from_being_committed(one: Duel) -> None:
    begun, end = threading.Event(), threading.Event()

    @tool(effect="repeatable", why="sets a value", key=lambda: "k")
    def slow() -> str:
        if not begun.is_set():
            begun.set()
            assert end.wait(30)
        return "slow"

    threads: list[threading.Thread] = []

    def pay(_state: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=carry_run(slow)))
            threads[0].start()
            assert begun.wait(30)
            one.runtime.clock.advance(one.runtime.settings.step_timeout_seconds)
        return done("paid")

    order = one.agent(slow, pay=pay)

    def look() -> None:
        """A parent that looks twice a second kills the process while it works: its place is not given back before that."""
        wait_until(begun.is_set)
        wait_until(lambda: one.runtime.slots.leases()[0].deadline <= one.runtime.clock.local())
        since = time.monotonic()
        wait_until(lambda: one.runtime.slots.leases() == [] or time.monotonic() - since > 1.2)
        seen.extend(one.runtime.slots.leases())

    seen: list[Any] = []
    watcher = threading.Thread(target=look)
    watcher.start()
    run = one.run(order)
    watcher.join()
    assert [lease.run_id for lease in seen] == ["run-1"]
    assert run.status is RunStatus.RUNNING  # its lease is not renewed any more, and runs out
    one.sound()
    end.set()
    threads[0].join()
    assert one.runtime.slots.leases() == []  # the call's end has not taken the attempt's place again

    one.later(order, 0.01)
    one.later(order, one.runtime.settings.lease_seconds)
    assert one.drive(order) is RunStatus.SUCCEEDED
    one.sound()


# -- one key in many threads --------------------------------------------------------------------------------------------------


def test_the_same_key_in_many_threads_at_once_is_one_effect(here: Duel) -> None:
    """Each of them would find its own token in the row, and take it for the lost answer to its own intent."""

    @tool(effect="manual", timeout=TIMEOUT, key=lambda to: to)
    def mail(to: str) -> str:
        here.requests.append(to)
        attempt = attempt_of_this_context()
        assert attempt is not None
        others = len(READERS) - 1
        wait_until(lambda: len(here.requests) > 1 or len(attempt._calls._waiters) == others)  # type: ignore[attr-defined]
        return f"mailed {to}"

    def send(_state: Any) -> Any:
        with ThreadPoolExecutor(len(READERS)) as pool:
            return done(list(pool.map(carry_run(mail), ["kim"] * len(READERS))))

    run = here.run(here.agent(mail, send=send))
    assert run.get(timeout=0) == ["mailed kim"] * len(READERS)
    assert here.requests == ["kim"]


def test_a_keyed_call_in_its_own_body_is_refused(one: Duel) -> None:
    depth: list[int] = []

    @tool(effect="repeatable", why="sets a value", key=lambda: "k")
    def outer() -> str:
        depth.append(1)
        return str(outer())

    run = one.run(one.agent(outer, pay=lambda _state: done(outer())))
    with pytest.raises(RunFailed, match="would wait for itself"):
        run.get(timeout=0)
    assert depth == [1]


def test_a_key_that_two_threads_use_for_different_arguments_is_noticed(here: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT, key=lambda cents: "one")
    def charge(cents: int) -> str:
        here.requests.append(cents)
        return "charged"

    def pay(_state: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return done(list(pool.map(carry_run(charge), [100, 200])))

    run = here.run(here.agent(charge, pay=pay))
    assert (run.status, here.questions()) == (RunStatus.NEEDS_ATTENTION, ["conflict"])
    assert len(here.requests) == 1


# -- asyncio ---------------------------------------------------------------------------------------------------------------------


def test_one_main_coroutine_calls_tools_in_the_order_of_its_program(here: Duel) -> None:
    charge = plain_charge(here)

    async def main() -> list[str]:
        first = charge(100)
        await asyncio.sleep(0)
        return [first, await helper(200)]

    async def helper(cents: int) -> str:  # awaited in main's own task
        return str(charge(cents))

    def pay(_state: Any) -> Any:
        got = [*asyncio.run(main()), *asyncio.run(main()), charge(300)]  # a second loop has a second owner
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(charge, pay=pay))
    assert run.get(timeout=0) == [f"charged {cents}" for cents in (100, 200, 100, 200, 300)]
    assert here.requests == [100, 200, 100, 200, 300]
    assert [operation.row["ordinal"] for operation in here.operations()] == [0, 1, 2, 3, 4]


async def gathered(work: Callable[[int], Any]) -> list[Any]:
    async def one(number: int) -> Any:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        return work(number)

    return await asyncio.gather(one(1), one(2), return_exceptions=True)


async def in_a_task_group(work: Callable[[int], Any]) -> list[Any]:
    got: list[Any] = []

    async def one(number: int) -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        try:
            got.append(work(number))
        except UnorderedCalls as error:
            got.append(error)

    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
        group.create_task(one(1))
        group.create_task(one(2))
    return got


GROUPS = [gathered] + ([in_a_task_group] if sys.version_info >= (3, 11) else [])


@pytest.mark.parametrize("group", GROUPS)
def test_of_two_tasks_side_by_side_one_is_refused_whichever_comes_first(one: Duel, group: Any) -> None:
    charge = plain_charge(one)

    def pay(_state: Any) -> Any:
        refused = [e for e in asyncio.run(group(charge)) if isinstance(e, UnorderedCalls)]
        assert "another asyncio task than the one in which step 'pay' makes its calls" in str(refused[0])
        return done(len(refused))  # nothing was sent for it, so the step may go on

    assert one.run(one.agent(charge, pay=pay)).get(timeout=0) == 1
    assert len(one.requests) == len(one.operations()) == 1


def test_a_callback_of_the_loop_and_a_later_task_have_no_order(one: Duel) -> None:
    charge = plain_charge(one)
    said: list[str] = []

    def try_to_call() -> None:
        try:
            charge(1)
        except UnorderedCalls as error:
            said.append(str(error))

    async def main() -> None:
        asyncio.get_running_loop().call_soon(try_to_call)
        await asyncio.sleep(0)
        charge(2)
        await asyncio.create_task(asyncio.to_thread(try_to_call))
        task = asyncio.create_task(asyncio.sleep(0))
        task.add_done_callback(lambda _task: try_to_call())
        await task
        await asyncio.sleep(0)

    def pay(_state: Any) -> Any:
        asyncio.run(main())
        return done()

    one.run(one.agent(charge, pay=pay)).get(timeout=0)
    assert [text.split("was called from ")[1].split(" than")[0] for text in said] == [
        "a callback of the event loop",
        "another thread",
        "another asyncio task",
    ]
    assert one.requests == [2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_an_eager_task_is_a_task_of_its_own(one: Duel) -> None:
    charge = plain_charge(one)

    async def call() -> Any:
        return charge(2)

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        charge(1)
        with pytest.raises(UnorderedCalls):
            await asyncio.create_task(call())

    def pay(_state: Any) -> Any:
        asyncio.run(main())
        return done()

    one.run(one.agent(charge, pay=pay)).get(timeout=0)
    assert one.requests == [1]


def test_wait_for_keeps_the_order_where_it_awaits_in_the_own_task(one: Duel) -> None:
    """Before Python 3.12 it starts a task."""
    charge = plain_charge(one)

    async def call() -> Any:
        return charge(2)

    async def main() -> Any:
        charge(1)
        return await asyncio.wait_for(call(), 60)

    def pay(_state: Any) -> Any:
        try:
            return done(asyncio.run(main()))
        except UnorderedCalls:
            return done("refused")

    got = one.run(one.agent(charge, pay=pay)).get(timeout=0)
    assert got == ("charged 2" if sys.version_info >= (3, 12) else "refused")


def test_a_step_that_begins_on_a_running_loop_has_an_order_there(one: Duel) -> None:
    """As in a notebook, which runs a whole run in one of its own tasks."""
    charge = plain_charge(one)
    order = one.agent(charge, pay=lambda _state: done([charge(1), charge(2)]))

    async def cell() -> Any:
        return one.run(order).get(timeout=0)

    assert asyncio.run(cell()) == ["charged 1", "charged 2"]


def test_calls_of_a_body_are_in_order_in_the_thread_that_runs_it(here: Duel) -> None:
    charge = plain_charge(here)

    @tool(effect="manual", timeout=TIMEOUT, key=lambda number: f"outer {number}")
    def outer(number: int) -> str:
        return charge(number) + charge(10 * number)

    def pay(_state: Any) -> Any:
        with ThreadPoolExecutor(3) as pool:
            got = list(pool.map(carry_run(outer), [1, 2, 3]))
        if current_run.number == 1:
            raise MemoryError
        return done(got)

    run = here.run(here.agent(charge, outer, pay=pay))
    assert run.get(timeout=0) == ["charged 1charged 10", "charged 2charged 20", "charged 3charged 30"]
    assert sorted(here.requests) == [1, 2, 3, 10, 20, 30]
    here.sound()


def test_what_goes_on_after_its_body_has_ended_has_no_order(one: Duel) -> None:
    charge = plain_charge(one)
    left: list[Callable[[int], str]] = []

    @tool(effect="repeatable", why="sets a value")
    def outer() -> str:
        left.append(carry_run(charge))
        return "done"

    def pay(_state: Any) -> Any:
        outer()
        with pytest.raises(UnorderedCalls, match="what went on after the end"):
            left[0](1)
        return done()

    one.run(one.agent(charge, outer, pay=pay)).get(timeout=0)
    assert one.requests == []


def test_a_read_that_is_not_recorded_needs_no_order(one: Duel) -> None:
    look = tool(effect="read", record=False, name="look")(lambda number: number * 2)

    def pay(_state: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return done([list(pool.map(carry_run(look), [1, 2])), asyncio.run(gathered(look))])

    assert one.run(one.agent(look, pay=pay)).get(timeout=0) == [[2, 4], [2, 4]]
    assert one.operations() == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups came with Python 3.11")
def test_a_doubt_in_a_task_group_suspends_the_step(here: Duel) -> None:
    """The group wraps what ended the attempt, and no doubt may leave the step as a failure (I15)."""

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        raise TimeoutError

    async def main() -> Any:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            group.create_task(asyncio.sleep(0))

            async def call() -> Any:
                return charge(100)

            group.create_task(call())

    def pay(_state: Any) -> Any:
        asyncio.run(main())
        return done()

    order = here.agent(charge, pay=pay)
    run = here.run(order)
    assert run.status is RunStatus.WAITING
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), here.requests) == (["unknown"], [100])


# -- whatever the scheduling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_scheduling_no_identity_gets_two_argument_sets_and_nothing_doubles(
    one: Duel, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three attempts of one step, each with another schedule of threads and tasks, keyed and not, refused or not."""
    rng, begun = random.Random(seed), []
    monkeypatch.setattr(random, "randrange", rng.randrange)
    real_begin = Ledger.begin

    def begin(self: Ledger, connection: Any, attempt: Any, request: Any, seen: Any) -> Any:
        operation = real_begin(self, connection, attempt, request, seen)
        if operation is not None:
            begun.append((request.operation_id, request.digest))
        return operation

    monkeypatch.setattr(Ledger, "begin", begin)
    charge, mail = plain_charge(one), keyed_mail(one)

    def work(number: int) -> str:
        return str(charge(number) if number == 1 else mail(f"reader {number % 3}"))

    def pay(_state: Any) -> Any:
        numbers = list(range(1, 6))
        rng.shuffle(numbers)
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(carry_run(work), number) for number in numbers]
            asyncio.run(gathered(charge))
        for job in jobs:
            assert isinstance(job.exception(), UnorderedCalls | StepSuspended | None)
        if current_run.number < 3:
            raise MemoryError
        return done(charge(7))

    order = one.agent(charge, mail, pay=pay)
    run = one.run(order)
    one.sound()
    if run.status is RunStatus.NEEDS_ATTENTION:  # another of the two tasks came first: the same id, other arguments
        assert one.questions() == ["conflict"]
    else:
        assert run.status is RunStatus.SUCCEEDED
    assert len({identifier for identifier, _digest in begun}) == len(begun)
    assert len(one.requests) == len(set(one.requests))
