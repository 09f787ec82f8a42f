"""What an attempt opens: when it is first asked for, closed however the attempt ends, never stored, never shared (I2)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    InForkedProcess,
    NotAwaited,
    OutsideRun,
    RunFailed,
    carry_run,
    current_run,
    done,
    fail,
    run_calls,
    sleep,
    tool,
)
from agent_tasks.errors import ConfigurationError
from agent_tasks.states import RunStatus
from agent_tasks.testing import VendorWorld, explore_crashes
from tests.agents import new_app, tool_of
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    """On SQLite, since nothing of a resource is in the database."""
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        yield both


class Opening:
    """An agent whose resource notes what becomes of it."""

    def __init__(self, here: Duel, *tools: Any) -> None:
        self.notes: list[str] = []
        self.agent = made = Agent("opener", app=here.app, tools=tools)

        @made.resource
        def db() -> Iterator[Any]:
            number = sum(note.startswith("open") for note in self.notes)
            self.notes.append(f"open {number}")
            try:
                yield {"number": number}
            except BaseException as error:
                self.notes.append(type(error).__name__)
                raise
            finally:
                self.notes.append(f"close {number}")

        self.db = db


def test_a_resource_is_opened_once_an_attempt_when_it_is_first_asked_for(one: Duel) -> None:
    here = Opening(one)

    @here.agent.step(start=True)
    def first(_state: Any) -> Any:
        here.notes.append("first")
        assert here.db() is here.db()
        return second

    @here.agent.step
    def second(_state: Any) -> Any:
        here.notes.append("second")
        return third

    @here.agent.step
    def third(_state: Any) -> Any:
        return done(here.db()["number"])

    assert one.run(here.agent).get(timeout=0) == 1
    assert here.notes == ["first", "open 0", "close 0", "second", "open 1", "close 1"]


def test_it_is_closed_before_the_steps_commit_while_the_lease_is_held(one: Duel) -> None:
    here = Opening(one)

    @here.agent.resource
    def looks() -> Iterator[Any]:
        yield
        row = one.row()
        here.notes.append(f"{row['status']} {row['seq']} {current_run.step}")

    @here.agent.step
    def only(_state: Any) -> Any:
        looks()
        return done()

    one.run(here.agent)
    assert here.notes == ["running 0 only"]


ENDS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a return": (lambda: done("x"), []),
    "a fail": (lambda: fail("no"), []),
    "a wait": (lambda: sleep(60, then=None), []),
    "an exception": (lambda: 1 / 0, ["ZeroDivisionError"]),
    "a crash": (lambda: (_ for _ in ()).throw(MemoryError), ["MemoryError"]),
    "an exit": (lambda: (_ for _ in ()).throw(SystemExit), ["SystemExit"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_is_closed_however_the_attempt_ends_and_sees_how(one: Duel, end: str) -> None:
    here = Opening(one)
    returned, seen = ENDS[end]

    @here.agent.step
    def only(_state: Any) -> Any:
        if current_run.number > 1:
            return done()
        here.db()
        return returned()

    one.run(here.agent)
    assert here.notes == ["open 0", *seen, "close 0"]


def test_it_is_closed_where_the_attempt_is_suspended_even_if_the_step_swallows_that(one: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def act() -> None:
        here.db()
        raise ConnectionError("reset")

    here = Opening(one, act)

    @here.agent.step
    def only(_state: Any) -> Any:
        with contextlib.suppress(BaseException):
            act()
        return done()

    run = one.run(here.agent)
    assert (run.status, here.notes) == (RunStatus.WAITING, ["open 0", "StepSuspended", "close 0"])


def test_resources_that_need_each_other_are_closed_the_last_one_first(one: Duel) -> None:
    here = Opening(one)

    @here.agent.resource(name="cursor")
    @contextlib.contextmanager
    def made() -> Iterator[Any]:
        number = here.db()["number"]
        here.notes.append("open cursor")
        yield f"cursor of {number}"
        here.notes.append("close cursor")

    @here.agent.step
    def only(_state: Any) -> Any:
        return done(made())

    assert one.run(here.agent).get(timeout=0) == "cursor of 0"
    assert here.notes == ["open 0", "open cursor", "close cursor", "close 0"]


def test_one_that_cannot_be_closed_is_logged_and_keeps_no_other_open(
    one: Duel, caplog: pytest.LogCaptureFixture
) -> None:
    here = Opening(one)

    @here.agent.resource
    def wild() -> Iterator[Any]:
        yield
        raise ValueError("will not close")

    @here.agent.step
    def only(_state: Any) -> Any:
        here.db()
        wild()
        return done("the step is done all the same")

    assert one.run(here.agent).get(timeout=0) == "the step is done all the same"
    assert here.notes == ["open 0", "close 0"]
    assert "resource 'wild' of agent 'opener' could not be closed" in caplog.text
    assert "ValueError: will not close" in caplog.text


def test_one_that_cannot_be_opened_fails_the_step_and_is_tried_again_when_the_step_is(one: Duel) -> None:
    made = Agent("opener", app=one.app)

    @made.resource
    def db() -> Iterator[Any]:
        if not current_run.retries:
            raise ConnectionError("away")
        yield "here"

    @made.step(max_retries=1, default_retry_delay=5)
    def only(_state: Any) -> Any:
        return done(len(db()))

    run = one.run(made)
    assert "ConnectionError: away" in (run.waiting_for or "")
    one.later(made, 5)
    assert run.get(timeout=0) == 4


def test_bodies_of_tools_and_threads_of_a_batch_share_what_the_attempt_has_open(one: Duel) -> None:
    seen: list[Any] = []

    @tool(effect="read")
    def look(what: int) -> int:
        seen.append(here.db())
        return what

    here = Opening(one, look)

    @here.agent.step
    def only(_state: Any) -> Any:
        results = run_calls([look.call(number) for number in range(6)])
        thread = threading.Thread(target=carry_run(lambda: seen.append(here.db())))
        thread.start()
        thread.join()
        return done(results)

    assert one.run(here.agent).get(timeout=0) == list(range(6))
    assert (len(seen), len({id(value) for value in seen})) == (7, 1)
    assert here.notes == ["open 0", "close 0"]


def test_who_asks_after_the_end_of_the_step_gets_nothing(one: Duel) -> None:
    here, asked = Opening(one), threading.Event()
    said: list[str] = []

    def late() -> None:
        asked.wait()
        try:
            here.db()
        except OutsideRun as error:
            said.append(str(error))

    threads: list[threading.Thread] = []

    @here.agent.step
    def only(_state: Any) -> Any:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        threads[0].start()
        return done()

    one.run(here.agent)
    asked.set()
    threads[0].join()
    assert len(said) == 1
    assert "was asked for after step 'only' had ended" in said[0]
    assert here.notes == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_the_step_forks_has_no_share_in_it(one: Duel) -> None:
    here = Opening(one)

    @here.agent.step
    def only(_state: Any) -> Any:
        here.db()
        child = os.fork()
        if child == 0:
            try:
                here.db()
            except InForkedProcess:
                os._exit(7)
            os._exit(0)
        return done(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert one.run(here.agent).get(timeout=0) == 7
    assert here.notes == ["open 0", "close 0"]


# -- never stored -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["an object", "a dict"])
@pytest.mark.parametrize("place", ["state", "messages", "output", "argument", "result", "progress"])
def test_a_resource_is_stored_nowhere_and_the_refusal_names_it(one: Duel, kind: str, place: str) -> None:
    @tool(effect="repeatable", why="does nothing", bind=True)
    def act(operation: Any, given: Any) -> Any:
        if place == "progress":
            operation.save_progress([db()])
        return {"of": db()} if place == "result" else None

    made = Agent("opener", app=one.app, tools=[act])

    @made.resource
    def db() -> Iterator[Any]:
        yield {"a": 1} if kind == "a dict" else sqlite3.connect(":memory:")

    @made.step
    def only(state: Any) -> Any:
        if place == "state":
            state["db"] = [db()]
        if place == "messages":
            state.messages.append({"db": db()})
        if place in ("argument", "result", "progress"):
            act(db() if place == "argument" else None)
        return done({"db": db()} if place == "output" else None)

    run = one.run(made)
    said = "it is resource 'db' of agent 'opener', which is closed when its attempt ends; ask for it again where it is needed"
    if place == "result":
        (item,) = run.inbox()
        assert said in item.detail["error"]["text"]
    else:
        with pytest.raises(RunFailed, match=said):
            run.get(timeout=0)


def test_another_object_that_equals_it_is_stored(one: Duel) -> None:
    here = Opening(one)

    @here.agent.step
    def only(state: Any) -> Any:
        state["copy"] = dict(here.db())
        return done(state["copy"])

    assert one.run(here.agent).get(timeout=0) == {"number": 0}


# -- async --------------------------------------------------------------------------------------------------------------------


def test_an_async_resource_lives_in_one_task_of_the_kept_loop(one: Duel) -> None:
    made, notes = Agent("opener", app=one.app), list[Any]()

    @made.resource
    async def client() -> Any:
        notes.append(asyncio.current_task())
        try:
            yield {"client": 1}
        except ValueError as error:
            notes.append(str(error))
            raise
        finally:
            notes.append(asyncio.current_task())

    @tool(effect="manual", timeout=TIMEOUT)
    async def act() -> int:
        return (await client())["client"]

    made.tools["act"] = act

    @made.step
    async def only(_state: Any) -> Any:
        several = await asyncio.gather(client(), client())
        assert several[0] is several[1] is await client()
        assert await act() == 1
        raise ValueError("in the step")

    with pytest.raises(RunFailed, match="in the step"):
        one.run(made).get(timeout=0)
    assert (notes[0], notes[1]) == (notes[2], "in the step")


def test_an_async_resource_that_cannot_be_opened_or_closed_is_said(one: Duel, caplog: pytest.LogCaptureFixture) -> None:
    made = Agent("opener", app=one.app)

    @made.resource
    async def away() -> Any:
        raise ConnectionError("away")
        yield

    @made.resource
    async def wild() -> Any:
        yield
        raise ValueError("will not close")

    @made.step
    async def only(_state: Any) -> Any:
        await wild()
        with pytest.raises(ConnectionError, match="away"):
            await away()
        return done("ended")

    assert one.run(made).get(timeout=0) == "ended"
    assert "ValueError: will not close" in caplog.text


def test_an_async_resource_may_need_another_one(one: Duel) -> None:
    here = Opening(one)

    @here.agent.resource
    async def session() -> Any:
        yield [await here.db.aio()]

    @here.agent.resource
    async def user() -> Any:
        yield [await session()]

    @here.agent.step
    async def only(_state: Any) -> Any:
        return done((await user())[0][0]["number"])

    assert one.run(here.agent).get(timeout=0) == 0
    assert here.notes == ["open 0", "close 0"]


def test_resources_are_asked_for_where_they_can_be(one: Duel) -> None:
    here = Opening(one)

    @here.agent.resource
    async def client() -> Any:
        yield "client"

    @here.agent.step(start=True)
    async def first(_state: Any) -> Any:
        with pytest.raises(NotAwaited, match=r"Write `await db\.aio\(\)`"):
            here.db()
        assert (await here.db.aio())["number"] == 0
        assert await client.aio() == "client"
        return second

    @here.agent.step
    def second(_state: Any) -> Any:
        with pytest.raises(NotAwaited, match="Make step 'second' `async def`"):
            client()
        return third

    @here.agent.step
    async def third(_state: Any) -> Any:
        client()
        return done()

    with pytest.raises(RunFailed, match=r"NotAwaited.*called resource 'client' of agent 'opener' and ended before"):
        one.run(here.agent).get(timeout=0)


# -- declarations, and what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: 1, "must be a generator function, plain or async, or one with @contextmanager"),
        (42, "must be a generator function"),
        (sqlite3.connect, "must be a generator function"),
    ],
)
def test_what_opens_and_closes_nothing_is_no_resource(function: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Agent("opener", app=new_app()).resource(name="db")(function)


def test_a_resource_takes_no_arguments_and_has_a_name_of_its_own() -> None:
    made = Agent("opener", app=new_app())

    def db(path: str) -> Iterator[Any]:
        yield path

    with pytest.raises(
        ConfigurationError, match="resource 'db' of agent 'opener' must be a function without arguments"
    ):
        made.resource(db)  # type: ignore[arg-type]
    made.resource(name="db")(_opens)
    with pytest.raises(ConfigurationError, match="has two resources named 'db'"):
        made.resource(name="db")(_opens)
    with pytest.raises(ConfigurationError, match="must have a name of 1 to 100 letters"):
        made.resource(name="d b")(_opens)


def _opens() -> Iterator[Any]:
    yield


def test_resources_that_need_each_other_in_a_circle_are_told_so(one: Duel) -> None:
    made = Agent("opener", app=one.app)

    @made.resource
    def a() -> Iterator[Any]:
        yield b()

    @made.resource
    def b() -> Iterator[Any]:
        yield a()

    made.step(lambda _state: done(a()), name="only")
    with pytest.raises(RunFailed, match="resource 'a' of agent 'opener' needs itself to be opened: a → b → a"):
        one.run(made).get(timeout=0)


def test_a_resource_belongs_to_the_steps_of_its_agent(one: Duel) -> None:
    here = Opening(one)
    with pytest.raises(OutsideRun, match=r"was asked for outside a run.*with db\.using\(…\)"):
        here.db()
    other = one.agent(name="other", only=lambda _state: done(here.db()))
    with pytest.raises(RunFailed, match="was asked for in step 'only' of agent 'other'"):
        one.run(other).get(timeout=0)


def test_a_stand_in_is_neither_opened_nor_closed(one: Duel) -> None:
    here = Opening(one)

    @here.agent.resource
    async def client() -> Any:
        yield "real"

    @here.agent.step
    async def only(_state: Any) -> Any:
        return done([await here.db.aio(), await client()])

    with here.db.using("fake"), client.using("fake, too"):
        assert asyncio.run(only({})) == done(["fake", "fake, too"])
        assert here.agent.run_inline() == ["fake", "fake, too"]
    assert here.notes == []


def test_a_crash_while_a_resource_is_opened_or_closed_repeats_no_effect(database_url: str) -> None:
    world = VendorWorld()
    act = tool_of("manual", world)
    made = Agent("opener", app=new_app(), tools=[act])

    @made.resource
    def db() -> Iterator[Any]:
        yield ["open"]

    @made.resource
    async def client() -> Any:
        yield ["open, too"]

    @made.step(start=True)
    def first(state: Any) -> Any:
        state["act"] = [act(state["what"]), len(db())]
        return second

    @made.step
    async def second(state: Any) -> Any:
        return done([*state["act"], len(await client())])

    found = explore_crashes(made, {"what": "a"}, world, database_url=database_url, brokers=("emptied",))
    assert not found.failures, found.report()
    crossed = {point.name for point in found.points}
    assert crossed >= {"db.open", "db.close", "client.open", "client.close"}
