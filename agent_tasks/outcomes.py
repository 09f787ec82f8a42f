"""What a step can return: its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_tasks.errors import BadOutcome
from agent_tasks.planned_calls import CONCURRENCY, RAISE, Batch, Call, batch_of
from agent_tasks.steps import StepState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent_tasks.waits import Check


#: Most characters of the reason of a ``fail(…)`` that are kept: every database stores as many, in one packet.
MAX_REASON = 64 * 1024


@dataclass(frozen=True)
class Done:
    """The run succeeded."""

    output: Any = None


@dataclass(frozen=True)
class Fail:
    """The run failed."""

    reason: str


@dataclass(frozen=True)
class Next:
    """The run goes on with another step.

    Attributes:
        step: its name.
        batch: calls that it begins with.
        until: not before this moment, in microseconds on the database's clock.
        check: the step is asked whether the run may go on; what follows it.
        given: what a check returned, as it is stored; the step gets it.
    """

    step: str
    batch: Batch | None = None
    until: int | None = None
    check: Check | None = None
    given: bytes | None = None


@dataclass(frozen=True)
class Calls:
    """The run goes on with calls, whose results another step gets."""

    batch: Batch
    then: Any


Outcome = Done | Fail | Next


def done(output: Any = None) -> Done:
    """End the run as succeeded.

    Args:
        output: what ``run.get()`` returns; must be storable. The state itself is returned as its dict.

    Example:
        >>> done({"paid": True})
        Done(output={'paid': True})
    """
    return Done(dict(output) if isinstance(output, StepState) else output)


def fail(reason: str) -> Fail:
    """End the run as failed.

    Args:
        reason: said by ``run.get()`` in its ``RunFailed``. What no database stores of it, NUL and half a surrogate pair, is
            written out, and what is beyond 65,536 characters is left out.

    Raises:
        BadOutcome: the reason is no text.

    Example:
        >>> fail("the card was declined")
        Fail(reason='the card was declined')
    """
    if not isinstance(reason, str):
        raise BadOutcome(f"fail(…) takes the reason as a text, got {reason!r}: write fail(str(…)) if that says it.")
    return Fail(str.__str__(reason))  # a text, whatever class of texts it had


def calls(
    planned: Iterable[Call], *, then: Callable[..., Any], on_error: str = RAISE, max_concurrency: int = CONCURRENCY
) -> Calls:
    """Go on with calls, and then with a step that gets their results: ``then(state, results)``.

    The calls are committed as planned together with the state that asks for them, such as the message of a model. The next
    doorbell makes them, as ``run_calls`` does, and runs ``then`` in the same attempt.

    Args:
        planned: made by ``tool.call(…)``.
        then: a step of the agent with a second parameter, which gets the results in the order of the calls.
        on_error: ``raise``: the first failure is as if ``then`` had raised it; ``collect``: a ``FailedCall`` stands in the
            place of each result that there is none of.
        max_concurrency: calls under way at the same time.

    Raises:
        BadBatch: something is no call, or two calls with one key differ.

    Example:
        >>> from agent_tasks import tool
        >>> @tool(effect="read")
        ... def price(item):
        ...     return {"tea": 300}[item]
        >>> def add_up(state, prices):
        ...     return done(sum(prices))
        >>> calls([price.call("tea")], then=add_up).batch.calls
        (<call price(item='tea')>,)
    """
    return Calls(batch_of(planned, on_error, max_concurrency), then)


def error_line(error: Mapping[str, Any]) -> str:
    """Return the recorded error of a run in a line: the reason of ``fail(…)`` or of a cancel as it is, else with its type.

    Example:
        >>> error_line({"type": "KeyError", "text": "'cart'"}), error_line({"type": "fail", "text": "no such cart"})
        ("KeyError: 'cart'", 'no such cart')
    """
    text = str(error.get("text", ""))
    return text if error.get("type", "fail") in ("fail", "cancelled") else f"{error['type']}: {text}"
