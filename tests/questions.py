"""Runs that stop at each question which the inbox can ask, driven there by what really leads to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, select, update

from agent_tasks import Agent, InboxItem, NotHappened, RunHandle, current_run, done, tool
from agent_tasks.inline import answer
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.runtime import Runtime
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import end_lease
from tests.one_process import OneProcess

TIMEOUT = timedelta(seconds=10)
HORIZON_SECONDS = 11.0


@dataclass
class Stopped:
    """A run that waits for a person."""

    here: OneProcess
    agent: Agent
    run: RunHandle

    @property
    def item(self) -> InboxItem:
        """The one open question."""
        (item,) = self.run.inbox()
        return item

    def answer(self, reply: str, result: Any = None) -> bool:
        """Answer it as Kim, and work on."""
        queued = self.run.resolve(self.item.item_id, reply, who="kim", why="looked it up", result=result)
        self.here.work(self.agent)
        return queued


def unknown(here: OneProcess, run_id: str = "run-1", agent: str = "order") -> Stopped:
    """A mail whose request was cut off: nobody can tell whether it was sent."""

    @tool(effect="manual", timeout=TIMEOUT)
    def mail(to: str) -> str:
        here.requests.append(to)
        if len(here.requests) == 1:
            raise TimeoutError("no answer")
        return "sent"

    order = here.agent(mail, name=agent, send=lambda state: done(mail(state["to"])))
    run = here.run(order, run_id, to="kim@example.com")
    here.later(order, HORIZON_SECONDS)
    return Stopped(here, order, run)


def orphan(here: OneProcess) -> Stopped:
    """A charge that the second attempt of its step does not ask for."""

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        return "charged"

    def pay(_state: Any) -> Any:
        if current_run.number == 1:
            charge(100)
            raise MemoryError
        return done("free of charge")

    order = here.agent(charge, pay=pay)
    return Stopped(here, order, here.run(order))


def conflict(here: OneProcess) -> Stopped:
    """A charge that the second attempt of its step asks for with another amount."""

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> int:
        here.requests.append(cents)
        return cents

    def pay(_state: Any) -> Any:
        charged = charge(100 if current_run.number == 1 else 200)
        if current_run.number == 1:
            raise MemoryError
        return done(charged)

    order = here.agent(charge, pay=pay)
    return Stopped(here, order, here.run(order))


def result(here: OneProcess) -> Stopped:
    """A charge that succeeded with a result which cannot be stored."""

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> Any:
        here.requests.append(cents)
        return object()

    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    return Stopped(here, order, here.run(order))


def doubled(here: OneProcess) -> Stopped:
    """A charge whose first request was answered after a person had said that it did not happen."""

    @tool(effect="manual", timeout=TIMEOUT)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) == 1:
            _in_thread(meanwhile)  # this attempt is taken for dead, and is not
        return "charged"

    def meanwhile() -> None:
        row = here.runtime.boundary.read(
            here.runtime.engine, lambda connection: here.runtime.runs.find(connection, "run-1")
        )
        assert row is not None
        assert end_lease(here.runtime, "run-1", row["lease_token"])
        here.work(order)
        here.later(order, HORIZON_SECONDS)
        Stopped(here, order, order.run("run-1")).answer("did-not-happen")

    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    return Stopped(here, order, here.run(order))


def crashes(here: OneProcess) -> Stopped:
    """A step that takes three workers with it."""

    def pay(_state: Any) -> Any:
        here.requests.append(current_run.number)
        if len(here.requests) <= here.runtime.settings.max_crashes:
            raise MemoryError
        return done("at last")

    order = here.agent(pay=pay)
    return Stopped(here, order, here.run(order))


def checkpoint(here: OneProcess) -> Stopped:
    """A run all of whose checkpoints are damaged on disk; `heal` undoes it."""

    def create(state: Any) -> Any:
        state["order"] = 7
        return order.steps["pay"]

    order = here.agent(create=create, pay=lambda state: done(state["order"]))
    run = order.enqueue({}, run_id="run-1")
    answer(here.runtime, order, here.runtime.bell.rings.popleft())
    _damage(here)
    here.work(order)
    return Stopped(here, order, run)


def steps(here: OneProcess) -> Stopped:
    """A run that has taken its two steps and would take a third."""

    def walk(state: Any) -> Any:
        state["steps"] = state.get("steps", 0) + 1
        return done(state["steps"]) if state["steps"] == 3 else order.steps["walk"]

    order = Agent("order", app=here.app, max_steps=2)
    order.step(walk, name="walk")
    return Stopped(here, order, here.run(order))


def _damage(here: OneProcess) -> None:
    """Turn the last bit of each checkpoint; doing it twice heals them."""
    turn_bits(here.runtime, seqs=(0, 1))


def turn_bits(runtime: Runtime, seqs: Iterable[int], run_id: str = "run-1", line: int = 0) -> None:
    """Turn a bit of some checkpoints behind the engine's back."""
    c = runtime.store.tables.checkpoints.c
    with runtime.engine.connect() as connection, connection.begin():
        for seq in seqs:
            here = and_(c.run_id == run_id, c.line == line, c.seq == seq)
            head = connection.execute(select(c.head).where(here)).scalar_one()
            turned = head[:-1] + bytes([head[-1] ^ 1])
            connection.execute(update(c.head.table).where(here).values(head=turned))


def heal(here: OneProcess) -> None:
    """Undo the damage of `checkpoint`, as one does with a backup."""
    _damage(here)


def _in_thread(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def refused(here: OneProcess) -> Stopped:
    """A charge that a person took for made, of which the bank's refusal comes in after that."""

    class Declined(Exception):
        """The bank says no."""

    @tool(effect="manual", timeout=TIMEOUT, refused=(Declined,))
    def charge(cents: int) -> str:
        here.requests.append(cents)
        _in_thread(meanwhile)  # this attempt is taken for dead, and is not
        raise Declined

    def meanwhile() -> None:
        row = here.runtime.boundary.read(
            here.runtime.engine, lambda connection: here.runtime.runs.find(connection, "run-1")
        )
        assert row is not None
        assert end_lease(here.runtime, "run-1", row["lease_token"])
        here.work(order)
        here.later(order, HORIZON_SECONDS)
        Stopped(here, order, order.run("run-1")).answer("happened", "ch_1")

    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    return Stopped(here, order, here.run(order))


def sends(here: OneProcess) -> Stopped:
    """A charge whose every request times out, and whose probe says each time that it did not happen."""

    @tool(effect="probed", timeout=TIMEOUT, bind=False)
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) <= MAX_SENDS:
            raise TimeoutError("no answer")
        return "charged"

    charge.probe(lambda _operation: NotHappened())
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)
    while run.status is RunStatus.WAITING:
        here.later(order, HORIZON_SECONDS)
    return Stopped(here, order, run)


STOPS: dict[str, Callable[[OneProcess], Stopped]] = {
    "unknown": unknown,
    "orphan": orphan,
    "conflict": conflict,
    "result": result,
    "doubled": doubled,
    "crashes": crashes,
    "checkpoint": checkpoint,
    "steps": steps,
    "refused": refused,
    "sends": sends,
}
