"""Calls that a step returns: planned in its commit, made by the next step before its own body (I4, I7, I12).

The checkpoint holds the calls beside the name of the step that follows it, so that whoever goes on from there, in a later
attempt or on another line, makes these calls and no others. Their operations belong to the next step: the n-th planned call of a
tool is that step's n-th call of the tool, and the calls of its own body come after them.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from agent_tasks.batches import check_size, run_batch
from agent_tasks.errors import BadOutcome, UnknownStep, did_you_mean
from agent_tasks.identity import identify
from agent_tasks.ledger import Request, seconds_of
from agent_tasks.mistaken import what_is_mistaken
from agent_tasks.outcomes import Calls, Next
from agent_tasks.planned_calls import Batch, Call, identity_of
from agent_tasks.plans import plan
from agent_tasks.steps import Step
from agent_tasks.suspensions import Wait
from agent_tasks.waits import GIVEN
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from typing import NoReturn

    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.steps import StepState
    from checkpoint import CheckpointState

#: Where a checkpoint's metadata hold the calls that its next step begins with.
NEXT_CALLS = "next_calls"


def next_with_calls(attempt: Attempt, returned: Calls) -> Next:
    """Return where a run goes whose step returned calls.

    Raises:
        BadBatch: there are more of them than allowed.
        BadOutcome: the step that is to get the results takes none.
        UnguardedTool: the agent does not list a tool.
        UnknownStep: it has no such step.
    """
    check_size(attempt, returned.batch)
    for tool in dict.fromkeys(call.tool for call in returned.batch.calls):
        attempt.check_listed(tool)
    name = named_step(attempt, returned.then, "calls", "then")
    if not attempt.agent.steps[name].takes_results:
        raise BadOutcome(
            f"run {attempt.run_id!r}: step {attempt.step!r} returned calls(…, then={name}), and step {name!r} takes the state "
            "only. Give it a second parameter for the results."
        )
    return Next(name, returned.batch)


def named_step(attempt: Attempt, given: Any, call: str, word: str) -> str:
    """Return the name of a step that an outcome names.

    Args:
        attempt: whose step returned it.
        given: what stands there for the step.
        call: name of the function that made the outcome.
        word: name of its argument.

    Raises:
        BadOutcome: it is a tool, or something else that cannot be meant as a step, whatever its name.
        UnknownStep: it is no step of the agent.
    """
    steps = attempt.agent.steps
    if (mistake := what_is_mistaken(given, steps)) is not None:
        raise BadOutcome(f"run {attempt.run_id!r}: step {attempt.step!r} returned {call}(…, {word}=…) with {mistake}")
    name = given.name if isinstance(given, Step) else getattr(given, "__name__", given)
    is_given = isinstance(given, Step) or callable(given)
    if not is_given or name not in steps or (isinstance(given, Step) and given.agent_name != attempt.agent.name):
        function = "" if is_given else f" Give the function itself, as in {word}=answer."
        raise UnknownStep(
            f"run {attempt.run_id!r}: step {attempt.step!r} returned {call}(…, {word}={reprlib.repr(name)}), which is no step of "
            f"agent {attempt.agent.name!r}.{did_you_mean(str(name), [s for s in steps if s != name or is_given])}{function}"
        )
    return str(name)


def noted(outcome: object) -> dict[str, Any]:
    """Return what a checkpoint's metadata say of the calls that follow it."""
    batch = outcome.batch if isinstance(outcome, Next) else None
    if batch is None:
        return {}
    calls = [{"tool": call.tool.name, "args": call.encoded, "key": call.key} for call in batch.calls]
    return {NEXT_CALLS: {"calls": calls, "on_error": batch.on_error, "max_concurrency": batch.max_concurrency}}


def begins_with_calls(state: CheckpointState) -> bool:
    """Tell whether the step that follows a checkpoint begins with calls that were planned."""
    return NEXT_CALLS in state.metadata


def plan_next(connection: Connection, attempt: Attempt, batch: Batch) -> None:
    """Write the calls of the next step as pending, in the commit that the run goes on with."""
    ordinals: Counter[str] = Counter()
    requests: dict[str, Request] = {}
    for call in batch.calls:
        ordinal = -1
        if call.key is None:
            ordinal = ordinals[call.tool.name]
            ordinals[call.tool.name] += 1
        identifier = identify(attempt.run_id, attempt.seq + 1, call.tool.name, ordinal, key=call.key, outer=None)
        if call.tool.guard.record:
            timeout = seconds_of(call.tool.guard.timeout, attempt.runtime.settings.step_timeout_seconds)
            requests[identifier] = Request(
                identifier, call.tool, ordinal, call.key, {}, call.encoded, call.digest, None, timeout
            )
    plan(attempt.runtime.ledger, connection, attempt, requests.values(), attempt.seq + 1)


def run_step(attempt: Attempt, step: Step, state: StepState) -> Any:
    """Run the body of a step, with the results of the calls that were planned for it, or the answer that it waited for.

    Raises:
        StepSuspended: a planned call is of a tool that this release does not know.
    """
    planned = attempt.state.metadata.get(NEXT_CALLS)
    if planned is None:
        given = attempt.state.metadata.get(GIVEN)
        if given is None or not step.takes_results:
            return step.function(state)
        return step.function(state, codec.loads(given))
    calls = tuple(_call(attempt, each) for each in planned["calls"])
    return step.function(state, run_batch(attempt, Batch(calls, planned["on_error"], planned["max_concurrency"])))


def _call(attempt: Attempt, planned: dict[str, Any]) -> Call:
    tool = attempt.agent.tools.get(planned["tool"])
    if tool is None:
        _not_in_this_release(
            attempt, f"tool {planned['tool']!r}, which is not in tools= of {attempt.agent.subject} here"
        )
    try:
        stored = codec.loads(planned["args"])
    except CheckpointError as error:
        _not_in_this_release(attempt, f"{tool.subject}, whose arguments cannot be read here: {error}")
    bound = tool.signature.bind_partial()
    bound.arguments.update(stored)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    unfit = (stored.keys() | tool.signature.parameters.keys()) - arguments.keys()
    if unfit:
        _not_in_this_release(attempt, f"{tool.subject}, whose parameters are others here ({', '.join(sorted(unfit))})")
    return Call(tool, codec.dumps(arguments), codec.digest(identity_of(tool, arguments)), planned["key"])


def _not_in_this_release(attempt: Attempt, what: str) -> NoReturn:
    """Leave the run to a worker of the release that planned the call, or of one that knows it again."""
    pause = attempt.runtime.settings.backoff_seconds(attempt.number)
    attempt.suspend(
        Wait(f"for a worker that knows what step {attempt.step!r} begins with: a call of {what}", seconds=pause)
    )
