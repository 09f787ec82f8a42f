"""Step retries, in Celery's names: which errors are tried again, how often, and after which pause (I5, I8)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.utils.time import get_exponential_backoff_interval

from agent_tasks.errors import (
    ArgumentsNotStorable,
    BadBatch,
    BadOutcome,
    CarriedElsewhere,
    ConfigurationError,
    EffectInCheck,
    InsideTransaction,
    NotWritable,
    OutsideRun,
    UnknownStep,
    UnorderedCalls,
    did_you_mean,
    is_a,
)
from agent_tasks.operations import text_of
from agent_tasks.states import OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent_tasks.operations import Operation

logger = logging.getLogger(__name__)

#: The options of a step that are about retries.
OPTIONS = (
    "max_retries",
    "autoretry_for",
    "dont_autoretry_for",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "default_retry_delay",
)

#: Celery's own defaults.
_MAX_RETRIES, _DELAY_SECONDS, _BACKOFF_MAX_SECONDS = 3, 180, 600

#: Nobody is asked again sooner, whatever ``retry_after_seconds`` or a probe says: such a wait spends nothing, so that one of
#: no length would be a loop at the speed of the fleet.
SHORTEST_PAUSE = timedelta(seconds=1)

#: Nobody's ``retry_after_seconds`` is trusted beyond it.
LONGEST_PAUSE = timedelta(days=31)

#: What a step does wrong by itself: another try would do it again.
_STEP_IS_WRONG = (
    ArgumentsNotStorable,
    BadBatch,
    BadOutcome,
    CarriedElsewhere,
    ConfigurationError,
    EffectInCheck,
    InsideTransaction,
    NotWritable,
    OutsideRun,
    UnknownStep,
    UnorderedCalls,
)


@dataclass(frozen=True)
class Retry:
    """The step failed and is tried again.

    Args:
        seconds: until then.
        reason: what its run waits for meanwhile, in words.
        spends: whether it counts among the step's retries.
    """

    seconds: float
    reason: str
    spends: bool


@dataclass(frozen=True)
class RetryPolicy:
    """What a step's declaration says about retries.

    Args:
        max_retries: tries after the first.
        retried, never: exception classes that are tried again, and those among them that are not.
        backoff: first pause in whole seconds, which doubles each time; 0 for a pause that stays the same.
        backoff_max: longest pause in seconds.
        jitter: take a random pause up to that one instead.
        delay: the pause without back-off, in seconds.
    """

    max_retries: int
    retried: tuple[type[Exception], ...] = (Exception,)
    never: tuple[type[Exception], ...] = ()
    backoff: int = 0
    backoff_max: int = _BACKOFF_MAX_SECONDS
    jitter: bool = True
    delay: float = _DELAY_SECONDS

    def covers(self, error: Exception) -> bool:
        """Tell whether a step that raised this may be tried again."""
        return is_a(error, self.retried) and not is_a(error, (*self.never, *_STEP_IS_WRONG))

    def pause_seconds(self, retries: int) -> float:
        """Return the pause before the next try, after ``retries`` were spent.

        Example:
            >>> policy = RetryPolicy(5, backoff=2, backoff_max=10, jitter=False)
            >>> [policy.pause_seconds(retries) for retries in range(4)]
            [2.0, 4.0, 8.0, 10.0]
        """
        if not self.backoff:
            return self.delay
        doublings = min(retries, 64)  # beyond every maximum
        return float(get_exponential_backoff_interval(self.backoff, doublings, self.backoff_max, self.jitter))

    def next_try(self, step: str, retries: int, error: Exception) -> Retry | None:
        """Return how a step that raised ``error`` after so many retries is tried again; None if it is not."""
        if retries >= self.max_retries or not self.covers(error):
            return None
        seconds = self.pause_seconds(retries)
        said = f"retry {retries + 1} of {self.max_retries} of {step} in {seconds:g} s: {said_of(error)}"
        return Retry(seconds, said, spends=True)


#: A step that says nothing about retries.
NO_RETRIES = RetryPolicy(0, retried=())


def retry_policy(subject: str, options: Mapping[str, Any]) -> RetryPolicy:
    """Read what a declaration says about retries.

    Args:
        subject: whose options they are, for messages: ``step 'pay' of agent 'order'``.
        options: all that were given; those that are not about retries are looked at for near misses only.

    Raises:
        ConfigurationError: a value is of no use, or a name is nearly that of an option.

    Example:
        >>> retry_policy("step 'pay'", {"autoretry_for": (ConnectionError,), "retry_backoff": True}).max_retries
        3
        >>> retry_policy("step 'pay'", {"max_retry": 5})
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: step 'pay' has no option max_retry=. Did you mean 'max_retries'?
    """
    if "retry_kwargs" in options:
        raise ConfigurationError(f"retry_kwargs= of {subject} is not taken: write max_retries=… itself.")
    refuse_near_misses(subject, options, OPTIONS)
    given = {name: options[name] for name in OPTIONS if name in options}
    if not given:
        return NO_RETRIES
    if "max_retries" not in given and "autoretry_for" not in given:
        raise ConfigurationError(
            f"{next(iter(given))}= of {subject} retries nothing by itself: add max_retries=… or autoretry_for=(…,)."
        )
    policy = RetryPolicy(
        max_retries=whole_number(subject, given, "max_retries", _MAX_RETRIES),
        retried=_classes(subject, given, "autoretry_for", (Exception,)),
        never=_classes(subject, given, "dont_autoretry_for", ()),
        backoff=_factor(subject, given),
        backoff_max=int(_seconds(subject, given, "retry_backoff_max", _BACKOFF_MAX_SECONDS)),
        jitter=given.get("retry_jitter", True),
        delay=_seconds(subject, given, "default_retry_delay", _DELAY_SECONDS),
    )
    if not isinstance(policy.jitter, bool):
        raise ConfigurationError(f"retry_jitter= of {subject} must be True or False, got {policy.jitter!r}.")
    if not policy.retried:
        raise ConfigurationError(f"autoretry_for= of {subject} must name an exception class, got none: leave it out.")
    return policy


def refuse_near_misses(subject: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a misspelt option: Celery takes any, and nobody would read it.

    Args:
        subject: whose options they are, for the message.
        given: names of all that were given.
        known: names of those that mean something, beside the attributes of Celery's tasks.

    Raises:
        ConfigurationError: a name is none of these, and nearly one of ``known``.
    """
    known = tuple(known)
    for name in given:
        near = did_you_mean(name, known)
        if near and name not in known and not hasattr(Task, name):
            raise ConfigurationError(f"{subject} has no option {name}=.{near}")


