"""A tool, a task or an outcome's function where a step is meant, and a tool where the step of its name is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from agent_tasks import Agent, AgentTask, RunFailed, calls, done, fail, sleep, sleep_until, tool, wait_until
from tests.one_process import OneProcess

plain = Celery("plain", broker="memory://", set_as_current=False)


@tool(effect="read", name="pay")
def pay() -> str:
    return "paid"


@tool(effect="read")
def look() -> str:
    return "seen"


@plain.task(name="shop.pay", shared=False)
def pay_task() -> None: ...


@plain.task(name="shop.guarded", base=AgentTask, tools=[], shared=False)
def guarded() -> None: ...


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


AND_STEP = " The agent also has a step 'pay': if that is meant, give the two functions different names."
OF_AGENT = "a run goes on with a step of its agent"


def said_of(here: OneProcess, returned: Callable[[Any], Any]) -> str:
    order = here.agent(pay, look, create=returned, pay=lambda _state: done("went on"))
    with pytest.raises(RunFailed) as failed:
        here.run(order).get(timeout=0)
    return str(failed.value)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (pay, f"returned tool 'pay' itself, which is no step: call it, and return what follows, as in return done(pay(…)).{AND_STEP}"),
        (look, "returned tool 'look' itself, which is no step: call it, and return what follows, as in return done(look(…))."),
        (pay_task, f"returned Celery task 'shop.pay', which is no step: {OF_AGENT}. To call the task, write pay.delay(…).{AND_STEP}"),
        (guarded, "returned Celery task 'shop.guarded', which is no step"),
        (pay_task.si(), "returned a signature of Celery task 'shop.pay', which is no step"),
        (done, "returned the function done itself, and not its outcome: write done(…)."),
        (fail, "write fail(…)."),
        (calls, "write calls([…], then=…)."),
        (sleep, "write sleep(…, then=…)."),
        (sleep_until, "write sleep_until(…, then=…)."),
        (wait_until, "write wait_until(…, then=…)."),
    ],
    ids=["tool", "other tool", "task", "AgentTask", "signature", "done", "fail", "calls", "sleep", "sleep_until", "wait_until"],
)  # fmt: skip
def test_what_is_no_step_is_refused_whatever_its_name(here: OneProcess, returned: Any, said: str) -> None:
    assert said in said_of(here, lambda _state: returned)


@pytest.mark.parametrize(
    "outcome",
    [
        lambda: sleep(1, then=pay),
        lambda: wait_until(pay, every=1, then=look),
        lambda: calls([look.call()], then=pay),
    ],
    ids=["sleep", "wait_until", "calls"],
)
def test_so_it_is_where_a_wait_or_calls_name_it(here: OneProcess, outcome: Callable[[], Any]) -> None:
    assert "=…) with tool 'pay' itself, which is no step" in said_of(here, lambda _state: outcome())


def test_a_check_that_returns_it_has_not_said_yes(here: OneProcess) -> None:
    order = here.agent(
        look,
        create=lambda _state: wait_until(order.steps["check"], every=1, then=order.steps["ship"]),
        check=lambda _state: look,
        ship=lambda _state: done("went on"),
    )
    with pytest.raises(RunFailed, match="returned tool 'look' itself"):
        here.run(order).get(timeout=0)


def test_a_step_that_hides_a_tool_is_warned_of_where_it_is_declared(
    here: OneProcess, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(effect="read")
    def charge(order_id: str) -> str:
        return order_id

    order = Agent("order", app=here.app, tools=[charge])
    order.step(lambda _state: done(), name="charge.lambda")
    assert caplog.text == ""

    @order.step(start=True)  # type: ignore[no-redef]
    def charge(state: Any) -> Any:
        return done(charge("o-1"))

    (said,) = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "tool_hidden"]
    assert said.startswith(
        "step 'charge' of agent 'order' has a function of the same name as tool 'charge', which it hides"
    )
    with pytest.raises(RunFailed) as failed:
        here.run(order).get(timeout=0)
    assert (
        "step 'charge' called charge, which is step 'charge' of agent 'order', with 'o-1', which is no state. The agent has a tool of "
        "this name, too"
    ) in str(failed.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda step: step(), "without a state."),
        (lambda step: step(order_id="o-1"), "without a state."),
        (lambda step: step({}, cents=300), "with keywords."),
        (lambda step: step(["o-1"]), "with ['o-1'], which is no state. To go on with it, return the step itself: return ship."),
    ],
    ids=["nothing", "keywords", "more keywords", "a list"],
)  # fmt: skip
def test_a_step_that_is_called_in_a_step_needs_a_state(here: OneProcess, call: Any, said: str) -> None:
    def ship(state: Any, results: Any = None, cents: int = 0) -> Any:
        return done("shipped")

    order = here.agent(create=lambda _state: call(step))
    step = order.step(ship)
    with pytest.raises(RunFailed) as failed:
        here.run(order).get(timeout=0)
    assert said in str(failed.value)


def test_outside_of_a_step_a_test_may_call_one_with_anything(here: OneProcess) -> None:
    order = here.agent(create=done)
    assert order.steps["create"](["o-1"]) == done(["o-1"])
