"""Asking the outside world what became of an operation."""

from __future__ import annotations

import inspect
import logging
import reprlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from agent_tasks.answers import Answer, AskAgain, CannotTell, Happened, NotHappened, PartlyHappened
from agent_tasks.clock import microseconds
from agent_tasks.current import outside_run
from agent_tasks.declarations import in_seconds
from agent_tasks.loops import run_body
from agent_tasks.operations import describe_failure, text_of
from agent_tasks.retries import SHORTEST_PAUSE
from agent_tasks.schema import MAX_EXTERNAL_ID_LENGTH
from agent_tasks.states import OperationStatus, Question
from agent_tasks.suspensions import Ask, Wait, about
from checkpoint import codec

if TYPE_CHECKING:
    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation
    from agent_tasks.tools import Tool

logger = logging.getLogger(__name__)

#: A probe that said so often that it cannot tell yet goes on being asked, and a person may answer before it does.
MAX_PUT_OFFS = 8

#: A probe that names a later date is asked then; nobody's calendar is trusted beyond it.
LONGEST_WAIT = timedelta(days=365)


def ask_the_world(attempt: Attempt, tool: Tool[..., Any], operation: Operation) -> None:
    """Run the probe of an operation in doubt and record its answer; suspend where that settles nothing.

    Raises:
        StepSuspended: nobody can tell yet, or a person must.
    """
    answer = attempt.runtime.boundary.effect(f"{tool.name}.probe", lambda: run_probe(tool, operation))
    said = _said(answer)
    if isinstance(answer, NotHappened) and (later := _once_visible(tool, operation)) is not None:
        answer, said = later, f"{said}, which counts once the effect would be visible"
    logger.info(
        "run %s: step %s: the probe of %s answered: %s (operation %s)",
        attempt.run_id,
        attempt.step,
        tool.name,
        said,
        operation.operation_id,
        extra={"action": "probe_answered", "run_id": attempt.run_id, "operation_id": operation.operation_id},
    )
    recorder = attempt.runtime.recorder
    if isinstance(answer, Happened):
        _happened(attempt, tool, operation, answer)
    elif isinstance(answer, NotHappened):
        recorder.answer(attempt, operation, "not happened", settles=OperationStatus.PENDING, unsettled=0, ask_at=None)
    elif isinstance(answer, AskAgain):
        _ask_again(attempt, tool, operation, answer)
    elif recorder.answer(attempt, operation, said, settles=OperationStatus.UNKNOWN):
        question = about(Question.UNKNOWN, operation, probe=said)
        attempt.suspend(Ask(f"did {tool.name} happen? Its probe says: {said}", (question,)))


def _said(answer: Answer) -> str:
    """Return an answer in words; what a vendor returned may be secret, and stays out of them."""
    if isinstance(answer, Happened):
        return "happened"
    if isinstance(answer, NotHappened):
        return "not happened"
    if isinstance(answer, AskAgain):
        return f"ask again after {answer.after}"
    return (
        f"partly happened: {answer.evidence}" if isinstance(answer, PartlyHappened) else f"cannot tell: {answer.reason}"
    )


def _ask_again(attempt: Attempt, tool: Tool[..., Any], operation: Operation, answer: AskAgain) -> None:
    ask_at = operation.now() + microseconds(min(max(answer.after, SHORTEST_PAUSE), LONGEST_WAIT))
    if not attempt.runtime.recorder.answer(attempt, operation, "ask again", ask_at=ask_at):
        return
    times = attempt.known[operation.operation_id].evidence[-1].get("times", 1)
    reason = f"until the probe of {tool.name} may be asked again"
    if times < MAX_PUT_OFFS:
        attempt.suspend(Wait(reason, until=ask_at))
    said = f"ask again ({times} times)"
    question = about(Question.UNKNOWN, operation, probe=said)
    attempt.suspend(Wait(f"{reason}, or for a person; it has said: {said}", until=ask_at, questions=(question,)))


def _once_visible(tool: Tool[..., Any], operation: Operation) -> AskAgain | None:
    """An empty answer counts only when the effect would be visible by now."""
    visible_at = (operation.row["horizon_at"] or 0) + microseconds(tool.guard.visible_after)
    missing = visible_at - operation.now()
    return AskAgain(timedelta(microseconds=missing)) if missing > 0 else None


def _happened(attempt: Attempt, tool: Tool[..., Any], operation: Operation, answer: Happened) -> None:
    recorder = attempt.runtime.recorder
    try:
        with outside_run():
            result = codec.dumps(answer.result, "result")
    except BaseException as error:  # noqa: BLE001 - a value may do anything when it is looked at
        failure = describe_failure(error, tool.known_errors)
        recorder.answer(
            attempt,
            operation,
            f"happened, with a result that cannot be stored: {failure['text']}",
            settles=OperationStatus.SUCCEEDED,
            result_missing=1,
            error=codec.dumps(failure),
        )
        return
    known = operation.external_id  # as the body has recorded it
    named = known if answer.external_id is None else answer.external_id
    said = "happened" if known in (None, named) else f"happened as {named!r}; its body had recorded {known!r}"
    settled = {"result": result, "external_id": named, "unsettled": 0}
    recorder.answer(attempt, operation, said, settles=OperationStatus.SUCCEEDED, **settled)


def run_probe(tool: Tool[..., Any], operation: Operation) -> Answer:
    """Run a probe within its own timeout; an exception, a hang or another kind of answer is ``CannotTell``."""
    if tool.probe_body is None or tool.probe_timeout is None:
        return CannotTell(f"the {tool.kind} has no probe")
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(_guarded(tool, operation)), daemon=True, name=f"{tool.name}.probe"
    )
    thread.start()
    thread.join(tool.probe_timeout.total_seconds())
    if not answers:
        return CannotTell(f"the probe was still at work after {tool.probe_timeout}")
    return answers[0]


def _guarded(tool: Tool[..., Any], operation: Operation) -> Answer:
    assert tool.probe_body is not None  # noqa: S101 - run_probe looked
    try:
        answer = tool.probe_body(operation)
        if inspect.iscoroutine(answer):
            assert tool.probe_timeout is not None  # noqa: S101 - declared with the probe
            answer = run_body(answer, f"the probe of {tool.subject}", tool.probe_timeout.total_seconds())
        return _plain(answer)
    except BaseException as error:  # noqa: BLE001 - whatever it was, nobody knows more than before
        return CannotTell(f"the probe raised {type(error).__name__}: {text_of(error)}")


def _plain(answer: Any) -> Answer:
    """Return an answer as one of ours, since a probe's own class may do anything when it is looked at."""
    if isinstance(answer, Happened):
        named = None if answer.external_id is None else text_of(answer.external_id)[:MAX_EXTERNAL_ID_LENGTH]
        return Happened(answer.result, named)
    if isinstance(answer, NotHappened):
        return NotHappened()
    if isinstance(answer, AskAgain):
        if isinstance(answer.after, timedelta):
            return AskAgain(answer.after)
        return CannotTell(f"the probe returned AskAgain whose after= is no timedelta.{in_seconds(answer.after)}")
    if isinstance(answer, PartlyHappened):
        return PartlyHappened(text_of(answer.evidence))
    if isinstance(answer, CannotTell):
        return CannotTell(text_of(answer.reason))
    return CannotTell(f"the probe returned {reprlib.repr(answer)}, which is no answer")
