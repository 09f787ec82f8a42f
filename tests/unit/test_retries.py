"""The options of a step about retries, the pauses, and which calls a step ended on (I5)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from celery.utils.time import get_exponential_backoff_interval
from hypothesis import given
from hypothesis import strategies as st

from agent_tasks import Agent, done
from agent_tasks.clock import Clock
from agent_tasks.errors import BadOutcome, ConfigurationError, ToolFailed, ToolOverran, UnknownStep, UnorderedCalls
from agent_tasks.operations import Operation
from agent_tasks.retries import NO_RETRIES, RetryPolicy, ended_on, retry_policy
from tests.agents import new_app


def policy(**options: Any) -> RetryPolicy:
    return retry_policy("step 'pay' of agent 'order'", options)


# -- the declaration ----------------------------------------------------------------------------------------------------


def test_a_step_that_says_nothing_is_not_retried() -> None:
    assert policy(queue="slow", rate_limit="1/s", soft_time_limit=3) == NO_RETRIES
    assert NO_RETRIES.next_try("pay", 0, ConnectionError()) is None


def test_a_number_of_retries_alone_is_for_any_exception() -> None:
    assert policy(max_retries=5) == RetryPolicy(5, retried=(Exception,), delay=180)


def test_classes_alone_are_retried_as_often_as_celery_does() -> None:
    assert policy(autoretry_for=[ConnectionError]) == RetryPolicy(3, retried=(ConnectionError,))


@pytest.mark.parametrize(
    ("error", "covered"),
    [
        (ConnectionError("away"), True),
        (ConnectionResetError("a subclass"), True),
        (BrokenPipeError("one that is left out"), False),
        (ValueError("another"), False),
    ],
)
def test_the_classes_that_are_named_decide_with_their_subclasses(error: Exception, covered: bool) -> None:
    assert policy(autoretry_for=(ConnectionError,), dont_autoretry_for=(BrokenPipeError,)).covers(error) == covered


@pytest.mark.parametrize(
    ("error", "covered"),
    [
        (ToolFailed("charge", "bank.Away", "try later"), True),
        (ToolOverran(), True),
        (BadOutcome(), False),
        (UnknownStep(), False),
        (UnorderedCalls(), False),
        (ConfigurationError(), False),
    ],
)
def test_what_a_step_does_wrong_by_itself_is_not_retried(error: Exception, covered: bool) -> None:
    assert policy(max_retries=5, autoretry_for=(Exception,)).covers(error) == covered


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_retries": -1}, "a whole number of 0 or more, got -1"),
        ({"max_retries": 2.5}, "a whole number of 0 or more, got 2.5"),
        ({"max_retries": True}, "a whole number of 0 or more, got True"),
        ({"max_retries": None}, "stuck in silence"),
        ({"max_retry": 5}, r"step 'pay' of agent 'order' has no option max_retry=. Did you mean 'max_retries'\?"),
        ({"retry_back_off": True}, "Did you mean 'retry_backoff'"),
        ({"autoretry": (OSError,)}, "Did you mean 'autoretry_for'"),
        ({"retry_kwargs": {"max_retries": 5}}, "write max_retries=… itself"),
        ({"retry_backoff": True}, r"retries nothing by itself: add max_retries=… or autoretry_for"),
        ({"max_retries": 5, "retry_backoff": "fast"}, "True, False or a first pause in seconds, got 'fast'"),
        ({"max_retries": 5, "retry_backoff": float("nan")}, "a first pause in seconds, got nan"),
        ({"max_retries": 5, "retry_backoff_max": -1}, "a number of seconds from 0 to 2678400, got -1"),
        ({"max_retries": 5, "default_retry_delay": float("inf")}, "a number of seconds from 0 to 2678400, got inf"),
        ({"max_retries": 5, "retry_jitter": 3}, "True or False, got 3"),
        ({"autoretry_for": OSError}, r"a tuple of exception classes.* Write autoretry_for=\(OSError,\)"),
        ({"autoretry_for": ()}, "got none: leave it out"),
        ({"autoretry_for": ("OSError",)}, "must hold exception classes, got 'OSError'"),
        ({"max_retries": 1, "dont_autoretry_for": (KeyboardInterrupt,)}, "must hold exception classes"),
        ({"time_limit": "5"}, "time_limit= of step 'pay' of agent 'order' must be a number of seconds .* got '5'"),
        ({"soft_time_limit": -1}, "soft_time_limit= of step 'pay' of agent 'order' must be a number of seconds"),
    ],
)
def test_an_option_that_is_of_no_use_stops_the_declaration(options: dict[str, Any], said: str) -> None:
    agent = Agent("order", app=new_app())

    with pytest.raises(ConfigurationError, match=said):
        agent.step(name="pay", **options)(lambda _state: done())
    assert agent.steps == {}


def test_celery_gets_the_options_that_are_its_own_and_none_about_retries() -> None:
    agent = Agent("order", app=new_app())

    agent.step(name="pay", max_retries=5, autoretry_for=(OSError,), rate_limit="1/s")(lambda _state: done())

    task = agent.app.tasks["order.pay"]
    assert task.rate_limit == "1/s"
    assert not hasattr(task, "autoretry_for")
    assert not hasattr(task, "_orig_run")  # Celery would wrap the task and publish its retries
    assert agent.steps["pay"].retry == RetryPolicy(5, retried=(OSError,))


# -- pauses -------------------------------------------------------------------------------------------------------------


def test_the_pause_without_back_off_stays_the_same() -> None:
    assert [policy(max_retries=5, default_retry_delay=7).pause_seconds(n) for n in range(3)] == [7, 7, 7]


def test_back_off_begins_with_a_second_and_doubles_up_to_its_maximum() -> None:
    calm = policy(max_retries=5, retry_backoff=True, retry_backoff_max=10, retry_jitter=False)
    assert [calm.pause_seconds(n) for n in range(6)] == [1, 2, 4, 8, 10, 10]


@given(
    factor=st.integers(1, 100), maximum=st.integers(0, 600), retries=st.integers(0, 10_000), seed=st.integers(0, 2**32)
)
def test_a_pause_is_the_one_that_celery_takes(factor: int, maximum: int, retries: int, seed: int) -> None:
    ours = policy(max_retries=5, retry_backoff=factor, retry_backoff_max=maximum)
    random.seed(seed)
    taken = ours.pause_seconds(retries)
    random.seed(seed)
    assert taken == get_exponential_backoff_interval(factor, retries, maximum, full_jitter=True)


def test_a_retry_says_which_it_is_of_what_when_and_why() -> None:
    retry = policy(max_retries=5, default_retry_delay=8).next_try("pay", 1, ConnectionError("reset by peer"))
    assert retry is not None
    assert retry.reason == "retry 2 of 5 of pay in 8 s: ConnectionError: reset by peer"


# -- the calls that a step ended on -----------------------------------------------------------------------------------------


def operation(
    name: str, status: str, *, at: int = 0, born: int = 1, seq: int = 1, inside: str | None = None
) -> Operation:
    row = {
        "operation_id": name,
        "status": status,
        "first_started_at": at,
        "born": born,
        "seq": seq,
        "parent_operation": inside,
    }
    return Operation(row, Clock(0.0), 0.0)


FAILED, OK = "failed", "succeeded"


@pytest.mark.parametrize(
    ("asked", "operations", "ended"),
    [
        ("", [], ""),
        ("a", [operation("a", FAILED)], "a"),
        ("a", [operation("a", OK)], ""),
        ("ab", [operation("a", FAILED), operation("b", FAILED, at=1)], "b"),  # the step went on after a
        ("ab", [operation("a", FAILED), operation("b", OK, at=1)], ""),
        ("ba", [operation("a", FAILED), operation("b", OK, at=1)], "a"),  # asked for last now, whenever it was first
        ("a", [operation("a", FAILED), operation("b", FAILED, at=1)], ""),  # an earlier attempt went on after a
        ("a", [operation("a", FAILED), operation("b", OK, born=2)], ""),
        ("a", [operation("a", FAILED), operation("b", OK)], ""),  # at the same moment: nobody can tell
        ("b", [operation("a", OK), operation("b", FAILED, at=1)], "b"),
        ("b", [operation("a", FAILED, born=1, at=9), operation("b", FAILED, born=2, at=1)], "b"),
        ("a", [operation("a", FAILED, seq=2)], ""),  # of another step
        ("ax", [operation("a", FAILED)], "a"),  # x is a read that is not recorded
        ("ai", [operation("a", FAILED), operation("i", FAILED, at=1, inside="a")], "ai"),
        ("ai", [operation("a", FAILED), operation("i", OK, at=1, inside="a")], "a"),
        ("ai", [operation("a", OK), operation("i", FAILED, at=1, inside="a")], ""),  # its body went on after i
        ("a", [operation("a", FAILED), operation("i", FAILED, at=1, inside="a")], "ai"),  # a was not run anew
        (
            "aij",
            [
                operation("a", FAILED),
                operation("i", FAILED, inside="a"),
                operation("j", FAILED, inside="a"),
            ],
            "aj",
        ),
    ],
)
def test_a_retry_does_again_what_the_step_ended_on_and_nothing_that_it_went_on_after(
    asked: str, operations: list[Operation], ended: str
) -> None:
    assert "".join(found.operation_id for found in ended_on(dict.fromkeys(asked), operations, 1)) == ended
