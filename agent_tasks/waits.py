"""Waits that a step returns: for a time, or until a check says yes. A row holds them, and no worker (I8, I9)."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS
from agent_tasks.errors import BadOutcome
from agent_tasks.limits import LONGEST_SECONDS
from agent_tasks.retries import SHORTEST_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Where a checkpoint's metadata say what its run waits for before, or in, the step that follows it.
NEXT_WAIT = "next_wait"

#: Where they hold, as it is stored, what a check returned; the step that follows gets it.
GIVEN = "given"


@dataclass(frozen=True)
class Sleep:
    """The run goes on later.

    Attributes:
        then: with this step.
        seconds: after the step that returned it; None where ``until`` is given.
        until: then, in microseconds since 1970 on the database's clock.
    """

    then: Any
    seconds: float | None = None
    until: int | None = None


@dataclass(frozen=True)
class WaitUntil:
    """The run goes on when a check says so.

    Attributes:
        check: a step that is asked.
        then: the step that follows when it says yes.
        every: seconds between two questions.
        timeout: seconds after which it is asked a last time; None for ever.
        on_timeout: the step that follows a last no; None ends the run as failed.
    """

    check: Any
    then: Any
    every: float
    timeout: float | None = None
    on_timeout: Any = None


@dataclass(frozen=True)
class Check:
    """A wait for a check, as a checkpoint's metadata hold it.

    Attributes:
        then, on_timeout: names of the steps that may follow.
        every: microseconds between two questions.
        timeout: microseconds that were given it in all, for messages; None for ever.
        deadline: when it is asked a last time, in microseconds on the database's clock.
    """

    then: str
    every: int
    timeout: int | None = None
    deadline: int | None = None
    on_timeout: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Check | None:
        """Return the check that follows a checkpoint, or None if none does."""
        noted: dict[str, Any] | None = metadata.get(NEXT_WAIT)
        if noted is None or "every" not in noted:
            return None
        may = {name: noted[name] for name in ("timeout", "deadline", "on_timeout")}
        return cls(noted["then"], noted["every"], **may)


@dataclass(frozen=True)
class NotYet:
    """A check said no, and is asked again: its run waits, without a checkpoint.

    Attributes:
        until: then, in microseconds on the database's clock.
        reason: what the run waits for, in words.
    """

    until: int
    reason: str


def sleep(duration: float | timedelta, *, then: Callable[..., Any]) -> Sleep:
    """Go on with a step after some time. Meanwhile the run is a row, whatever becomes of workers and the broker.

    Args:
        duration: seconds, or a timedelta; counted from the end of the step that returns this, on the database's clock.
        then: a step of the agent.

    Raises:
        BadOutcome: the duration is of no use.

    Example:
        >>> def remind(state): ...
        >>> sleep(timedelta(days=3), then=remind).seconds
        259200.0
    """
    return Sleep(then, seconds=_seconds("sleep(…)", "takes", duration))


def sleep_until(moment: datetime, *, then: Callable[..., Any]) -> Sleep:
    """Go on with a step at some time, or at once if that has passed.

    Args:
        moment: with a time zone; compared with the database's clock. In a hundred years at the latest, or the step fails.
        then: a step of the agent.

    Raises:
        BadOutcome: the moment has no time zone, or is none.

    Example:
        >>> from datetime import timezone
        >>> def open_shop(state): ...
        >>> sleep_until(datetime(2030, 1, 1, tzinfo=timezone.utc), then=open_shop).until
        1893456000000000
    """
    given: object = moment
    if not isinstance(given, datetime) or given.utcoffset() is None:
        tip = " Give it tzinfo=, for example timezone.utc." if isinstance(given, datetime) else ""
        raise BadOutcome(f"sleep_until(…) takes a datetime with a time zone, got {reprlib.repr(given)}.{tip}")
    return Sleep(then, until=max(0, int(given.timestamp() * MICROSECONDS)))


def wait_until(
    check: Callable[..., Any],
    *,
    every: float | timedelta,
    then: Callable[..., Any],
    timeout: float | timedelta | None = None,
    on_timeout: Callable[..., Any] | None = None,
) -> WaitUntil:
    """Ask a check now and then, and go on with a step once it says yes. Between two questions the run is a row.

    The check is a step of the agent: it gets the state, and works under a lease, with the options of its own declaration. What
    it returns is no outcome but an answer: anything true is a yes, which ``then(state, answer)`` gets if it takes a second
    argument. After a no nothing of it is kept, and the reads that it made are bought anew the next time; it may call no tool
    that has an effect. It may also end the run or go elsewhere, by returning an outcome as any step does.

    Args:
        check: a step of the agent.
        every: seconds, or a timedelta, between the end of one question and the next one; 1 second or more.
        then: the step that follows a yes.
        timeout: seconds, or a timedelta, from the end of the step that returns this. The check is asked once more then, or
            as soon as there is a worker, before the run gives up; None asks for ever.
        on_timeout: the step that follows a no after that; the run fails if none is given.

    Raises:
        BadOutcome: a duration is of no use, or ``on_timeout`` has no ``timeout`` to follow.

    Example:
        >>> def arrived(state): ...
        >>> def unpack(state, parcel): ...
        >>> wait_until(arrived, every=timedelta(minutes=5), then=unpack).every
        300.0
    """
    least = SHORTEST_PAUSE.total_seconds()
    if timeout is None and on_timeout is not None:
        raise BadOutcome(
            "wait_until(…, on_timeout=) says what follows a timeout, and there is none: give timeout=, too."
        )
    return WaitUntil(
        check,
        then,
        _seconds("every= of wait_until(…)", "must be", every, least),
        None if timeout is None else _seconds("timeout= of wait_until(…)", "must be", timeout),
        on_timeout,
    )


def _seconds(subject: str, verb: str, given: object, least: float = 0.0) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if is_number and not math.isnan(seconds) and least <= seconds <= LONGEST_SECONDS:  # type: ignore[arg-type,operator]
        return float(seconds)  # type: ignore[arg-type]
    raise BadOutcome(
        f"{subject} {verb} a number of seconds or a timedelta, from {least:g} seconds to a hundred years, got {reprlib.repr(given)}."
    )
