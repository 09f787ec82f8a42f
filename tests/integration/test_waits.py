"""Runs that sleep, and runs that wait until a check says yes: rows with a due time, and no worker (I7-I9, I12)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from agent_tasks import (
    Agent,
    AgentTask,
    RunCancelled,
    RunFailed,
    Tool,
    calls,
    current_run,
    done,
    fail,
    sleep,
    sleep_until,
    tool,
    wait_until,
)
from agent_tasks import runs as runs_module
from agent_tasks.errors import BadOutcome
from agent_tasks.inline import answer_all
from agent_tasks.schema import CALLS_PROTOCOL, PLAIN_PROTOCOL, WAITS_PROTOCOL
from agent_tasks.states import OperationStatus, RunStatus
from tests.agents import new_app
from tests.duel import RUN, Duel, Outage, duel, observed

MINUTE, HOUR = 60.0, 3600.0
TIMEOUT = timedelta(seconds=10)


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    """On SQLite only, for what asks nothing of the database."""
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        yield both


def sleeper(here: Duel, duration: Any = HOUR) -> Agent:
    made = Agent("sleeper", app=here.app)

    @made.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = current_run.seq
        return sleep(duration, then=second)

    @made.step
    def second(state: Any) -> Any:
        here.requests.append("second")
        return done([state["first"], current_run.seq])

    return made


# -- sleep --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", [HOUR, timedelta(hours=1), 3600])
def test_a_run_goes_on_after_its_time_and_not_before(here: Duel, duration: Any) -> None:
    agent = sleeper(here, duration)
    run = here.run(agent)
    row = here.row()
    assert (row["status"], row["seq"], row["next_step"], row["lease_token"]) == ("waiting", 1, "second", None)
    assert HOUR - 10 < (row["due_at"] - row["now"]) / 1e6 <= HOUR
    assert "to go on with step second" in (run.waiting_for or "")
    here.later(agent, HOUR - 10)
    assert (run.status, here.requests) == (RunStatus.WAITING, [])
    here.sound()
    here.later(agent, 10)
    assert run.get(timeout=0) == [1, 2]
    here.sound()


def test_a_run_sleeps_until_a_moment_and_one_that_has_passed_is_no_wait(one: Duel) -> None:
    made = Agent("sleeper", app=one.app)
    moment = datetime.now(timezone.utc) + timedelta(hours=1)

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return sleep_until(moment, then=second)

    @made.step
    def second(_state: Any) -> Any:
        return sleep_until(datetime(2020, 1, 1, tzinfo=timezone.utc), then=third)

    @made.step
    def third(_state: Any) -> Any:
        return done("awake")

    run = one.run(made)
    assert abs(one.row()["due_at"] - moment.timestamp() * 1e6) < 10
    one.later(made, HOUR + 1)
    one.later(made, 0)
    assert run.get(timeout=0) == "awake"


def test_a_run_that_is_woken_before_its_time_sleeps_on(here: Duel) -> None:
    agent = sleeper(here)
    run = here.run(agent)
    due_at = here.row()["due_at"]
    here.set_run(status="queued", due_at=0)  # as by a late outcome of an operation that nobody waits for
    here.later(agent, MINUTE)
    assert (run.status, here.row()["due_at"], here.requests) == (RunStatus.WAITING, due_at, [])
    here.later(agent, HOUR)
    assert run.get(timeout=0) == [1, 2]


def test_a_person_lets_a_sleeping_run_go_on_at_once(here: Duel) -> None:
    agent = sleeper(here)
    run = here.run(agent)
    run.resume(who="kim", why="it need not wait")
    here.work(agent)
    assert run.get(timeout=0) == [1, 2]
    here.sound()


def test_a_run_that_is_resumed_from_the_step_that_sleeps_sleeps_again(here: Duel) -> None:
    agent = sleeper(here)
    run = here.run(agent)
    here.runtime.clock.advance(MINUTE)
    run.resume(from_seq=1, who="kim", why="once more")
    here.work(agent)
    row = here.row()
    assert (run.status, row["seq"], row["line"]) == (RunStatus.WAITING, 1, 1)
    assert (row["due_at"] - row["now"]) / 1e6 > HOUR - 10
    here.later(agent, HOUR)
    assert run.get(timeout=0) == [1, 2]
    here.sound()


def test_a_sleeping_run_is_cancelled_at_once_and_never_wakes(here: Duel) -> None:
    agent = sleeper(here)
    run = here.run(agent)
    assert run.cancel(who="kim", why="not needed")
    here.later(agent, 2 * HOUR)
    with pytest.raises(RunCancelled, match="not needed"):
        run.get(timeout=0)
    assert here.requests == []


def test_a_cancel_that_comes_while_the_step_runs_is_honoured_at_its_end(here: Duel) -> None:
    made = Agent("sleeper", app=here.app)

    @made.step(start=True)
    def first(_state: Any) -> Any:
        run.cancel(who="kim", why="not needed")
        return sleep(HOUR, then=second)

    @made.step
    def second(_state: Any) -> Any: ...

    run = made.enqueue({}, run_id=RUN)
    here.work(made)
    assert (run.status, here.row()["seq"]) == (RunStatus.CANCELLED, 1)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_sleep_whose_commit_has_no_answer_is_written_once(here: Duel, moment: str) -> None:
    outage = Outage("step", moment)
    observed(here.runtime, outage)
    agent = sleeper(here)
    run = here.run(agent)
    assert (outage.hits, run.status) == (1, RunStatus.WAITING)
    here.later(agent, HOUR)
    assert run.get(timeout=0) == [1, 2]


def test_what_a_zombie_returns_puts_nobody_to_sleep(here: Duel) -> None:
    made = Agent("sleeper", app=here.app)

    @made.step(start=True)
    def first(state: Any) -> Any:
        if current_run.number == 1:
            here.meanwhile(made)
            return sleep(HOUR, then=second)
        return done("by the rival")

    @made.step
    def second(_state: Any) -> Any: ...

    run = here.run(made)
    assert run.get(timeout=0) == "by the rival"
    assert here.row()["due_at"] is None
    here.sound()


def test_waits_pass_at_once_in_a_run_inline() -> None:
    made = Agent("sleeper", app=new_app())
    looks: list[int] = []

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return sleep(timedelta(days=3), then=second)

    @made.step
    def second(_state: Any) -> Any:
        return wait_until(ready, every=HOUR, then=last)

    @made.step
    def ready(_state: Any) -> Any:
        looks.append(1)
        return len(looks) == 5

    @made.step
    async def last(_state: Any) -> Any:
        return done(len(looks))

    assert made.run_inline() == 5


# -- wait_until ---------------------------------------------------------------------------------------------------------------


def waiter(here: Duel, check: Any, *tools: Tool[..., Any], then: Any = None, **options: Any) -> Agent:
    """An agent whose second step follows a yes, and whose third one follows a time-out."""
    made = Agent("waiter", app=here.app, tools=tools)
    options = {"every": MINUTE, "on_timeout": "late", "timeout": HOUR, **options}

    @made.step(start=True)
    def first(state: Any) -> Any:
        state["first"] = True
        follows = None if options["on_timeout"] is None else made.steps["late"]
        return wait_until(made.steps["ready"], then=made.steps["second"], **{**options, "on_timeout": follows})

    made.step(check, name="ready", max_retries=1, default_retry_delay=5)
    made.step(then or (lambda state, answer: done([dict(state), answer, current_run.seq])), name="second")
    made.step(lambda state: done("late"), name="late")
    return made


def after(here: Duel, looks: int, answer: Any = True) -> Any:
    """A check that says yes at one of its looks."""

    def ready(_state: Any) -> Any:
        here.requests.append(here.row()["status"])
        return answer if len(here.requests) >= looks else None

    return ready


def test_a_check_is_asked_under_a_lease_now_and_then_until_it_says_yes(here: Duel) -> None:
    agent = waiter(here, after(here, 3, {"parcel": (1, 2)}))
    run = here.run(agent)
    row = here.row()
    assert (row["status"], row["seq"], row["next_step"], row["lease_token"]) == ("waiting", 1, "ready", None)
    assert "to ask ready again, at the latest until" in (run.waiting_for or "")
    for asked in (1, 2):
        assert here.requests == ["running"] * asked
        here.later(agent, MINUTE - 5)
        assert here.requests == ["running"] * asked
        here.sound()
        here.later(agent, 5)
    assert run.get(timeout=0) == [{"first": True}, {"parcel": (1, 2)}, 3]
    assert [summary.seq for summary in checkpoints(here)] == [3, 2, 1, 0]
    here.sound()


def checkpoints(here: Duel) -> list[Any]:
    store = here.runtime.store
    return here.runtime.boundary.read(here.runtime.engine, lambda c: store.ancestors(RUN, 3, 10, connection=c))


def test_a_step_that_follows_need_not_take_the_answer(one: Duel) -> None:
    agent = waiter(one, after(one, 1), then=lambda state: done(dict(state.metadata)))
    noted = one.run(agent).get(timeout=0)
    assert "next_wait" not in noted


def test_an_async_check_is_asked_too(one: Duel) -> None:
    async def ready(_state: Any) -> Any:
        one.requests.append(1)
        return len(one.requests) == 2

    agent = waiter(one, ready)
    run = one.run(agent)
    one.later(agent, MINUTE)
    assert run.get(timeout=0) == [{"first": True}, True, 3]


def test_after_a_no_nothing_of_it_is_kept_and_after_a_yes_all(one: Duel) -> None:
    def ready(state: Any) -> Any:
        state["asked"] = state.get("asked", 0) + 1
        one.requests.append(state["asked"])
        return len(one.requests) == 2

    agent = waiter(one, ready)
    run = one.run(agent)
    one.later(agent, MINUTE)
    assert run.get(timeout=0) == [{"first": True, "asked": 1}, True, 3]
    assert one.requests == [1, 1]


def test_a_check_reads_anew_each_time_and_its_reads_have_one_row(here: Duel) -> None:
    @tool(effect="read")
    def status(of: str) -> str:
        here.requests.append(of)
        if len(here.requests) == 2:
            raise KeyError("no answer")
        return "shipped" if len(here.requests) == 3 else "packed"

    def ready(_state: Any) -> Any:
        try:
            return status("parcel") == "shipped"
        except KeyError:
            return False

    agent = waiter(here, ready, status)
    run = here.run(agent)
    assert here.operation().status is OperationStatus.PENDING
    here.later(agent, MINUTE)
    here.later(agent, MINUTE)
    assert run.get(timeout=0)[1] is True
    assert (len(here.requests), here.operation().attempts, here.operation().seq) == (3, 3, 2)
    here.sound()


def test_a_check_that_is_asked_again_after_a_crash_does_not_read_again(here: Duel) -> None:
    @tool(effect="read")
    def status() -> str:
        here.requests.append("read")
        return "shipped"

    def ready(_state: Any) -> Any:
        said = status()
        if current_run.number == 1:
            raise MemoryError
        return said

    run = here.run(waiter(here, ready, status))
    assert run.get(timeout=0) == [{"first": True}, "shipped", 3]
    assert here.requests == ["read"]
    here.sound()


def test_a_crash_behind_a_yes_does_not_ask_again(here: Duel) -> None:
    def second(_state: Any, answer: Any) -> Any:
        if current_run.number == 1:
            raise MemoryError
        return done(answer)

    run = here.run(waiter(here, after(here, 1, "yes"), then=second))
    assert (run.get(timeout=0), len(here.requests)) == ("yes", 1)


def test_a_check_that_goes_on_saying_no_is_not_parked_for_crashes_between(here: Duel) -> None:
    most = here.runtime.settings.max_crashes

    def ready(_state: Any) -> Any:
        here.requests.append(1)
        if len(here.requests) % 2:
            raise MemoryError
        return len(here.requests) >= 2 * most + 2

    agent = waiter(here, ready)
    run = here.run(agent)
    for _ in range(most):
        assert (here.row()["status"], here.row()["crashes"]) == ("waiting", 0)
        here.later(agent, MINUTE)
    assert run.status is RunStatus.SUCCEEDED
    here.sound()


def test_a_check_that_loses_its_worker_too_often_asks_a_person(one: Duel) -> None:
    def ready(_state: Any) -> Any:
        raise MemoryError

    run = one.run(waiter(one, ready))
    assert (run.status, one.questions()) == (RunStatus.NEEDS_ATTENTION, ["crashes"])


def test_a_check_that_raises_is_retried_as_its_declaration_says(one: Duel) -> None:
    def ready(_state: Any) -> Any:
        one.requests.append(1)
        raise ValueError("not so")

    agent = waiter(one, ready)
    run = one.run(agent)
    assert (run.status, len(one.requests)) == (RunStatus.WAITING, 1)
    one.later(agent, 5)
    with pytest.raises(RunFailed, match="ValueError: not so"):
        run.get(timeout=0)
    assert len(one.requests) == 2


@pytest.mark.parametrize("late_by", [0, 10 * HOUR], ids=["a worker is there", "a worker comes later"])
def test_a_check_is_asked_once_more_before_its_time_is_up(here: Duel, late_by: float) -> None:
    agent = waiter(here, after(here, 99), every=0.7 * HOUR)
    run = here.run(agent)
    here.later(agent, 0.7 * HOUR)
    assert (len(here.requests), run.status) == (2, RunStatus.WAITING)
    assert (here.row()["due_at"] - here.row()["now"]) / 1e6 < 0.3 * HOUR + 1
    here.later(agent, 0.3 * HOUR + late_by)
    assert (run.get(timeout=0), len(here.requests)) == ("late", 3)
    here.sound()


def test_a_yes_at_the_last_look_counts(one: Duel) -> None:
    agent = waiter(one, after(one, 2, "just in time"))
    run = one.run(agent)
    one.later(agent, 9 * HOUR)
    assert run.get(timeout=0)[1] == "just in time"


def test_a_wait_that_says_nothing_of_its_end_fails_the_run(one: Duel) -> None:
    agent = waiter(one, after(one, 99), on_timeout=None, timeout=timedelta(minutes=1))
    run = one.run(agent)
    one.later(agent, MINUTE + 1)
    with pytest.raises(RunFailed, match=r"ready said no for 60 s, the timeout= of its wait_until\(…\)"):
        run.get(timeout=0)


def test_a_check_may_end_the_run(one: Duel) -> None:
    run = one.run(waiter(one, lambda _state: fail("lost at sea")))
    with pytest.raises(RunFailed, match="lost at sea"):
        run.get(timeout=0)


def test_a_check_that_returns_a_step_goes_there(one: Duel) -> None:
    made = waiter(one, lambda _state: made.steps["late"])
    assert one.run(made).get(timeout=0) == "late"


def test_a_wait_may_follow_a_wait_and_calls_may_follow_it(one: Duel) -> None:
    @tool(effect="manual", timeout=TIMEOUT)
    def act(what: str) -> str:
        return what.upper()

    made = waiter(one, lambda _state: sleep(HOUR, then=made.steps["asks"]), act)
    made.step(lambda _state: calls([act.call("a")], then=made.steps["second"]), name="asks")
    run = one.run(made)
    assert (run.status, one.row()["next_step"]) == (RunStatus.WAITING, "asks")
    one.later(made, HOUR)
    assert run.get(timeout=0) == [{"first": True}, ["A"], 4]
    assert one.row()["protocol"] == WAITS_PROTOCOL
    one.sound()


@pytest.mark.parametrize("effect", ["manual", "keyed", "repeatable", "transactional"])
def test_a_check_calls_no_tool_that_has_an_effect(one: Duel, effect: str) -> None:
    options: dict[str, Any] = {
        "manual": {"timeout": TIMEOUT},
        "keyed": {"key_lifetime": TIMEOUT, "bind": False},
        "repeatable": {"why": "it may"},
    }
    act = tool(effect=effect, name="act", **options.get(effect, {}))(one.requests.append)
    run = one.run(waiter(one, lambda _state: act("x"), act))
    with pytest.raises(
        RunFailed, match=f"EffectInCheck.*tool 'act' is '{effect}' and was called in 'ready'.*Nothing was sent"
    ):
        run.get(timeout=0)
    assert (one.requests, one.operations()) == ([], [])


def test_an_answer_that_cannot_be_stored_is_refused_by_name(one: Duel) -> None:
    run = one.run(waiter(one, lambda _state: {"parcel": object()}))
    with pytest.raises(RunFailed, match=r"BadOutcome.*\['parcel'\] in the answer of check 'ready' cannot be stored"):
        run.get(timeout=0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_no_whose_commit_has_no_answer_is_asked_again_in_time(here: Duel, moment: str) -> None:
    outage = Outage("not yet", moment)
    observed(here.runtime, outage)
    agent = waiter(here, after(here, 2, "yes"))
    run = here.run(agent)
    assert (outage.hits, run.status, len(here.requests)) == (1, RunStatus.WAITING, 1)
    here.later(agent, MINUTE)
    assert (run.get(timeout=0)[1], len(here.requests)) == ("yes", 2)
    here.sound()


def test_a_zombies_no_makes_nobody_wait(here: Duel) -> None:
    def ready(_state: Any) -> Any:
        here.requests.append(current_run.number)
        if len(here.requests) == 1:
            here.meanwhile(agent)
            return False
        return "yes, says the rival"

    agent = waiter(here, ready)
    run = here.run(agent)
    assert run.get(timeout=0)[1] == "yes, says the rival"
    assert here.requests == [1, 2]
    here.sound()


def test_a_zombies_yes_moves_nobody(here: Duel) -> None:
    def ready(_state: Any) -> Any:
        here.requests.append(current_run.number)
        if len(here.requests) == 1:
            here.meanwhile(agent)
            return "yes, says the zombie"
        return False

    agent = waiter(here, ready)
    run = here.run(agent)
    assert (run.status, here.row()["seq"], here.requests) == (RunStatus.WAITING, 1, [1, 2])
    here.sound()


def test_a_waiting_run_is_cancelled_between_and_in_the_middle_of_questions(here: Duel) -> None:
    def ready(_state: Any) -> Any:
        run.cancel(who="kim", why="not needed")
        return False

    agent = waiter(here, ready)
    run = agent.enqueue({}, run_id=RUN)
    here.work(agent)
    assert run.status is RunStatus.CANCELLED
    here.sound()


def test_a_person_lets_a_check_be_asked_at_once(here: Duel) -> None:
    agent = waiter(here, after(here, 2, "yes"))
    run = here.run(agent)
    run.resume(who="kim", why="it is there")
    here.work(agent)
    assert run.get(timeout=0)[1] == "yes"
    here.sound()


def test_a_worker_of_a_release_that_knows_no_checks_leaves_the_run_alone(
    here: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = waiter(here, after(here, 1, "yes"))
    run = agent.enqueue({}, run_id=RUN)
    assert here.row()["protocol"] == PLAIN_PROTOCOL
    monkeypatch.setattr(runs_module, "PROTOCOL", CALLS_PROTOCOL)
    here.work(agent)
    assert (run.status, here.row()["seq"], here.requests) == (RunStatus.QUEUED, 1, [])
    monkeypatch.undo()
    here.later(agent, MINUTE)
    assert run.get(timeout=0)[1] == "yes"


# -- what is refused ------------------------------------------------------------------------------------------------------------


def _then(_state: Any) -> Any: ...


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "30", None, True, timedelta(seconds=-1), 1e12])
def test_a_duration_of_no_use_is_refused(wrong: Any) -> None:
    for make in (
        lambda: sleep(wrong, then=_then),
        lambda: wait_until(_then, every=wrong, then=_then),
        lambda: wait_until(_then, every=1, timeout=wrong if wrong is not None else "none", then=_then),
    ):
        with pytest.raises(BadOutcome, match=r"a number of seconds or a timedelta, from .* to a hundred years, got"):
            make()


def test_a_check_that_would_be_asked_without_a_pause_is_refused() -> None:
    with pytest.raises(BadOutcome, match=r"every= of wait_until\(…\) must be .* from 1 seconds"):
        wait_until(_then, every=0.5, then=_then)


@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=-12))])
def test_a_run_that_would_sleep_longer_than_a_hundred_years_fails_and_is_listed(one: Duel, zone: timezone) -> None:
    made = Agent("sleeper", app=one.app)

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return sleep_until(datetime.max.replace(tzinfo=zone), then=_then)

    made.step(_then)
    run = one.run(made)
    with pytest.raises(RunFailed, match=r"sleep_until\(…\) for 9999-12-31.*a run sleeps for a hundred years at most"):
        run.get(timeout=0)


def test_a_run_that_waits_for_a_year_of_no_calendar_hides_no_other_one(one: Duel) -> None:
    agent = sleeper(one)
    run = one.run(agent)
    one.set_run(due_at=253_402_400_000_000_000)  # as an earlier release wrote it: on the second of January 10000
    assert "9999-12-31T23:59:59Z" in (run.waiting_for or "")


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), 1893456000, "2030-01-01"])  # noqa: DTZ001 - that is what is wrong
def test_a_moment_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOutcome, match=r"sleep_until\(…\) takes a datetime with a time zone, got"):
        sleep_until(wrong, then=_then)


def test_what_would_follow_no_timeout_is_refused() -> None:
    with pytest.raises(BadOutcome, match="give timeout=, too"):
        wait_until(_then, every=1, then=_then, on_timeout=_then)


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        (lambda s: sleep(1, then=None), r"UnknownStep: .*returned sleep\(…, then=None\), which is no step of"),
        (lambda s: sleep(1, then=_then), r"UnknownStep: .*returned sleep\(…, then='_then'\), which is no step of"),
        (lambda s: sleep(1, then="second"), r"Give the function itself, as in then=answer"),
        (lambda s: sleep(1, then=s["second"]), r"BadOutcome: .*step 'second' needs a second argument"),
        (lambda s: wait_until(_then, every=1, then=s["late"]), r"wait_until\(…, check='_then'\), which is no step"),
        (
            lambda s: wait_until(s["second"], every=1, then=s["late"]),
            r"check=second\), and step 'second' needs a second",
        ),
        (lambda s: wait_until(s["late"], every=1, then=_then), r"wait_until\(…, then='_then'\), which is no step"),
        (
            lambda s: wait_until(s["late"], every=1, then=s["late"], timeout=1, on_timeout=s["second"]),
            r"on_timeout=second\), and step 'second' needs a second argument",
        ),
    ],
)
def test_a_wait_that_leads_nowhere_fails_the_run_before_anything_is_written(one: Duel, returns: Any, said: str) -> None:
    made = Agent("waiter", app=one.app)
    made.step(lambda _state: returns(made.steps), name="first", start=True)
    made.step(lambda state, answer: done(), name="second")
    made.step(lambda state: done(), name="late")
    run = one.run(made)
    with pytest.raises(RunFailed, match=said):
        run.get(timeout=0)
    assert one.row()["seq"] == 0


def test_a_plain_task_has_no_step_to_wait_for(one: Duel) -> None:
    @one.app.task(base=AgentTask, tools=[], name="waits")
    def waits() -> Any:
        return sleep(1, then=_then)

    handle = waits.run_handle(waits.delay())
    answer_all(one.runtime, waits.job)
    with pytest.raises(RunFailed, match="returned a wait, and a plain task has no next step"):
        handle.get(timeout=0)


def test_a_step_that_returns_a_wait_is_tested_as_the_plain_function_that_it_is() -> None:
    made = Agent("tested", app=new_app())

    @made.step(start=True)
    def first(_state: Any) -> Any:
        return wait_until(ready, every=timedelta(minutes=1), then=last)

    @made.step
    def ready(state: Any) -> Any:
        return state["ready"]

    @made.step
    def last(_state: Any) -> Any:
        return sleep(30, then=last)

    assert first({}) == wait_until(ready, every=60, then=last)
    assert first({}) != wait_until(ready, every=61, then=last)
    assert ready({"ready": 0}) == 0
    assert last({}) == sleep(timedelta(seconds=30), then=last)
