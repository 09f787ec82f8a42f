"""Steps as people write them who have not read the documentation: what they catch, toss, leak and rename."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from agent_tasks import Agent, Happened, NotHappened, Operation, StepSuspended, Tool, current_run, done, tool
from agent_tasks.current import attempt_of_this_context
from agent_tasks.inbox import InboxItem
from agent_tasks.states import Question, Reply
from agent_tasks.testing import VendorWorld
from tests.agents import new_app
from tests.waiting import wait_until

VENDORS = ("answers", "times out after the effect", "times out before the effect")


class Shop(VendorWorld):
    """A vendor that times out once in each schedule, a coin, and threads that outlive their steps.

    Args:
        vendor: one of :data:`VENDORS`.

    Attributes:
        one_effect: the agent means to do one thing only. A second one that no person was asked about is counted under a
            name that no ledger knows.
    """

    def __init__(self, vendor: str) -> None:
        super().__init__()
        self.vendor = vendor
        self.one_effect = False
        self.timed_out = False
        self.tosses = 0
        self.leaked: list[threading.Thread] = []
        self.asked: list[Question] = []

    def reset(self) -> None:
        self.join()
        super().reset()
        self.timed_out, self.tosses, self.asked = False, 0, []

    def act(self, reference: str, *, key: str | None = None) -> int:
        if self.vendor == "times out before the effect":
            self._time_out()
        number = super().act(reference, key=key)
        if self.vendor == "times out after the effect":
            self._time_out()
        return number

    def _time_out(self) -> None:
        if not self.timed_out:
            self.timed_out = True
            raise TimeoutError("read timed out")

    def effects(self) -> Counter[str]:
        self.join()
        counted = super().effects()
        if self.one_effect and len(counted) > 1 and Question.ORPHAN not in self.asked:
            counted["a second effect that nobody was asked about"] += 1
        return counted

    def toss(self) -> bool:
        """Heads at first, then tails, and so on."""
        self.tosses += 1
        return bool(self.tosses % 2)

    def person(self, item: InboxItem) -> tuple[Reply, Any]:
        self.asked.append(item.question)
        return super().person(item)

    def leak(self, work: Callable[[], Any]) -> None:
        """Start a thread that works for the current run after its step has ended."""
        attempt = attempt_of_this_context()
        assert attempt is not None

        def late() -> None:
            wait_until(lambda: attempt.over)
            with suppress(StepSuspended):
                work()
                VendorWorld.act(self, "a call that a step made after its end")  # which no ledger knows

        self.leaked.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        self.leaked[-1].start()

    def join(self) -> None:
        while self.leaked:
            self.leaked.pop().join()


def act_of(effect: str, shop: Shop, *, function: str = "charge", **options: Any) -> Tool[..., Any]:
    """Return a tool with this effect whose function has this name."""
    if effect == "keyed":
        options["key_lifetime"] = timedelta(hours=24)
    else:
        options["timeout"] = timedelta(seconds=20)

    def body(operation: Operation, what: Any) -> int:
        return shop.act(operation.operation_id, key=operation.idempotency_key if effect == "keyed" else None)

    body.__name__ = function
    act = tool(effect=effect, bind=True, **options)(body)
    if effect == "probed":

        @act.probe
        def look(operation: Operation) -> Happened | NotHappened:
            number = shop.look_up(operation.operation_id)
            return NotHappened() if number is None else Happened(number)

    return act


def agent_with(step: Callable[[Any], Any], *tools: Tool[..., Any], **options: Any) -> Agent:
    agent = Agent("wrong", app=new_app(), tools=tools)
    agent.step(name="only", **options)(step)
    return agent


@dataclass(frozen=True)
class Wrong:
    """A wrong agent, and what follows it after a crash.

    Attributes:
        agent: of the run.
        next_release: which a process that recovers runs; None means the same agent.
        one_ending: the run ends as it does without a crash.
    """

    agent: Agent
    next_release: Agent | None = None
    one_ending: bool = True


def swallows_exceptions(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    def step(_state: Any) -> Any:
        try:
            return done(charge(100))
        except Exception:  # noqa: BLE001 - the point
            return done(charge(100))

    return Wrong(agent_with(step, charge))


def retries_with_tenacity(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    @retry(retry=retry_if_exception_type(Exception), stop=stop_after_attempt(3))
    def insist() -> Any:
        return charge(100)

    return Wrong(agent_with(lambda _state: done(insist()), charge))


def swallows_everything(effect: str, shop: Shop) -> Wrong:
    charge, mail = act_of(effect, shop), act_of(effect, shop, function="mail")

    def step(_state: Any) -> Any:
        for call in (charge, mail):
            with suppress(BaseException):
                call(100)
        return done("all is well")

    return Wrong(agent_with(step, charge, mail))


def gathers_exceptions(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    async def one(what: int) -> Any:
        return charge(what)

    async def both() -> list[Any]:
        return await asyncio.gather(one(1), one(2), return_exceptions=True)

    return Wrong(agent_with(lambda _state: done([str(each) for each in asyncio.run(both())]), charge))


def calls_in_a_task_group(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    async def one(what: int) -> Any:
        return charge(what)

    async def grouped() -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(one(1))
        return task.result()

    return Wrong(agent_with(lambda _state: done(asyncio.run(grouped())), charge))


def retries_the_whole_step(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    def step(_state: Any) -> Any:
        charged = charge(100)
        if shop.toss():
            raise ConnectionError("something after the charge")
        return done(charged)

    return Wrong(agent_with(step, charge, autoretry_for=(Exception,), default_retry_delay=1))


def tosses_a_coin(effect: str, shop: Shop) -> Wrong:
    charge, invoice = act_of(effect, shop), act_of(effect, shop, function="invoice")
    shop.one_effect = True
    step = lambda _state: done((charge if shop.toss() else invoice)(100))  # noqa: E731
    return Wrong(agent_with(step, charge, invoice), one_ending=False)


def renames_a_tool(effect: str, shop: Shop) -> Wrong:
    old, new = act_of(effect, shop), act_of(effect, shop, function="charge_card")
    shop.one_effect = True
    return Wrong(
        agent_with(lambda _state: done(old(100)), old),
        agent_with(lambda _state: done(new(100)), new),
        one_ending=False,
    )


def renames_a_function(effect: str, shop: Shop) -> Wrong:
    old, new = act_of(effect, shop), act_of(effect, shop, function="charge_card", name="charge")
    return Wrong(agent_with(lambda _state: done(old(100)), old), agent_with(lambda _state: done(new(100)), new))


def changes_the_state_in_place(effect: str, shop: Shop) -> Wrong:
    charge = act_of(effect, shop)

    def step(state: Any) -> Any:
        cart = state.setdefault("cart", [])
        cart.append("tea")
        first = charge(cart)
        cart.append("milk")
        second = charge(cart)
        cart.clear()
        return done([first, second])

    return Wrong(agent_with(step, charge))


def calls_in_finally(effect: str, shop: Shop) -> Wrong:
    charge, mail = act_of(effect, shop), act_of(effect, shop, function="mail")

    def step(_state: Any) -> Any:
        try:
            return done(charge(100))
        finally:
            mail("charged")

    return Wrong(agent_with(step, charge, mail))


def calls_when_a_generator_closes(effect: str, shop: Shop) -> Wrong:
    charge, mail = act_of(effect, shop), act_of(effect, shop, function="mail")

    def lines() -> Iterator[str]:
        try:
            yield "tea"
            yield "milk"
        finally:
            mail("bye")

    def step(_state: Any) -> Any:
        with closing(lines()) as order:
            return done(charge(next(order)))

    return Wrong(agent_with(step, charge, mail))


def leaks_a_thread(effect: str, shop: Shop) -> Wrong:
    charge, mail = act_of(effect, shop), act_of(effect, shop, function="mail", key=lambda what: f"mail {what}")

    def step(_state: Any) -> Any:
        shop.leak(lambda: mail("late"))
        return done(charge(100))

    return Wrong(agent_with(step, charge, mail))


def swallows_a_doubt_in_a_body(effect: str, shop: Shop) -> Wrong:
    inner = act_of(effect, shop, function="inner")

    @tool(effect="keyed", key_lifetime=timedelta(hours=24), bind=True)
    def outer(operation: Operation) -> Any:
        answer: Any = "none"
        with suppress(BaseException):
            answer = inner(100)
        return [answer, shop.act(operation.operation_id, key=operation.idempotency_key)]

    return Wrong(agent_with(lambda _state: done([outer(), current_run.seq]), inner, outer), one_ending=False)


BODIES: tuple[Callable[[str, Shop], Wrong], ...] = (
    swallows_exceptions,
    retries_with_tenacity,
    swallows_everything,
    gathers_exceptions,
    *([calls_in_a_task_group] if sys.version_info >= (3, 11) else []),
    retries_the_whole_step,
    tosses_a_coin,
    renames_a_tool,
    renames_a_function,
    changes_the_state_in_place,
    calls_in_finally,
    calls_when_a_generator_closes,
    leaks_a_thread,
    swallows_a_doubt_in_a_body,
)
