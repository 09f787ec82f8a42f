"""The errors: each says something, and none loses anything on its way through a result backend."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from agent_tasks import errors
from agent_tasks.errors import AgentTasksError, LedgerUnavailable, StepSuspended, ToolFailed, did_you_mean

CLASSES: list[Any] = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__
]
ARGUMENTS: dict[type, tuple[Any, ...]] = {
    LedgerUnavailable: ("the database is away", True),
    ToolFailed: ("charge", "shop.Declined", "no money"),
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(cls: Any, protocol: int) -> None:
    error = cls(*ARGUMENTS.get(cls, ("run 'run-1': it went wrong",)))
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_can_be_rebuilt_from_its_class_and_arguments(cls: Any) -> None:
    """As Celery's JSON results do."""
    error = cls(*ARGUMENTS.get(cls, ("run 'run-1': it went wrong",)))
    assert str(cls(*error.args)) == str(error)
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize("cls", [c for c in CLASSES if issubclass(c, AgentTasksError) and c is not ToolFailed])
def test_an_error_without_a_message_says_what_its_class_means(cls: Any) -> None:
    error = cls()
    assert str(error) == cls.__doc__.strip()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_every_error_but_a_suspension_is_one_that_users_can_catch_by_one_name() -> None:
    assert {cls for cls in CLASSES if not issubclass(cls, AgentTasksError)} == {StepSuspended, errors.LeaseLost}


def test_a_suspension_passes_what_catches_failures() -> None:
    assert not issubclass(StepSuspended, Exception)


def test_a_run_that_did_not_end_in_time_is_a_timeout_of_python() -> None:
    assert issubclass(errors.RunUnfinished, TimeoutError)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("keyd", " Did you mean 'keyed'?"),
        ("KEYED", ""),
        ("nothing like it", ""),
        ("", ""),
        ("kyeed", " Did you mean 'keyed'?"),
        ("manuscript", ""),
        ("ready to go", ""),
    ],
)
def test_a_near_miss_is_suggested(word: str, said: str) -> None:
    assert did_you_mean(word, ["read", "keyed", "manual"]) == said
