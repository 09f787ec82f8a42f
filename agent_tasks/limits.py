"""Limits of tasks, in Celery's names: the worker's parent counts by them, and ends, or does not start, by one that it cannot count by.

A call stands in the ledger, so its doorbell comes again: a limit of no use would end one worker after the other.
"""

from __future__ import annotations

import reprlib
from datetime import timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any

from celery.utils.time import rate

from agent_tasks.errors import AgentTasksError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The options; a hard limit kills the process, a soft one raises in it.
LIMITS = ("time_limit", "soft_time_limit")

#: In seconds, a hundred years: no clock is asked for more.
LONGEST_SECONDS = 100 * 365 * 86_400.0
LONGEST = timedelta(seconds=LONGEST_SECONDS)


def is_limit(value: object) -> bool:
    """Tell whether a worker can count by this: None, or a number of seconds, where 0 is no limit as well.

    Example:
        >>> is_limit(None), is_limit(2.5), is_limit("5"), is_limit(float("nan"))
        (True, True, False, False)
    """
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LONGEST_SECONDS


def are_limits(pair: object) -> bool:
    """Tell whether this is what a message says of its limits: the hard and the soft one, or nothing.

    Example:
        >>> are_limits([None, 5]), are_limits([5]), are_limits("ab")
        (True, False, False)
    """
    if pair is None:
        return True
    return isinstance(pair, (list, tuple)) and len(pair) == len(LIMITS) and all(map(is_limit, pair))


def check_limits(
    subject: str, given: Mapping[str, Any], then: str = "", error: type[AgentTasksError] = ConfigurationError
) -> None:
    """Refuse limits that no worker can count by.

    Args:
        subject: whose options they are, for the message.
        given: all options, by name.
        then: what became of the call.
        error: what to raise.

    Raises:
        AgentTasksError: one of them is of no use.
    """
    for name in LIMITS:
        if not is_limit(given.get(name)):
            raise error(
                f"{name}= of {subject} must be a number of seconds from 0 to a hundred years, got "
                f"{reprlib.repr(given[name])}.{then}"
            )


def is_rate(value: object) -> bool:
    """Tell whether a worker can hold messages back by this: a number a second, or a text with its unit; 0 and None are no limit.

    Example:
        >>> is_rate("10/m"), is_rate(0.5), is_rate(None), is_rate("ten"), is_rate("10/min"), is_rate(-1)
        (True, True, True, False, False, False)
    """
    if value is None or value == "":
        return True
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    try:
        a_second = rate(value)
    except (ValueError, KeyError):
        return False
    return isfinite(a_second) and a_second >= 0


def check_rate(said: str, given: object) -> None:
    """Refuse a rate limit with which no worker would start.

    Args:
        said: what the message calls it: ``rate_limit= of step 'pay'``.
        given: its value.

    Raises:
        ConfigurationError: it is of no use.
    """
    if not is_rate(given):
        raise ConfigurationError(
            f"{said} must be a number of messages a second, or a text with its unit, such as '10/s', '10/m' or '10/h', got "
            f"{reprlib.repr(given)}."
        )
