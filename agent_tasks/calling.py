"""A tool call: intent, effect, outcome, and whatever the ledger already knows (I3-I6, I13-I15)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agent_tasks.bugs import looks_like_a_bug
from agent_tasks.current import outside_run
from agent_tasks.declarations import Guard
from agent_tasks.errors import NotWritable, is_a
from agent_tasks.interim import interim_of
from agent_tasks.loops import NeverBegan
from agent_tasks.operations import CRASHES, Operation, describe_failure, failure_seen_by_step, text_of, traceback_of
from agent_tasks.probing import ask_the_world
from agent_tasks.putting_off import put_off
from agent_tasks.recovery import MAX_SENDS, Decision, Promise, decide
from agent_tasks.retries import retry_after
from agent_tasks.states import IN_DOUBT, Effect, OperationStatus, Question, Reply
from agent_tasks.suspensions import Ask, Asked, RetryLater, Wait, about
from agent_tasks.together import may_be_asked_for_yet
from agent_tasks.transactional import execute_transactional
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Request
    from agent_tasks.tools import Tool


logger = logging.getLogger(__name__)


def _traceback_that_can_be_written(record: logging.LogRecord) -> bool:
    """Format the traceback before a handler does, which could lose the whole record for a lone surrogate in it."""
    if record.exc_info and record.exc_info[1]:
        record.exc_text = traceback_of(record.exc_info[1]).rstrip("\n")
    return True


logger.addFilter(_traceback_that_can_be_written)


class _LookAgain(Exception):
    """Another row stands there than was seen: decide anew."""


def call(attempt: Attempt, tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    """Carry out one call of a tool in a step; see ``Tool.__call__``."""
    with attempt.call_under_way(tool):
        attempt.stop_if_cancelled()
        return carry_out(attempt, attempt.request(tool, arguments))


def call_of_batch(attempt: Attempt, request: Request) -> Any:
    """Carry out a call that has its identity, in whatever thread works for the attempt."""
    with attempt.call_under_way(request.tool, numbered=True):
        attempt.stop_if_cancelled()
        return carry_out(attempt, request)


def carry_out(attempt: Attempt, request: Request) -> Any:
    """Carry out a call that is under way and has its identity."""
    tool = request.tool
    if not tool.guard.record:  # calls made in its body are the caller's own, since it is run in every attempt
        return attempt.runtime.boundary.effect(tool.name, lambda: tool.run(request.unsent(attempt), request.arguments))
    try:
        with attempt.one_at_a_time(request):
            return _until_decided(attempt, request)
    except BaseException as error:
        _keep_from_step(attempt, request, error)
        raise


def _keep_from_step(attempt: Attempt, request: Request, error: BaseException) -> None:
    """Whatever went wrong on the way, the step must not take a doubt for a failure (I15)."""
    operation = attempt.known.get(request.operation_id)
    in_doubt = operation is not None and operation.status in IN_DOUBT
    # A kind of its own, such as the time-out of an SDK, may have come in the middle of any statement.
    ends_the_process = is_a(error, (*CRASHES, KeyboardInterrupt))
    interrupted = not is_a(error, Exception) and not ends_the_process and request.tool.guard.effect is not Effect.READ
    if in_doubt or interrupted:
        attempt.note_raised(error)
        pause = attempt.runtime.settings.backoff_seconds(attempt.number)
        reason = f"because a call of {request.tool.name} ended in doubt ({type(error).__name__}: {text_of(error)})"
        attempt.suspend(Wait(reason, seconds=pause))


def settle_doubt(attempt: Attempt, operation: Operation) -> None:
    """Settle an operation in doubt that this line did not ask for, or suspend until somebody can (I14)."""
    tool = attempt.agent.tools.get(operation.tool)
    promise = tool.promise if tool is not None else Promise(operation.effect)
    guard = tool.guard if tool is not None else Guard(operation.effect)
    decision = decide(operation.recorded(None, guard, 0), promise)
    if decision is Decision.PROBE and tool is not None:
        ask_the_world(attempt, tool, operation)
    elif decision is Decision.WAIT:
        _wait_for_horizon(attempt, operation)
    else:
        attempt.suspend(Ask(f"did {operation.tool} happen?", (about(Question.UNKNOWN, operation),)))


def settle_unasked(attempt: Attempt, *, at_end: bool, goes_on: bool = False) -> None:
    """Suspend if the ledger holds an effect of this step or later that this line does not ask for (I13, I14).

    Args:
        attempt: whose line is meant.
        at_end: the step has ended, so that nothing whatever may be in doubt. Before a new effect, a call with a key of
            its own may still come, since the order of those may vary.
        goes_on: the run has a next step, so that what an older line did in later steps may still be asked for there.
    """
    attempt.raise_if_doomed()
    settle_doubts(attempt, at_end=at_end, goes_on=goes_on)
    left = [
        operation
        for operation in attempt.unasked()
        if operation.status is OperationStatus.SUCCEEDED
        and not attempt.may_come_in_any_order(operation)
        and (at_end or not may_be_asked_for_yet(attempt, operation))
    ]
    if goes_on:
        left = [o for o in left if o.seq <= attempt.seq]
    orphans = tuple(about(Question.ORPHAN, operation) for operation in left)
    if orphans:
        attempt.suspend(Ask("effects that this line does not ask for", orphans))


def settle_doubts(attempt: Attempt, *, at_end: bool, goes_on: bool = False) -> None:
    """Settle what is in doubt, or suspend until somebody can; the arguments are those of :func:`settle_unasked` (I14)."""
    while (doubtful := next(_doubts(attempt, at_end=at_end, goes_on=goes_on), None)) is not None:
        settle_doubt(attempt, doubtful)


def _doubts(attempt: Attempt, *, at_end: bool, goes_on: bool) -> Iterator[Operation]:
    # A doubt inside a body is one of its own: that the outer call was asked for, or is known by now, settles nothing.
    for operation in list(attempt.known.values()):
        if goes_on and operation.seq > attempt.seq:
            continue
        if operation.status in IN_DOUBT and (at_end or not _open_yet(attempt, operation)):
            yield operation


def _open_yet(attempt: Attempt, operation: Operation) -> bool:
    return (
        operation.operation_id in attempt.asked
        or attempt.may_come_in_any_order(operation)
        or may_be_asked_for_yet(attempt, operation)
    )


def _until_decided(attempt: Attempt, request: Request) -> Any:
    while True:
        try:
            return _act(attempt, request, attempt.known.get(request.operation_id))
        except _LookAgain:
            attempt.runtime.recorder.find(attempt, request.operation_id)


def _act(attempt: Attempt, request: Request, seen: Operation | None) -> Any:
    tool = request.tool
    recorded = None if seen is None else seen.recorded(request.digest, tool.guard, int(request.timeout_seconds * 1e6))
    decision = decide(recorded, tool.promise)
    if seen is None or decision is Decision.EXECUTE:
        return _execute(attempt, request, seen)
    if decision is Decision.RETURN:
        return _recorded_result(attempt, seen)
    if decision is Decision.RAISE:
        raise failure_seen_by_step(seen.error or {}, tool)
    if decision is Decision.WAIT:
        _wait_for_horizon(attempt, seen)
    if decision is Decision.PAUSE:
        attempt.suspend(Wait(f"until {tool.name} may be called again", until=seen.row["ask_at"]))
    if decision is Decision.PROBE:
        ask_the_world(attempt, tool, seen)
        raise _LookAgain
    if decision is Decision.CONFLICT:
        return _other_arguments(attempt, request, seen)
    if decision is Decision.ASK_RESULT:
        why = f" It could not be stored: {seen.error['text']}" if seen.error else ""
        question = about(Question.RESULT, seen, error=seen.error)
        return attempt.suspend(Ask(f"what was the result of {tool.name}?{why}", (question,)))
    if decision is Decision.ASK_SENDS:
        return attempt.suspend(
            Ask(
                f"{tool.name} was sent {seen.attempts} times and did not happen: send it again?",
                (about(Question.SENDS, seen),),
            )
        )
    return attempt.suspend(Ask(f"did {tool.name} happen?", (about(Question.UNKNOWN, seen),)))


def _recorded_result(attempt: Attempt, seen: Operation) -> Any:
    try:
        with outside_run():
            return seen.result
    except CheckpointError as error:  # written by another release, or damaged: it happened all the same
        reason = f"the recorded result of {seen.tool} cannot be read: {error}"
        return attempt.suspend(Ask(reason, (about(Question.RESULT, seen, error=seen.error),)))


def _wait_for_horizon(attempt: Attempt, operation: Operation) -> NoReturn:
    until = max(operation.row["horizon_at"] or 0, operation.row["ask_at"] or 0)
    why = "; its run was cancelled, so it is not sent again" if attempt.settles_only else ""
    attempt.suspend(Wait(f"until nobody can be in the middle of {operation.tool} any more{why}", until=until))


def _other_arguments(attempt: Attempt, request: Request, seen: Operation) -> Any:
    """The same call with other arguments: a person has decided, or must (I4)."""
    reply = attempt.runtime.recorder.conflict_reply(attempt, request.operation_id, request.digest)
    if reply is Reply.RECORDED:
        same = Operation({**seen.row, "args_digest": request.digest}, seen.clock, seen.read_at)
        return _act(attempt, request, same)
    if reply is Reply.NEW:
        return _until_decided(attempt, attempt.renew(request))
    detail = {"tool": request.tool.name, "recorded": seen.args, "asked": request.arguments}
    question = Asked(Question.CONFLICT, seen.operation_id, seen.operation_id, seen.attempts, request.digest, detail)
    return attempt.suspend(Ask(f"{request.tool.name} was asked for again with other arguments", (question,)))


def _execute(attempt: Attempt, request: Request, seen: Operation | None) -> Any:
    is_new = seen is None or seen.status in (OperationStatus.PENDING, OperationStatus.DROPPED)
    effect = request.tool.guard.effect
    if is_new and effect is not Effect.READ and request.call_key is None:
        settle_unasked(attempt, at_end=False)
    if effect is Effect.READ:
        return _read(attempt, request, seen)
    if effect is Effect.TRANSACTIONAL:
        done = execute_transactional(attempt, request, seen)
        if done is None:
            raise _LookAgain
        return done.value
    return _with_intent(attempt, request, seen)


def _read(attempt: Attempt, request: Request, seen: Operation | None) -> Any:
    """No intent: a read whose record is lost is bought again."""
    runtime, tool = attempt.runtime, request.tool
    try:
        with attempt.body_of(request):
            value = runtime.boundary.effect(tool.name, lambda: tool.run(request.unsent(attempt), request.arguments))
        with outside_run():
            result = codec.dumps(value, "result")
    except CRASHES:
        raise
    except RetryLater as later:
        attempt.suspend(later.wait)  # nothing is recorded, so it is bought again
    except Exception as error:
        put_off(attempt, tool, error)
        failure = describe_failure(error, tool.known_errors)
        _record(attempt, request, seen, status=OperationStatus.FAILED, error=codec.dumps(failure), result=None)
        raise failure_seen_by_step(failure, tool, error) from error
    _record(attempt, request, seen, status=OperationStatus.SUCCEEDED, result=result, error=None)
    return value


def _record(attempt: Attempt, request: Request, seen: Operation | None, **outcome: Any) -> None:
    if not attempt.runtime.recorder.record(attempt, request, seen, **outcome):
        raise _LookAgain


def _too_late_to_begin(attempt: Attempt, request: Request, operation: Operation) -> NoReturn:
    """Past its own deadline before it began: nothing was sent, and it is tried again, as often as a request is sent."""
    if operation.attempts >= MAX_SENDS and operation.unsettled == 0:
        _never_in_time(attempt, request, operation)
    attempt.runtime.recorder.never_sent(attempt, operation)
    pause = attempt.runtime.settings.backoff_seconds(operation.attempts)
    attempt.suspend(Wait(f"since the deadline of {operation.tool} passed before its body began", seconds=pause))


def _never_in_time(attempt: Attempt, request: Request, operation: Operation) -> NoReturn:
    tool = request.tool
    error = TimeoutError(
        f"run {attempt.run_id!r}: {tool.subject} was not begun: its deadline ({request.timeout_seconds:g} s) passed before its body "
        f"could begin, at try {operation.attempts} as before. Nothing was sent; give it a longer timeout=."
    )
    failure = codec.dumps(describe_failure(error, tool.known_errors))
    attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.FAILED, error=failure, horizon_at=None)
    raise failure_seen_by_step(operation.error or {}, tool, error)


def _with_intent(attempt: Attempt, request: Request, seen: Operation | None) -> Any:
    """Intent commit, effect, outcome commit."""
    runtime, recorder, tool = attempt.runtime, attempt.runtime.recorder, request.tool
    in_doubt = seen is not None and seen.status in IN_DOUBT
    operation = recorder.begin(attempt, request, seen)
    if operation is None:
        raise _LookAgain
    if operation.remaining() <= 0:
        _too_late_to_begin(attempt, request, operation)
    if in_doubt and tool.guard.effect is Effect.KEYED:
        logger.info(
            "run %s: step %s: %s is sent again with the same key, request %s (operation %s)",
            attempt.run_id,
            attempt.step,
            tool.name,
            operation.attempts,
            operation.operation_id,
            extra={"action": "call_sent_again", "run_id": attempt.run_id, "operation_id": operation.operation_id},
        )
    try:
        with attempt.body_of(request), attempt.deadline_of(operation), interim_of(attempt, operation):
            value = runtime.boundary.effect(tool.name, lambda: tool.run(operation, request.arguments))
    except NeverBegan:
        if operation.remaining() > 0:  # whoever waits for it gave up before that
            recorder.never_sent(attempt, operation)
            raise
        _too_late_to_begin(attempt, request, operation)
    except CRASHES as error:
        _interrupted(attempt, request, operation, error)
        raise
    except Exception as error:  # noqa: BLE001 - every kind of failure is settled or doubted here
        return _failed(attempt, request, operation, error)
    except BaseException as error:
        if attempt.doomed is None:
            _interrupted(attempt, request, operation, error)
        raise
    _succeeded(attempt, request, operation, value)
    return value


def _succeeded(attempt: Attempt, request: Request, operation: Operation, value: Any) -> None:
    try:
        with outside_run():
            result = codec.dumps(value, "result")
    except BaseException as error:  # noqa: BLE001 - a value may do anything when it is looked at
        _without_result(attempt, request, operation, error)
    try:
        attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.SUCCEEDED, result=result, unsettled=0)
    except NotWritable as error:
        _without_result(attempt, request, operation, error)


def _without_result(attempt: Attempt, request: Request, operation: Operation, error: BaseException) -> NoReturn:
    """It happened. Running the body again would make it happen again, so a person says what the result was."""
    failure = codec.dumps(describe_failure(error, request.tool.known_errors))
    attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.SUCCEEDED, result_missing=1, error=failure)
    attempt.suspend(
        Ask(
            f"the result of {request.tool.name} could not be stored: {text_of(error)}",
            (about(Question.RESULT, operation, error=operation.error),),
        )
    )


def _failed(attempt: Attempt, request: Request, operation: Operation, error: Exception) -> NoReturn:
    guard, later = request.tool.guard, error if is_a(error, RetryLater) else None
    judged = error if later is None else later.judged
    refused = guard.refuses(judged) and operation.unsettled == 0
    if later is not None and (refused or guard.effect is Effect.REPEATABLE):
        fact = {"said": later.wait.reason, "traceback": traceback_of(judged)}
        date = operation.in_(later.seconds)  # in its row, so that it survives a crash right here
        attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.PENDING, fact=fact, ask_at=date)
        attempt.suspend(later.wait)
    if refused or guard.effect is Effect.REPEATABLE:
        put_off(attempt, request.tool, error, operation)
        failure = describe_failure(error, request.tool.known_errors)
        lands = request.tool.promise.waits and not refused  # perhaps, and late: not before that may the step act on it
        sure = {} if lands else {"horizon_at": None}
        attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.FAILED, error=codec.dumps(failure), **sure)
        if lands:
            _wait_for_horizon(attempt, operation)
        raise failure_seen_by_step(failure, request.tool, error) from error
    _doubt(attempt, request, operation, judged, later)


def _interrupted(attempt: Attempt, request: Request, operation: Operation, error: BaseException) -> None:
    """The process was to end, or the body was told to stop: what may be done again is, anything else is in doubt."""
    if request.tool.guard.effect is not Effect.REPEATABLE:
        _doubt(attempt, request, operation, error)
    attempt.runtime.recorder.outcome(attempt, operation, OperationStatus.PENDING)


def _doubt(
    attempt: Attempt, request: Request, operation: Operation, error: BaseException, later: RetryLater | None = None
) -> NoReturn:
    """An ambiguous end: nobody here can tell, and the step's code never sees it (I6, I15)."""
    runtime, tool = attempt.runtime, request.tool
    attempt.raised = error
    text = f"{type(error).__name__}: {text_of(error)}"
    keyed, retried = tool.guard.effect is Effect.KEYED, later is not None
    named = later.seconds if later is not None else retry_after(error) if keyed else None
    backoff = runtime.settings.backoff_seconds(operation.attempts) if keyed and not retried else 0.0
    pause = max(backoff, named or 0.0)
    fact = {"said": text, "traceback": traceback_of(error)}
    not_before = {"ask_at": operation.in_(named)} if keyed and named is not None else {}
    try:
        runtime.recorder.outcome(attempt, operation, OperationStatus.UNKNOWN, fact=fact, **not_before)
    finally:  # after it, since the write sees whether the run was cancelled, and nothing of such a run is sent again
        logger.warning(
            "run %s: step %s: nobody can tell whether %s happened (operation %s): %s; %s",
            attempt.run_id,
            attempt.step,
            tool.name,
            operation.operation_id,
            text,
            _what_comes_next(attempt, tool, pause),
            exc_info=error,
            extra={"action": "call_in_doubt", "run_id": attempt.run_id, "operation_id": operation.operation_id},
        )
        if looks_like_a_bug(error):
            _warn_of_a_bug(attempt, tool, error)
    if keyed:
        reason = f"before {tool.name} is sent again with the same key ({text})"
        attempt.suspend(Wait(reason, seconds=pause, retried=retried))
    reason = f"until nobody can be in the middle of {tool.name} any more ({text})"
    attempt.suspend(Wait(reason, until=operation.row["horizon_at"], seconds=pause, retried=retried))


def _warn_of_a_bug(attempt: Attempt, tool: Tool[..., Any], error: BaseException) -> None:
    """It stays a doubt, since it may have been raised after the request went out; but time alone does not mend it."""
    again = tool.guard.effect is Effect.KEYED and not attempt.cancelled
    logger.warning(
        "run %s: %s looks like a bug in the body of %s: mend it and restart the worker; %s",
        attempt.run_id,
        type(error).__name__,
        tool.name,
        "the call is sent again with the same key" if again else "whether the call happened is asked all the same",
        extra={"action": "looks_like_a_bug", "run_id": attempt.run_id},
    )


def _what_comes_next(attempt: Attempt, tool: Tool[..., Any], pause: float) -> str:
    follows = "its probe is asked" if tool.probe_body is not None else "a person is asked"
    waits = f"{follows} once nobody can be in the middle of it any more"
    if tool.guard.effect is not Effect.KEYED:
        return waits
    if attempt.cancelled:
        return f"its run was cancelled, so it is not sent again: {waits}"
    return f"it is sent again with the same key in {pause:g} s, while the key lives and its run is not cancelled"
