"""The state of a run after a step, and the short forms that name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime


@dataclass
class CheckpointState:
    """The short-term memory of one run after one step.

    Args:
        run_id: The run it belongs to.
        seq: Its number in the run: 0 is the input, n the state after the n-th step.
        step: Name of the step that produced it; None for the input.
        line: The line of history; a fallback or a resume from an older seq starts a greater one.
        messages: The conversation, oldest first. Stored as an append log: saving again what was saved costs nothing.
        agent_state: Everything else that the agent's steps share. Stored whole with every checkpoint.
        metadata: Facts about the checkpoint that no step needs.
        created_at: When it was made, with a time zone; a store fills it in with the host's clock if None, and gives
            it back in UTC.
        version: The caller's own version of this state's shape.

    Example:
        >>> CheckpointState("order-7", 0, agent_state={"cart": ["tea"]}).agent_state["cart"]
        ['tea']
    """

    run_id: str
    seq: int
    step: str | None = None
    line: int = 0
    messages: list[Any] = field(default_factory=list)
    agent_state: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True)
class Position:
    """Where a checkpoint stands in its run.

    Args:
        run_id: The run.
        line: The line of history.
        seq: The number of the checkpoint.
    """

    run_id: str
    line: int
    seq: int


@dataclass(frozen=True)
class CheckpointSummary:
    """What a list of checkpoints shows; made without decoding any state.

    Args:
        run_id: The run.
        line: The line of history.
        seq: The number of the checkpoint.
        parent_line: The line of the checkpoint it follows (at seq - 1); None if it follows none.
        step: Name of the step that produced it.
        created_at: When, in UTC.
        version: The caller's version of the state's shape.
        message_count: How many messages the state holds.
        head_bytes: Stored size of agent_state and metadata, in bytes.
    """

    run_id: str
    line: int
    seq: int
    parent_line: int | None
    step: str | None
    created_at: datetime
    version: int
    message_count: int
    head_bytes: int