def whole_number(subject: str, given: Mapping[str, Any], name: str, default: int) -> int:
    """Return an option that must be a whole number of 0 or more."""
    value = given.get(name, default)
    if type(value) is not int or value < 0:
        ever = " Tries without an end would be a run that is stuck in silence." if value is None else ""
        raise ConfigurationError(f"{name}= of {subject} must be a whole number of 0 or more, got {value!r}.{ever}")
    return value


def _seconds(subject: str, given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    longest = LONGEST_PAUSE.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= longest:
        raise ConfigurationError(
            f"{name}= of {subject} must be a number of seconds from 0 to {longest:.0f}, got {value!r}."
        )
    return value


def _factor(subject: str, given: Mapping[str, Any]) -> int:
    value = given.get("retry_backoff", False)
    if not isinstance(value, (bool, int, float)) or not isfinite(value) or value < 0:
        raise ConfigurationError(
            f"retry_backoff= of {subject} must be True, False or a first pause in seconds, got {value!r}."
        )
    return int(max(1.0, value)) if value else 0  # Celery's reading of it


def _classes(
    subject: str, given: Mapping[str, Any], name: str, default: tuple[type[Exception], ...]
) -> tuple[type[Exception], ...]:
    value = given.get(name, default)
    if not isinstance(value, (tuple, list)):
        tip = f" Write {name}=({value.__name__},)." if isinstance(value, type) else ""
        raise ConfigurationError(f"{name}= of {subject} must be a tuple of exception classes, got {value!r}.{tip}")
    for each in value:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ConfigurationError(f"{name}= of {subject} must hold exception classes, got {each!r}.")
    return tuple(value)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds after which an exception asks to be tried again, by its ``retry_after_seconds``, or None.

    They are cut to what lies between :data:`SHORTEST_PAUSE` and :data:`LONGEST_PAUSE`.

    Example:
        >>> busy = ConnectionError("busy")
        >>> busy.retry_after_seconds = 30
        >>> retry_after(busy)
        30.0
    """
    try:
        said = getattr(error, "retry_after_seconds", None)
        if said is None:
            return None
        if isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said < inf:
            return float(min(max(said, SHORTEST_PAUSE.total_seconds()), LONGEST_PAUSE.total_seconds()))
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - an exception may do anything when it is looked at
        said = failure
    logger.warning(
        "retry_after_seconds of %s must be a number of seconds of 0 or more, got %s; it is ignored",
        type(error).__name__,
        text_of(said),
        extra={"action": "retry_after_ignored"},
    )
    return None


def as_told(step: str, error: Exception) -> Retry | None:
    """Return when a step is tried again whose exception says so itself; it spends no retry."""
    seconds = retry_after(error)
    if seconds is None:
        return None
    return Retry(seconds, f"to try {step} again in {seconds:g} s, as it was told to: {said_of(error)}", spends=False)


def said_of(error: BaseException) -> str:
    """Return what an exception says, with its class before it."""
    return f"{type(error).__name__}: {text_of(error)}"


def ended_on(asked: Mapping[str, int | None], operations: Iterable[Operation], seq: int) -> list[Operation]:
    """Return the failed operations that a step ended on: its last call or batch, and inside of that the last ones (I5).

    The step went on after every other failure, so those stay as they are recorded. Calls of one batch are no answer to each
    other's failures.

    Args:
        asked: ids of the operations that the attempt asked for, in their order, each with its batch or None.
        operations: of the step and later ones.
        seq: of the step.
    """
    order = {identifier: number for number, identifier in enumerate(asked)}

    def place(operation: Operation) -> tuple[int, int, int]:
        row = operation.row
        return order.get(operation.operation_id, -1), row["born"], row["first_started_at"] or 0

    def last_of(calls: list[Operation]) -> list[Operation]:
        last = max(calls, key=place, default=None)
        batch = None if last is None else asked.get(last.operation_id)
        if last is None or batch is None:
            return [] if last is None else [last]
        return [call for call in calls if asked.get(call.operation_id) == batch]

    of_step = [operation for operation in operations if operation.seq == seq]
    calls = [operation for operation in of_step if operation.row["parent_operation"] is None]
    unasked = [
        place(call)[1:] for call in calls if call.operation_id not in order and call.first_started_at is not None
    ]
    last = last_of([call for call in calls if call.operation_id in order])
    found: list[Operation] = []
    level = [call for call in last if not any(other >= place(call)[1:] for other in unasked)]
    while level:
        failed = [operation for operation in level if operation.status is OperationStatus.FAILED]
        found += failed
        inside = [[o for o in of_step if o.row["parent_operation"] == outer.operation_id] for outer in failed]
        level = [operation for calls_inside in inside for operation in last_of(calls_inside)]
    return found
