"""Calls that have not happened, as values, and batches of them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_tasks.current import outside_run
from agent_tasks.errors import ArgumentsNotStorable, BadBatch, did_you_mean
from agent_tasks.refusals import refused_argument
from agent_tasks.schema import MAX_ID_LENGTH, is_id
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from agent_tasks.tools import Tool

#: What becomes of the other calls of a batch, and of its step, when one fails.
RAISE, COLLECT = "raise", "collect"

#: Calls of a batch that run at the same time, unless it says another number.
CONCURRENCY = 8


@dataclass(frozen=True)
class Call:
    """A call that has not happened; ``tool.call(…)`` makes one.

    Its arguments are those of the moment at which it was made: a list that changes afterwards does not change them.

    Attributes:
        tool: that is to be called.
        encoded: the arguments by parameter name, as they are recorded.
        digest: of the arguments that make two calls the same.
        key: of the call, beyond its step; None where the tool has no ``key=``.
    """

    tool: Tool[..., Any]
    encoded: bytes = field(repr=False)
    digest: str = field(repr=False)
    key: str | None = None

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in self.arguments.items())
        return f"<call {self.tool.name}({said})>"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by parameter name, decoded anew."""
        with outside_run():
            return dict(codec.loads(self.encoded))


@dataclass(frozen=True)
class FailedCall:
    """What stands in the place of a result that there is none of, in a batch with ``on_error="collect"``.

    Attributes:
        call: that failed.
        error: what the call would have raised.
    """

    call: Call
    error: Exception


@dataclass(frozen=True)
class Batch:
    """Calls that are made together.

    Attributes:
        calls: in the order of their results.
        on_error: ``raise`` or ``collect``.
        max_concurrency: calls under way at the same time.
    """

    calls: tuple[Call, ...]
    on_error: str = RAISE
    max_concurrency: int = CONCURRENCY


def make_call(tool: Tool[..., Any], arguments: dict[str, Any]) -> Call:
    """See ``Tool.call``; the arguments are bound already."""
    identity = identity_of(tool, arguments)
    try:
        with outside_run():
            encoded, digest = codec.dumps(arguments), codec.digest(identity)
    except CheckpointError as error:
        raise ArgumentsNotStorable(refused_argument(error, arguments, tool.subject, ", so nothing was sent")) from error
    return Call(tool, encoded, digest, None if tool.key is None else key_of(tool, arguments))


def identity_of(tool: Tool[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that make two calls of a tool the same."""
    return arguments if tool.identity is None else {name: arguments[name] for name in tool.identity}


def key_of(tool: Tool[..., Any], arguments: dict[str, Any], run_id: str | None = None) -> str:
    """Return what ``key=`` of a tool says of a call.

    Raises:
        ArgumentsNotStorable: it is no key.
    """
    key: object = None if tool.key is None else tool.key(**arguments)
    if not isinstance(key, str) or not is_id(key):
        whose = "" if run_id is None else f"run {run_id!r}: "
        raise ArgumentsNotStorable(
            f"{whose}key= of {tool.subject} must return a text of 1 to {MAX_ID_LENGTH} characters without NUL, got "
            f"{reprlib.repr(key)}; nothing was sent."
        )
    return key


def batch_of(calls: object, on_error: object, max_concurrency: object) -> Batch:
    """Return a batch of what was given as one.

    Raises:
        BadBatch: something else was given, or two calls with one key have different arguments. Nothing was recorded.
    """
    if isinstance(calls, (str, Call)) or not isinstance(calls, Iterable):
        raise BadBatch(
            f"a batch is a list of calls, got {reprlib.repr(calls)}. Nothing was sent; write [tool.call(…), …]."
        )
    given = tuple(calls)
    for number, each in enumerate(given):
        if not isinstance(each, Call):
            raise BadBatch(
                f"number {number} of a batch is no call, got {reprlib.repr(each)}. Nothing of the batch was sent; write "
                "tool.call(…), which makes a call that has not happened, and not tool(…)."
            )
    if on_error not in (RAISE, COLLECT):
        near = did_you_mean(str(on_error), (RAISE, COLLECT))
        raise BadBatch(f"on_error must be 'raise' or 'collect', got {on_error!r}.{near} Nothing was sent.")
    if type(max_concurrency) is not int or max_concurrency < 1:
        raise BadBatch(f"max_concurrency must be a whole number above 0, got {max_concurrency!r}. Nothing was sent.")
    _check_keys(given)
    return Batch(given, str(on_error), max_concurrency)


def _check_keys(calls: tuple[Call, ...]) -> None:
    first: dict[tuple[str, str], Call] = {}
    for each in calls:
        if each.key is None:
            continue
        other = first.setdefault((each.tool.name, each.key), each)
        if other.digest != each.digest:
            raise BadBatch(
                f"two calls of {each.tool.subject} in one batch have the key {each.key!r} and different arguments: {other!r} "
                f"and {each!r}. One key is one operation; nothing was sent. Let key= tell them apart, or leave one out."
            )
