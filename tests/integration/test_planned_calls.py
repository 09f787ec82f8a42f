"""Calls that a step returns: planned in its commit, made by the next step, whose attempts and lines meet the same ones (I4, I7, I12)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Agent, FailedCall, RunFailed, Tool, calls, current_run, done, tool
from agent_tasks import runs as runs_module
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import ConfigurationError
from agent_tasks.identity import operation_id
from agent_tasks.outcomes import Calls
from agent_tasks.schema import CALLS_PROTOCOL, PLAIN_PROTOCOL
from agent_tasks.states import RunStatus
from agent_tasks.steps import Step
from tests.agents import new_app
from tests.duel import RUN, Duel, Outage, duel, observed

TIMEOUT = timedelta(seconds=10)

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


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


def manual(here: Duel, declined: str = "") -> Tool[..., Any]:
    @tool(effect="manual", timeout=TIMEOUT, refused=(Declined,), name="act")
    def act(what: str) -> str:
        here.requests.append(what)
        if what in declined:
            raise Declined(what)
        return what.upper()

    return act


def asking(here: Duel, act: Tool[..., Any], then: Any, letters: str = "ab", **options: Any) -> Agent:
    """An agent whose first step asks for calls as a model does, with a message, and whose second one gets the results."""
    made = Agent("asker", app=here.app, tools=[act])

    @made.step(start=True)
    def ask(state: Any) -> Any:
        state.messages.append({"role": "assistant", "tool_calls": [{"id": letter} for letter in letters]})
        state["asked"] = letters
        return calls([act.call(letter) for letter in letters], then=made.steps["answer"], **options)

    made.step(then, name="answer", max_retries=2, default_retry_delay=60)
    return made


def answer(state: Any, results: Any) -> Any:
    return done([state["asked"], results])


def statuses(here: Duel) -> dict[str, str]:
    return {operation.args["what"]: str(operation.status) for operation in here.operations()}


def test_the_calls_are_planned_with_the_message_that_asks_for_them(here: Duel) -> None:
    act = manual(here)
    asker = asking(here, act, answer)
    run = asker.enqueue({}, run_id=RUN)
    bell = here.runtime.bell
    assert isinstance(bell, InlineBell)

    here.runtime.boundary.observer = stopper = StopAfter(bell)
    here.work(asker)
    assert (here.row()["seq"], here.row()["next_step"], here.row()["protocol"]) == (1, "answer", CALLS_PROTOCOL)
    assert (statuses(here), here.requests) == ({"a": "pending", "b": "pending"}, [])
    assert {o.operation_id for o in here.operations()} == {operation_id(RUN, 2, "act", number) for number in range(2)}
    assert {o.seq for o in here.operations()} == {2}
    (message,) = run.state().messages
    assert message["tool_calls"] == [{"id": "a"}, {"id": "b"}]
    here.sound()

    bell.rings.extend(stopper.kept)
    here.runtime.boundary.observer = None
    here.work(asker)
    assert run.get(timeout=0) == ["ab", ["A", "B"]]
    assert sorted(here.requests) == ["a", "b"]
    here.sound()


class StopAfter:
    """Takes the doorbells away that are rung after the first step."""

    def __init__(self, bell: InlineBell) -> None:
        self.bell, self.kept = bell, list[Any]()

    def __call__(self, point: Any) -> None:
        if str(point) == "after ack doorbell":
            self.kept += self.bell.rings
            self.bell.rings.clear()


def test_the_calls_stand_in_the_one_checkpoint_that_asks_for_them(one: Duel) -> None:
    act = manual(one)
    asker = asking(one, act, lambda state, results: asker.steps["last"])
    asker.step(lambda state: done(dict(state.metadata)), name="last")
    run = one.run(asker)
    assert "next_calls" not in run.get(timeout=0)
    assert [operation.seq for operation in run.operations()] == [2, 2]


def test_calls_of_the_step_itself_come_after_the_planned_ones(one: Duel) -> None:
    act = manual(one)
    run = one.run(asking(one, act, lambda state, results: done([*results, act("c")])))
    assert run.get(timeout=0) == ["A", "B", "C"]
    assert one.operations()[-1].operation_id == operation_id(RUN, 2, "act", 2)
    one.sound()


def test_no_calls_have_no_results(one: Duel) -> None:
    assert one.run(asking(one, manual(one), answer, letters="")).get(timeout=0) == ["", []]


def test_failures_are_collected_for_the_step_that_gets_the_results(one: Duel) -> None:
    def look(_state: Any, results: Any) -> Any:
        return done([str(result.error) if isinstance(result, FailedCall) else result for result in results])

    run = one.run(asking(one, manual(one, declined="b"), look, letters="abc", on_error="collect"))
    assert run.get(timeout=0) == ["A", "b", "C"]


def test_a_failure_is_as_if_the_next_step_had_raised_it_and_its_retry_makes_the_calls_again(here: Duel) -> None:
    act = manual(here, declined="b")
    asker = asking(here, act, answer, letters="abc", max_concurrency=1)
    run = here.run(asker)
    assert (run.status, here.requests) == (RunStatus.WAITING, ["a", "b"])
    here.later(asker, 60)
    here.later(asker, 60)
    with pytest.raises(RunFailed, match="Declined: b"):
        run.get(timeout=0)
    assert here.requests == ["a", "b", "b", "b"]
    assert statuses(here) == {"a": "succeeded", "b": "failed", "c": "dropped"}
    here.sound()


def test_a_later_attempt_gets_the_recorded_results(here: Duel) -> None:
    act = manual(here)

    def crash_once(state: Any, results: Any) -> Any:
        if current_run.number == 1:
            raise MemoryError
        return answer(state, results)

    assert here.run(asking(here, act, crash_once)).get(timeout=0) == ["ab", ["A", "B"]]
    assert sorted(here.requests) == ["a", "b"]
    here.sound()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_whose_answer_is_lost_plans_the_calls_once(here: Duel, moment: str) -> None:
    outage = Outage("step", moment)
    observed(here.runtime, outage)
    assert here.run(asking(here, manual(here), answer)).get(timeout=0) == ["ab", ["A", "B"]]
    assert (outage.hits, sorted(here.requests)) == (1, ["a", "b"])
    here.sound()


def test_a_run_that_is_resumed_from_the_step_that_gets_the_results_makes_the_same_calls_from_the_ledger(
    here: Duel,
) -> None:
    act = manual(here)

    def fail_first(state: Any, results: Any) -> Any:
        if current_run.line == 0:
            raise ValueError("not yet")
        return answer(state, results)

    asker = asking(here, act, fail_first)
    run = here.run(asker)
    for _ in range(2):
        here.later(asker, 60)
    assert run.status is RunStatus.FAILED
    run.resume(who="kim", why="mended", from_seq=2)
    here.work(asker)
    assert run.get(timeout=0) == ["ab", ["A", "B"]]
    assert sorted(here.requests) == ["a", "b"]
    here.sound()


def test_a_run_that_is_resumed_from_the_step_that_asks_plans_what_it_asks_for_now(here: Duel) -> None:
    """What an older line planned and never began is planned anew; the old checkpoint still has its own calls (I12)."""
    act = manual(here, declined="a")
    asked: list[str] = ["ab", "xy"]
    asker = Agent("asker", app=here.app, tools=[act])

    @asker.step(start=True)
    def ask(state: Any) -> Any:
        state["asked"] = asked[current_run.line]
        return calls([act.call(letter) for letter in state["asked"]], then=last, max_concurrency=1)

    @asker.step
    def last(state: Any, results: Any) -> Any:
        return done([state["asked"], results])

    run = here.run(asker)
    assert (run.status, statuses(here)) == (RunStatus.FAILED, {"a": "failed", "b": "dropped"})
    operation = here.operations()[-1]
    run.resume(who="kim", why="another question", from_seq=1)
    here.work(asker)
    assert here.questions() == ["conflict"]  # the first call was begun with other arguments, and a person decides
    here.reply(asker, "new")
    assert run.get(timeout=0) == ["xy", ["X", "Y"]]
    assert here.requests == ["a", "x", "y"]
    anew = next(o for o in here.operations() if o.operation_id == operation.operation_id)
    assert (anew.args, str(anew.status)) == ({"what": "y"}, "succeeded")
    here.sound()


# -- other releases ---------------------------------------------------------------------------------------------------------


def test_a_worker_of_a_release_that_knows_no_planned_calls_leaves_the_run_alone(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = manual(here)
    asker = asking(here, act, answer)
    run = asker.enqueue({}, run_id=RUN)
    assert here.row()["protocol"] == PLAIN_PROTOCOL
    monkeypatch.setattr(runs_module, "PROTOCOL", PLAIN_PROTOCOL)
    here.work(asker)
    assert (run.status, here.row()["seq"], here.requests) == (RunStatus.QUEUED, 1, [])
    monkeypatch.undo()
    here.later(asker, 60)
    assert run.get(timeout=0) == ["ab", ["A", "B"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("the tool is gone", "a call of tool 'act', which is not in tools= of agent 'asker' here"),
        ("a parameter is gone", r"tool 'act', whose parameters are others here \(what\)"),
        ("a parameter is new", r"tool 'act', whose parameters are others here \(why\)"),
    ],
)
def test_a_worker_that_does_not_know_a_planned_call_leaves_it_to_one_that_does(
    here: Duel, change: str, said: str
) -> None:
    act = manual(here)
    asker = asking(here, act, answer)

    @tool(effect="manual", timeout=TIMEOUT, name="act")
    def without() -> None: ...

    @tool(effect="manual", timeout=TIMEOUT, name="act")
    def another(what: str, why: str) -> None: ...

    other: dict[str, dict[str, Any]] = {
        "the tool is gone": {},
        "a parameter is gone": {"act": without},
        "a parameter is new": {"act": another},
    }
    run = asker.enqueue({}, run_id=RUN)
    bell = here.runtime.bell
    here.runtime.boundary.observer = stopper = StopAfter(bell)  # type: ignore[arg-type]
    here.work(asker)
    here.runtime.boundary.observer = None
    known, asker.tools = asker.tools, other[change]
    bell.rings.extend(stopper.kept)  # type: ignore[attr-defined]
    here.work(asker)
    assert run.status is RunStatus.WAITING
    assert re.search(said, run.waiting_for or "")
    asker.tools = known
    here.later(asker, 60)
    assert run.get(timeout=0) == ["ab", ["A", "B"]]
    here.sound()


def test_a_parameter_with_a_default_may_be_added_meanwhile(here: Duel) -> None:
    act = manual(here)
    asker = asking(here, act, answer)

    @tool(effect="manual", timeout=TIMEOUT, name="act")
    def more(what: str, loud: bool = True) -> str:
        return what.upper() if loud else what

    run = asker.enqueue({}, run_id=RUN)
    bell = here.runtime.bell
    here.runtime.boundary.observer = stopper = StopAfter(bell)  # type: ignore[arg-type]
    here.work(asker)
    here.runtime.boundary.observer = None
    asker.tools = {"act": more}
    bell.rings.extend(stopper.kept)  # type: ignore[attr-defined]
    here.work(asker)
    assert run.get(timeout=0) == ["ab", ["A", "B"]]


# -- what is refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (
            lambda steps: "answr",
            r"then='answr'\), which is no step of agent 'asker'. Did you mean 'answer'\? Give the func",
        ),
        (lambda steps: "answer", "then='answer'.* Give the function itself, as in then=answer"),
        (lambda steps: None, "then=None"),
        (lambda steps: Step("answer", "another", answer), "no step of agent 'asker'"),
        (lambda steps: _answr, "then='_answr'"),
        (lambda steps: steps["ask"], "step 'ask' takes the state only. Give it a second parameter for the results"),
    ],
)
def test_calls_that_no_step_of_the_agent_gets_the_results_of_fail_the_run_before_anything_is_planned(
    one: Duel, then: Any, said: str
) -> None:
    act = manual(one)
    asker = Agent("asker", app=one.app, tools=[act])
    asker.step(lambda state: calls([act.call("a")], then=then(asker.steps)), name="ask", start=True, max_retries=3)
    asker.step(answer, name="answer")
    run = one.run(asker)
    with pytest.raises(RunFailed, match=said):
        run.get(timeout=0)
    assert (one.requests, one.operations()) == ([], [])


def _answr(state: Any, results: Any) -> Any: ...


def test_more_calls_than_allowed_or_of_a_tool_that_is_not_listed_are_not_planned(one: Duel) -> None:
    act = manual(one)
    most = one.runtime.settings.max_batch
    for tools, count, said in (
        ([act], most + 1, "agent_max_batch allows"),
        ([], 1, "'act' was called in step 'ask' and is not in"),
    ):
        asker = Agent(f"asker-{count}", app=one.app, tools=tools)
        asker.step(_ask(asker, act, count), name="ask", start=True)
        asker.step(answer, name="answer")
        run = one.run(asker, f"run-{count}")
        with pytest.raises(RunFailed, match=said):
            run.get(timeout=0)
    assert one.requests == []


def _ask(asker: Agent, act: Tool[..., Any], count: int) -> Any:
    return lambda _state: calls([act.call("a")] * count, then=asker.steps["answer"])


def test_a_step_that_needs_results_begins_no_run_and_follows_no_step_without_them(one: Duel) -> None:
    made = Agent("starts", app=one.app)
    with pytest.raises(ConfigurationError, match="step 'answer' of agent 'starts' is the one that runs begin with"):
        made.step(answer, start=True)
    made.step(answer)
    with pytest.raises(ConfigurationError, match="takes a second argument, the results of calls: there are none yet"):
        made.enqueue({})
    made.step(lambda state: made.steps["answer"], name="ask", start=True)
    with pytest.raises(
        RunFailed, match=r"returned step 'answer', which takes the results .* Return calls\(\[…\], then=answer"
    ):
        one.run(made).get(timeout=0)


def test_a_step_that_may_do_without_results_follows_either(one: Duel) -> None:
    made = Agent("either", app=one.app)

    @made.step(start=True)
    def first(state: Any, results: Any = None) -> Any:
        return done(results) if results is not None else calls([], then=first)

    assert one.run(made).get(timeout=0) == []


def test_a_step_that_returns_calls_is_tested_as_the_plain_function_that_it_is() -> None:
    @tool(effect="read")
    def search(query: str) -> str:
        return query

    made = Agent("tested", app=new_app(), tools=[search])

    @made.step(start=True)
    def ask(state: Any) -> Any:
        return calls([search.call(state["query"])], then=tell)

    @made.step
    def tell(_state: Any, results: Any) -> Any:
        return done(results)

    assert ask({"query": "tea"}) == calls([search.call(query="tea")], then=tell)
    assert ask({"query": "tea"}) != calls([search.call(query="milk")], then=tell)
    assert isinstance(ask({"query": "tea"}), Calls)
    assert tell({}, ["found"]) == done(["found"])
