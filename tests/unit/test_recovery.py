"""The recovery decision table, a row for each of its rows, and what must hold for every combination."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tasks import Agent, NotHappened, done, tool
from agent_tasks.recovery import MAX_SENDS, Decision, Promise, Recorded, decide
from agent_tasks.states import IN_DOUBT, Effect, OperationStatus
from tests.one_process import OneProcess

READ, REPEATABLE, TRANSACTIONAL = Promise(Effect.READ), Promise(Effect.REPEATABLE), Promise(Effect.TRANSACTIONAL)
WAITING = Promise(Effect.REPEATABLE, waits=True)
KEYED, KEYED_PROBED = Promise(Effect.KEYED), Promise(Effect.KEYED, has_probe=True)
PROBED, MANUAL = Promise(Effect.PROBED, has_probe=True, waits=True), Promise(Effect.MANUAL, waits=True)
EVERY = (READ, REPEATABLE, WAITING, TRANSACTIONAL, KEYED, KEYED_PROBED, PROBED, MANUAL)

PENDING, EXECUTING, UNKNOWN = OperationStatus.PENDING, OperationStatus.EXECUTING, OperationStatus.UNKNOWN
SUCCEEDED, FAILED, DROPPED = OperationStatus.SUCCEEDED, OperationStatus.FAILED, OperationStatus.DROPPED
EXECUTE, RETURN, RAISE, WAIT = Decision.EXECUTE, Decision.RETURN, Decision.RAISE, Decision.WAIT
PROBE, ASK, ASK_RESULT, CONFLICT = Decision.PROBE, Decision.ASK, Decision.ASK_RESULT, Decision.CONFLICT
PAUSE = Decision.PAUSE
ASK_SENDS = Decision.ASK_SENDS

#: In doubt, with everything in favour of sending again or asking.
DOUBT = Recorded(EXECUTING, key_lives=True)


def each(*statuses: OperationStatus, **facts: object) -> list[Recorded]:
    return [replace(DOUBT, status=status, **facts) for status in statuses]  # type: ignore[arg-type]


# what the ledger holds, promises, decision
ROWS: list[tuple[str, list[Recorded | None], tuple[Promise, ...], Decision]] = [
    ("a first call is executed", [None], EVERY, EXECUTE),
    ("planned work is executed", each(PENDING, attempts=0), EVERY, EXECUTE),
    ("what is known not to have happened is executed", each(PENDING, attempts=3), EVERY, EXECUTE),
    (
        "an old copy of a repeatable with a timeout is waited for, although the call failed",
        each(PENDING, attempts=3, horizon_passed=False),
        (WAITING,),
        WAIT,
    ),
    (
        "what is known not to have happened waits for nothing else",
        each(PENDING, attempts=3, horizon_passed=False),
        tuple(promise for promise in EVERY if promise is not WAITING),
        EXECUTE,
    ),
    ("a call that was refused for a while waits for its date", each(PENDING, attempts=1, may_ask=False), EVERY, PAUSE),
    ("dropped work that is asked for again is executed", each(DROPPED, attempts=0), EVERY, EXECUTE),
    ("a success is returned", each(SUCCEEDED), EVERY, RETURN),
    ("a success is returned whatever the clock says", each(SUCCEEDED, horizon_passed=False), EVERY, RETURN),
    ("a success without its result is asked about", each(SUCCEEDED, result_missing=True), EVERY, ASK_RESULT),
    ("a failure is raised again", each(FAILED), EVERY, RAISE),
    # it did not happen, again and again
    (
        "what its probe says did not happen is sent again up to its limit",
        each(PENDING, attempts=MAX_SENDS - 1, probe_said_no=True),
        EVERY,
        EXECUTE,
    ),
    (
        "what was sent too often, each time for nothing, is a person's to send again",
        each(PENDING, attempts=MAX_SENDS, probe_said_no=True) + each(PENDING, attempts=99, probe_said_no=True),
        EVERY,
        ASK_SENDS,
    ),
    (
        "what a person says did not happen is sent again however often",
        each(PENDING, attempts=MAX_SENDS, probe_said_no=False),
        EVERY,
        EXECUTE,
    ),
    (
        "other arguments come before the question whether it is sent again",
        each(PENDING, attempts=MAX_SENDS, probe_said_no=True, same_args=False),
        EVERY[1:],
        CONFLICT,
    ),
    # other arguments
    (
        "a read with other arguments runs again",
        each(PENDING, SUCCEEDED, FAILED, DROPPED, same_args=False),
        (READ,),
        EXECUTE,
    ),
    (
        "an effect with other arguments is a conflict",
        each(PENDING, SUCCEEDED, FAILED, DROPPED, same_args=False),
        EVERY[1:],
        CONFLICT,
    ),
    (
        "other arguments for work that never began are no conflict",
        each(PENDING, DROPPED, same_args=False, attempts=0),
        EVERY,
        EXECUTE,
    ),
    (
        "other arguments and a missing result are a conflict first",
        each(SUCCEEDED, same_args=False, result_missing=True),
        EVERY[1:],
        CONFLICT,
    ),
    # in doubt: free to send again
    (
        "what nobody minds twice is sent again at once",
        each(EXECUTING, UNKNOWN, horizon_passed=False),
        (READ, TRANSACTIONAL, REPEATABLE),
        EXECUTE,
    ),
    (
        "what nobody minds twice is sent again however often",
        each(EXECUTING, UNKNOWN, attempts=MAX_SENDS + 1),
        (READ, TRANSACTIONAL, REPEATABLE),
        EXECUTE,
    ),
    ("a repeatable with a timeout waits", each(EXECUTING, UNKNOWN, horizon_passed=False), (WAITING,), WAIT),
    ("and is sent again after its horizon", each(EXECUTING, UNKNOWN), (WAITING,), EXECUTE),
    # in doubt: keyed
    (
        "a living key sends again without waiting",
        each(EXECUTING, UNKNOWN, horizon_passed=False),
        (KEYED, KEYED_PROBED),
        EXECUTE,
    ),
    (
        "a living key sends nothing again before the date that the vendor named",
        each(EXECUTING, UNKNOWN, may_ask=False),
        (KEYED, KEYED_PROBED),
        PAUSE,
    ),
    ("a living key sends up to its limit", each(EXECUTING, UNKNOWN, attempts=MAX_SENDS - 1), (KEYED,), EXECUTE),
    ("a key that was sent too often asks a person", each(EXECUTING, UNKNOWN, attempts=MAX_SENDS), (KEYED,), ASK),
    ("a key that was sent too often asks its probe", each(UNKNOWN, attempts=MAX_SENDS), (KEYED_PROBED,), PROBE),
    (
        "a dead key waits for its horizon",
        each(EXECUTING, UNKNOWN, key_lives=False, horizon_passed=False),
        (KEYED, KEYED_PROBED),
        WAIT,
    ),
    ("a dead key asks a person", each(EXECUTING, UNKNOWN, key_lives=False), (KEYED,), ASK),
    ("a dead key asks its probe", each(EXECUTING, UNKNOWN, key_lives=False), (KEYED_PROBED,), PROBE),
    # in doubt: probed and manual
    (
        "nobody is asked before the horizon",
        each(EXECUTING, UNKNOWN, horizon_passed=False),
        (PROBED, MANUAL),
        WAIT,
    ),
    (
        "nobody is asked before the horizon, whatever a probe said",
        each(EXECUTING, UNKNOWN, horizon_passed=False, may_ask=False),
        (PROBED, MANUAL),
        WAIT,
    ),
    ("a probe is asked after the horizon", each(EXECUTING, UNKNOWN), (PROBED,), PROBE),
    ("a probe is not asked before the date that it named", each(EXECUTING, UNKNOWN, may_ask=False), (PROBED,), WAIT),
    ("a person is asked after the horizon", each(EXECUTING, UNKNOWN), (MANUAL,), ASK),
    ("a person minds no date of a probe", each(EXECUTING, UNKNOWN, may_ask=False), (MANUAL,), ASK),
    # in doubt: other arguments
    (
        "other arguments never send a doubt again",
        each(EXECUTING, UNKNOWN, same_args=False),
        (READ, REPEATABLE, WAITING, TRANSACTIONAL, KEYED, MANUAL),
        ASK,
    ),
    (
        "a doubt with other arguments is settled before the conflict",
        each(EXECUTING, UNKNOWN, same_args=False),
        (KEYED_PROBED, PROBED),
        PROBE,
    ),
    # in doubt: declared with another effect since
    (
        "a request that was sent under another promise is not sent again under this one",
        each(EXECUTING, UNKNOWN, same_effect=False),
        (READ, REPEATABLE, WAITING, TRANSACTIONAL, KEYED, MANUAL),
        ASK,
    ),
    (
        "a request that was sent under another promise is asked about by the probe",
        each(EXECUTING, UNKNOWN, same_effect=False),
        (KEYED_PROBED, PROBED),
        PROBE,
    ),
    # in doubt: not asked for
    (
        "a doubt left behind waits for its horizon",
        each(EXECUTING, UNKNOWN, asked=False, horizon_passed=False),
        EVERY,
        WAIT,
    ),
    (
        "a doubt left behind asks a person",
        each(EXECUTING, UNKNOWN, asked=False),
        (READ, REPEATABLE, WAITING, TRANSACTIONAL, KEYED, MANUAL),
        ASK,
    ),
    ("a doubt left behind asks its probe", each(EXECUTING, UNKNOWN, asked=False), (KEYED_PROBED, PROBED), PROBE),
]


@pytest.mark.parametrize(("holds", "promises", "decision"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_row_of_the_table(holds: list[Recorded | None], promises: tuple[Promise, ...], decision: Decision) -> None:
    for recorded, promise in itertools.product(holds, promises):
        assert decide(recorded, promise) is decision, (recorded, promise)


PROMISES = st.builds(Promise, st.sampled_from(Effect), st.booleans(), st.booleans())
RECORDED = st.builds(
    Recorded,
    status=st.sampled_from(OperationStatus),
    attempts=st.integers(0, MAX_SENDS + 1),
    **{
        fact: st.booleans()
        for fact in (
            "same_args",
            "same_effect",
            "asked",
            "horizon_passed",
            "may_ask",
            "key_lives",
            "result_missing",
            "probe_said_no",
        )
    },
)
IN_DOUBT_NOW = RECORDED.filter(lambda recorded: recorded.status in IN_DOUBT)


@given(RECORDED, PROMISES)
def test_a_success_with_the_same_arguments_never_runs_the_body(recorded: Recorded, promise: Promise) -> None:
    decision = decide(replace(recorded, status=SUCCEEDED, same_args=True), promise)
    assert decision in (RETURN, ASK_RESULT)


@given(IN_DOUBT_NOW, PROMISES)
def test_a_doubt_of_a_probed_or_manual_tool_is_never_executed(recorded: Recorded, promise: Promise) -> None:
    for effect in (Effect.PROBED, Effect.MANUAL):
        assert decide(recorded, replace(promise, effect=effect)) is not EXECUTE


@given(IN_DOUBT_NOW, PROMISES)
def test_a_doubt_of_a_keyed_tool_is_executed_only_while_its_key_lives(recorded: Recorded, promise: Promise) -> None:
    decision = decide(recorded, replace(promise, effect=Effect.KEYED))
    assert decision is not EXECUTE or (recorded.key_lives and recorded.attempts < MAX_SENDS and recorded.same_effect)


@given(IN_DOUBT_NOW, PROMISES)
def test_a_doubt_that_is_not_asked_for_is_never_executed(recorded: Recorded, promise: Promise) -> None:
    assert decide(replace(recorded, asked=False), promise) is not EXECUTE


@given(IN_DOUBT_NOW, PROMISES)
def test_a_doubt_is_never_returned_raised_or_called_a_conflict(recorded: Recorded, promise: Promise) -> None:
    assert decide(recorded, promise) in (EXECUTE, WAIT, PAUSE, PROBE, ASK)


@given(RECORDED, PROMISES)
def test_nothing_is_sent_before_the_date_that_the_vendor_named(recorded: Recorded, promise: Promise) -> None:
    begun = replace(recorded, attempts=max(recorded.attempts, 1), same_args=True, may_ask=False)
    assert decide(begun, promise) is not EXECUTE


@given(IN_DOUBT_NOW, PROMISES)
def test_nobody_is_asked_about_a_call_that_may_still_be_under_way(recorded: Recorded, promise: Promise) -> None:
    assert decide(replace(recorded, horizon_passed=False), promise) in (EXECUTE, WAIT, PAUSE)


@given(RECORDED.filter(lambda recorded: recorded.status is PENDING), PROMISES)
def test_no_probe_that_says_no_lets_a_request_be_sent_for_ever(recorded: Recorded, promise: Promise) -> None:
    decision = decide(replace(recorded, probe_said_no=True, same_args=True, may_ask=True, horizon_passed=True), promise)
    assert decision is (EXECUTE if recorded.attempts < MAX_SENDS else ASK_SENDS)


@given(RECORDED, PROMISES)
def test_a_probe_is_asked_only_where_there_is_one(recorded: Recorded, promise: Promise) -> None:
    assert decide(recorded, replace(promise, has_probe=False)) is not PROBE


# -- a tool that was declared anew while a request of it was in doubt ----------------------------------------------------

SECONDS = timedelta(seconds=10)
FORMERLY: dict[str, dict[str, Any]] = {
    "probed": {"effect": "probed", "timeout": SECONDS},
    "manual": {"effect": "manual", "timeout": SECONDS},
}
NOW: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "repeatable": {"effect": "repeatable", "why": "it is said to be"},
    "transactional": {"effect": "transactional"},
    "keyed": {"effect": "keyed", "key_lifetime": timedelta(days=1)},
}


@pytest.mark.parametrize("now", NOW)
@pytest.mark.parametrize("formerly", FORMERLY)
def test_a_request_that_went_out_under_another_effect_is_not_sent_again_without_asking(
    formerly: str, now: str, tmp_path: Path
) -> None:
    """A key that is declared today was not with the request of yesterday."""
    url, requests = f"sqlite:///{tmp_path / 'agent.db'}", []

    def work(declaration: dict[str, Any]) -> tuple[OneProcess, Agent]:
        here = OneProcess(url)

        def charge(cents: int) -> str:
            requests.append(cents)
            if len(requests) == 1:
                raise TimeoutError("no answer")
            return "charged"

        tool_of_now = tool(**declaration, bind=False)(charge)
        if declaration["effect"] == "probed":
            tool_of_now.probe(lambda _operation: NotHappened())
        return here, here.agent(tool_of_now, pay=lambda _state: done(tool_of_now(100)))

    here, agent = work(FORMERLY[formerly])
    here.run(agent)
    here.close()
    here, agent = work(NOW[now])
    here.later(agent, 11)
    run = agent.run("run-1")
    assert [str(item.question) for item in run.inbox()] == ["unknown"]
    assert requests == [100]
    run.resolve(run.inbox()[0].item_id, "did-not-happen", who="kim", why="looked")
    here.work(agent)
    assert run.get(timeout=0) == "charged"
    assert [str(operation.effect) for operation in run.operations()] == [now]
    here.close()
