"""Runs in this process: whose runtime they work with, and what Ctrl-C does to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from agent_tasks import Agent, AgentTask, Happened, RunHandle, carry_run, done, tool
from agent_tasks.boundary import Boundary, Point
from agent_tasks.integration import AppState
from agent_tasks.states import RunStatus
from tests.duel import in_thread
from tests.one_process import OneProcess

LIMIT = 30


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OneProcess]:
    made = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield made
    made.close()


# -- whose runtime ---------------------------------------------------------------------------------------------------------


def test_other_threads_go_on_with_their_processs_ledger(here: OneProcess) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(_state: Any) -> Any:
        begun.set()
        assert may_end.wait(LIMIT)
        return done("inline")

    inner, outer = here.agent(name="inner", s=slow), here.agent(name="outer", s=lambda _state: done("outer"))
    said: list[Any] = []
    thread = threading.Thread(target=lambda: said.append(inner.run_inline({})))
    thread.start()
    assert begun.wait(LIMIT)
    run = outer.enqueue({}, run_id="run-1")
    may_end.set()
    thread.join(LIMIT)

    assert said == ["inline"]
    assert RunHandle(here.runtime, "run-1").status is RunStatus.QUEUED
    here.work(outer)
    assert run.get(timeout=0) == "outer"


def test_the_process_has_its_runtime_again_after_a_run_in_it(here: OneProcess) -> None:
    order = here.agent(s=lambda _state: done())
    order.run_inline({})
    assert AppState.of(here.app).runtime is here.runtime
    assert here.run(order).status is RunStatus.SUCCEEDED


def by_itself(work: Callable[[], None]) -> None:
    work()


def in_a_thread_that_carries_the_run(work: Callable[[], None]) -> None:
    in_thread(carry_run(work))


def in_a_thread_of_asyncio(work: Callable[[], None]) -> None:
    asyncio.run(asyncio.to_thread(work))


@pytest.mark.parametrize("way", [by_itself, in_a_thread_that_carries_the_run, in_a_thread_of_asyncio])
def test_what_a_step_enqueues_in_process_stays_in_its_ledger(here: OneProcess, way: Any) -> None:
    other = here.agent(name="other", s=lambda _state: done())
    seen: list[str] = []

    def enqueue() -> None:
        seen.append(other.enqueue({}, run_id="run-2").status)

    def go(_state: Any) -> Any:
        way(enqueue)
        return done("gone")

    before = here.counts()
    # The other agent's doorbell is answered by the same coordinator, which knows it is none of its agent's.
    assert here.agent(go=go).run_inline({}) == "gone"
    assert seen == [RunStatus.QUEUED]
    assert here.counts() == before


def test_a_run_in_a_run_has_a_ledger_of_its_own(here: OneProcess) -> None:
    inner = here.agent(name="inner", s=lambda _state: done(AppState.of(here.app).runtime.settings.database_url))

    def s(_state: Any) -> Any:
        mine = AppState.of(here.app).runtime.settings.database_url
        return done([mine, inner.run_inline({}), AppState.of(here.app).runtime.settings.database_url])

    first, within, after = here.agent(name="outer", s=s).run_inline({})
    assert first == after != within


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------------

EFFECTS: dict[str, dict[str, Any]] = {
    "read": {},
    "repeatable": {"why": "a test counts nothing"},
    "transactional": {},
    "keyed": {"key_lifetime": timedelta(hours=1)},
    "probed": {"timeout": timedelta(seconds=20)},
    "manual": {"timeout": timedelta(seconds=20)},
}


def paying(app: Celery, effect: str, body: Callable[[], None]) -> Agent:
    def pay() -> str:
        body()
        return "paid"

    guarded = tool(effect=effect, **EFFECTS[effect], bind=False)(pay)
    if effect == "probed":
        guarded.probe(lambda _operation: Happened("paid"))
    agent = Agent("order", app=app, tools=[guarded])
    agent.step(lambda _state: done(guarded()), name="go", start=True)
    return agent


@pytest.mark.parametrize("effect", EFFECTS)
def test_ctrl_c_in_a_body_comes_out_of_a_run_in_process_at_once(here: OneProcess, effect: str) -> None:
    ledgers: list[Path] = []

    def body() -> None:
        ledgers.append(Path(AppState.of(here.app).runtime.settings.database_url.removeprefix("sqlite:///")))
        assert ledgers[-1].exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        paying(here.app, effect, body).run_inline({})
    assert len(ledgers) == 1
    assert not ledgers[0].exists()
    assert AppState.of(here.app).runtime is here.runtime


POINTS = [
    Point(kind, name, moment)
    for kind, name in (
        ("commit", "claim"),
        ("commit", "intent"),
        ("effect", "pay"),
        ("commit", "outcome"),
        ("commit", "step"),
    )
    for moment in ("before", "after")
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_ctrl_c_at_any_boundary_comes_out_of_a_run_in_process_at_once(
    here: OneProcess, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[Point] = []
    bodies: list[int] = []

    def observe(at: Point) -> None:
        if at == point:
            struck.append(at)
            raise KeyboardInterrupt

    monkeypatch.setattr(Boundary, "default_observer", staticmethod(observe))
    with pytest.raises(KeyboardInterrupt):
        paying(here.app, "keyed", lambda: bodies.append(1)).run_inline({})
    assert struck == [point]
    assert len(bodies) <= 1


@pytest.mark.parametrize("effect", [effect for effect in EFFECTS if effect not in ("read", "probed")])
def test_ctrl_c_in_the_body_of_a_task_comes_out_of_apply_at_once(effect: str) -> None:
    app, bodies = Celery("eager", broker="memory://", set_as_current=False), []

    def pay(self: Any) -> None:
        bodies.append(1)
        raise KeyboardInterrupt

    options: dict[str, Any] = {"effect": effect, "bind": True, **EFFECTS[effect]}
    task = app.task(base=AgentTask, name="pay", shared=False, **options)(pay)
    with pytest.raises(KeyboardInterrupt):
        task.apply()
    assert bodies == [1]


def test_ctrl_c_in_a_worker_leaves_the_doubt_that_it_made(here: OneProcess) -> None:
    def body() -> None:
        raise KeyboardInterrupt

    run = here.run(paying(here.app, "keyed", body))
    assert run.status is RunStatus.WAITING
    assert [str(operation.status) for operation in run.operations()] == ["unknown"]
