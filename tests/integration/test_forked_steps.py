"""Steps and bodies that fork: a child works for no run, whatever it calls and however it ends (I2, I3, I7)."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agent_tasks import InForkedProcess, RunFailed, RunHandle, carry_run, done, tool
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=20)
LONGEST_SECONDS = 60


class World:
    """Notes what was done and said, in a file that all processes write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def note(self, word: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{word}\n")

    def noted(self) -> list[str]:
        return self.path.read_text().splitlines()


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def tools(world: World) -> dict[str, Any]:
    """A tool of each kind, and with a key of its own, that says in which process it ran."""
    own = os.getpid()

    def body(to: str) -> str:
        world.note(f"{to} {'in the step' if os.getpid() == own else 'in a child'}")
        return f"done {to}"

    def keyed(to: str) -> str:
        return body(to)

    def said(operation: Any, to: str) -> str:
        operation.connection.execute(text("SELECT 1"))
        return body(to)

    key: Any = {"key": lambda to: to}
    return {
        "manual": tool(effect="manual", timeout=TIMEOUT, name="mail")(body),
        "manual with a key": tool(effect="manual", timeout=TIMEOUT, name="mail", **key)(body),
        "keyed": tool(effect="keyed", key_lifetime=timedelta(hours=1), name="mail", bind=False)(keyed),
        "read": tool(effect="read", name="mail")(body),
        "read that is not recorded": tool(effect="read", record=False, name="mail")(body),
        "transactional": tool(effect="transactional", name="mail", bind=True)(said),
    }


KINDS = sorted(tools(World(Path(os.devnull))))


def exit_code(pid: int) -> int:
    """Wait for a child, but not for ever."""
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(LONGEST_SECONDS)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def forked(work: Callable[[], object]) -> int:
    """Do work in a child that ends by itself, and return how."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            work()
            os._exit(0)
        os._exit(9)
    return exit_code(pid)


@pytest.mark.parametrize("carried", [False, True], ids=["", "carried"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_tool_is_called_in_a_child(here: Duel, world: World, kind: str, carried: bool) -> None:
    mail = tools(world)[kind]

    def in_a_child(call: Any) -> None:
        try:
            call("kim")
        except InForkedProcess as error:
            world.note(str(error))

    def send(_state: Any) -> Any:
        if not carried:
            mail("robin")  # the parent has a connection, and a call recorded
        assert forked(lambda: in_a_child(carry_run(mail) if carried else mail)) == 0
        return done(mail("ada") if not carried or "key" in kind else None)

    run = here.run(here.agent(mail, send=send))

    assert run.status is RunStatus.SUCCEEDED
    said = [word for word in world.noted() if not word.endswith("in the step")]
    assert len(said) == 1
    assert "run 'run-1': tool 'mail' was called in process" in said[0]
    assert "which step 'send' has forked" in said[0]
    assert all(o.args["to"] != "kim" and o.status is OperationStatus.SUCCEEDED for o in here.operations())
    here.sound()


POOLED: list[Any] = []  # what a pool's processes inherit, since a tool that a test makes cannot be pickled


def call_pooled(to: str) -> Any:
    return POOLED[-1](to)


def in_a_pool(work: Callable[[str], Any], names: list[str]) -> list[Any]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(work, names).get(LONGEST_SECONDS)


def in_an_executor(work: Callable[[str], Any], names: list[str]) -> list[Any]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(work, names, timeout=LONGEST_SECONDS))


@pytest.mark.parametrize("way", [in_a_pool, in_an_executor])
def test_a_pool_of_processes_fails_the_step_and_says_what_to_do(here: Duel, world: World, way: Any) -> None:
    mail = tools(world)["manual"]
    POOLED.append(mail)
    run = here.run(here.agent(mail, send=lambda _state: done(way(call_pooled, ["kim", "robin"]))))
    with pytest.raises(
        RunFailed, match="Return from the child what the call needs, and call the tool in the step itself"
    ):
        run.get(timeout=0)
    assert (world.noted(), here.operations()) == ([], [])


@pytest.mark.parametrize("way", [in_a_pool, in_an_executor])
def test_what_a_pool_of_processes_computes_is_sent_by_the_step(here: Duel, world: World, way: Any) -> None:
    mail = tools(world)["manual"]
    order = here.agent(mail, send=lambda _state: done([mail(name) for name in way(str.upper, ["kim", "robin"])]))
    assert here.run(order).get(timeout=0) == ["done KIM", "done ROBIN"]
    assert world.noted() == ["KIM in the step", "ROBIN in the step"]
    here.sound()


def test_a_call_inside_the_body_of_another_is_refused_in_a_child(here: Duel, world: World) -> None:
    mail = tools(world)["manual"]

    @tool(effect="manual", timeout=TIMEOUT)
    def newsletter() -> str:
        def in_a_child() -> None:
            with pytest.raises(InForkedProcess):
                mail("kim")
            world.note("refused")

        process = multiprocessing.get_context("fork").Process(target=in_a_child)
        process.start()
        process.join(LONGEST_SECONDS)
        return str(mail("robin"))

    assert here.run(here.agent(newsletter, mail, send=lambda _state: done(newsletter()))).get(timeout=0) == "done robin"
    assert world.noted() == ["refused", "robin in the step"]
    assert len(here.operations()) == 2
    here.sound()


# -- how a child ends --------------------------------------------------------------------------------------------------


def returns() -> Any:
    return done("the child's")


def fails() -> Any:
    raise ValueError("the child's")


def leaves() -> Any:
    raise SystemExit(7)


def leaves_quietly() -> Any:
    raise SystemExit


def leaves_with_a_word() -> Any:
    raise SystemExit("no more")


def is_interrupted() -> Any:
    raise KeyboardInterrupt


ENDS = {returns: 1, fails: 1, leaves: 7, leaves_quietly: 0, leaves_with_a_word: 1, is_interrupted: 1}


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_comes_back_from_the_step_ends_there(here: Duel, world: World, end: Callable[[], Any]) -> None:
    mail, me = tools(world)["manual"], os.getpid()

    def send(_state: Any) -> Any:
        mail("ada")
        child = os.fork()
        if child == 0:
            return end()
        code = exit_code(child)
        assert here.runtime.slots.leases()  # the attempt's place is its own yet
        return done([code, mail("kim")])

    order = here.agent(mail, send=send)
    try:
        run = here.run(order)
    finally:
        if os.getpid() != me:  # the worst that can happen here: two processes go on with all the tests
            os._exit(99)
    assert run.get(timeout=0) == [ENDS[end], "done kim"]
    assert (here.row()["fence"], world.noted()) == (1, ["ada in the step", "kim in the step"])
    assert here.runtime.slots.leases() == []
    here.sound()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [returns, fails])
def test_a_child_that_comes_back_from_a_body_ends_there(
    here: Duel, world: World, end: Callable[[], Any], kind: str
) -> None:
    me, guards = os.getpid(), tools(world)[kind]

    def body(to: str) -> Any:
        child = os.fork()
        if child == 0:
            end()
            return "the child's"
        world.note(f"exit code {exit_code(child)}")
        return "the parent's"

    if kind == "transactional":

        def in_transaction(operation: Any, to: str) -> Any:
            answer = body(to)
            operation.connection.execute(text("SELECT 1"))  # it is the parent's still
            return answer

        guards.body = in_transaction
    else:
        guards.body = body
    try:
        run = here.run(here.agent(guards, send=lambda _state: done(guards("kim"))))
    finally:
        if os.getpid() != me:
            os._exit(99)
    assert run.get(timeout=0) == "the parent's"
    assert world.noted() == ["exit code 1"]
    assert [o.attempts for o in here.operations()] == [1] * (kind != "read that is not recorded")
    here.sound()


def test_a_child_that_comes_back_says_so_in_the_log(here: Duel, tmp_path: Path) -> None:
    handler, me = logging.FileHandler(tmp_path / "log"), os.getpid()
    logging.getLogger("agent_tasks").addHandler(handler)

    def send(_state: Any) -> Any:
        child = os.fork()
        if child == 0:
            raise ValueError("the child's")
        return done(exit_code(child))

    try:
        here.run(here.agent(send=send))
    finally:
        if os.getpid() != me:
            os._exit(99)
        logging.getLogger("agent_tasks").removeHandler(handler)
        handler.close()
    said = (tmp_path / "log").read_text()
    assert f"which step 'send' of run 'run-1' had forked from process {me}, came back from it and was ended" in said
    assert "ValueError: the child's" in said


# -- connections ---------------------------------------------------------------------------------------------------------


def test_a_child_reads_the_ledger_on_a_connection_of_its_own(here: Duel, world: World) -> None:
    """As with the handle of a run, or of another one, that its parent made."""

    def send(_state: Any) -> Any:
        run = RunHandle(here.runtime, "run-1")
        assert run.status is RunStatus.RUNNING  # the parent has a connection in its pool
        assert forked(lambda: world.note(str(run.status))) == 0
        assert run.status is RunStatus.RUNNING
        return done()

    assert here.run(here.agent(send=send)).status is RunStatus.SUCCEEDED
    assert world.noted() == ["running"]


def test_a_child_does_not_use_the_connection_of_a_transactional_body(here: Duel, world: World) -> None:
    @tool(effect="transactional", bind=True)
    def book(operation: Any) -> int:
        def in_a_child() -> None:
            try:
                operation.connection.execute(text("SELECT 1"))
            except InForkedProcess as error:
                world.note(str(error))

        operation.connection.execute(text("CREATE TABLE books (n INTEGER)"))
        assert forked(in_a_child) == 0
        return int(operation.connection.execute(text("SELECT 41 + 1")).scalar_one())

    assert here.run(here.agent(book, send=lambda _state: done(book()))).get(timeout=0) == 42
    (said,) = world.noted()
    assert said.startswith(f"a connection of process {os.getpid()} was used in process")
    with here.runtime.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM books")).scalar_one() == 0
