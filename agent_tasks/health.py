"""Whether a checkpoint is fit to go on from: the agent's own check, and tool calls that the messages passed over."""

from __future__ import annotations

import logging
import reprlib
from typing import TYPE_CHECKING, Any

from agent_tasks.operations import CRASHES, name_of, text_of, traceback_of
from agent_tasks.steps import StepState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent_tasks.agent import Agent
    from agent_tasks.boundary import Boundary
    from checkpoint import CheckpointState

logger = logging.getLogger(__name__)


def what_is_unhealthy(agent: Agent, state: CheckpointState, boundary: Boundary, *, resumed: bool) -> str | None:
    """Return why a checkpoint must not be used, or None if nothing speaks against it.

    Args:
        agent: whose check is asked.
        state: of the checkpoint; the check must not change it.
        boundary: that the check passes.
        resumed: also look through the messages, which takes as long as there are messages.
    """
    if resumed and agent.check_messages:
        passed = passed_over(state.messages)
        if passed is not None:
            return f"its messages go on after tool call {passed!r}, which has no result"
    return None if agent.own_check is None else _own_check(agent, state, boundary)


def _own_check(agent: Agent, state: CheckpointState, boundary: Boundary) -> str | None:
    check = agent.own_check
    assert check is not None  # noqa: S101 - the caller looked
    try:
        said = boundary.effect(f"{agent.name}.health_check", lambda: check(StepState(state)))
    except CRASHES:
        raise
    except Exception as error:  # noqa: BLE001 - a state that cannot be looked at is not healthy
        logger.warning(
            "run %s: the health check of checkpoint %s failed\n%s",
            state.run_id,
            state.seq,
            traceback_of(error),
            extra={"action": "health_check_failed", "run_id": state.run_id, "seq": state.seq},
        )
        return f"its health check raised {name_of(error)}: {text_of(error)}"
    if said is None or said is True:
        return None
    if said is False:
        return "its health check says no"
    if isinstance(said, str):
        return f"its health check says: {text_of(said)}"
    return f"its health check returned {reprlib.repr(said)}, and must return True, False or why not as a text"


def passed_over(messages: Iterable[Any]) -> str | int | None:
    """Return the id of the first tool call that has no result although the conversation went on after it.

    Calls that nothing follows are work for the next step. Known are the messages of OpenAI (``tool_calls`` and role
    ``tool``) and Anthropic (``tool_use`` and ``tool_result``), as dicts.

    Example:
        >>> call = {"role": "assistant", "tool_calls": [{"id": "call_1"}]}
        >>> passed_over([call]), passed_over([call, {"role": "user", "content": "hello?"}])
        (None, 'call_1')
        >>> passed_over([call, {"role": "tool", "tool_call_id": "call_1"}, {"role": "user", "content": "thanks"}])
    """
    waiting: dict[str | int, None] = {}
    passed: dict[str | int, None] = {}
    for message in messages:
        if not isinstance(message, dict):
            continue
        results = list(_ids(_results(message)))
        for identifier in results:
            waiting.pop(identifier, None)
            passed.pop(identifier, None)  # late, and there all the same
        if not results:
            passed.update(waiting)
            waiting.clear()
        waiting.update(dict.fromkeys(_ids(_calls(message))))
    return next(iter(passed), None)


def _calls(message: dict[Any, Any]) -> Iterator[Any]:
    for call in _dicts(message.get("tool_calls")):
        yield call.get("id")
    for block in _dicts(message.get("content")):
        if block.get("type") == "tool_use":
            yield block.get("id")


def _results(message: dict[Any, Any]) -> Iterator[Any]:
    if message.get("role") == "tool":
        yield message.get("tool_call_id")
    for block in _dicts(message.get("content")):
        if block.get("type") == "tool_result":
            yield block.get("tool_use_id")


def _dicts(found: Any) -> Iterator[dict[Any, Any]]:
    return (item for item in found if isinstance(item, dict)) if isinstance(found, (list, tuple)) else iter(())


def _ids(found: Iterable[Any]) -> Iterator[str | int]:
    return (identifier for identifier in found if isinstance(identifier, (str, int)))
