"""A state as it was at one moment, and as a store will give it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoint.record import decode_head, decode_items, moment
from checkpoint.state import CheckpointState

if TYPE_CHECKING:
    from checkpoint.record import Record


class Snapshot:
    """A state that was encoded, to be saved now or later; whoever changes the state afterwards does not change it.

    Made by `SqlStore.snapshot`, which refuses what could not be stored.

    Args:
        record: The state, encoded.

    Example:
        >>> from sqlalchemy import create_engine
        >>> from checkpoint import CheckpointState, SqlStore
        >>> store = SqlStore(create_engine("sqlite://"))
        >>> state = CheckpointState("order-7", 0, agent_state={"cart": ["tea"]})
        >>> snapshot = store.snapshot(state)
        >>> state.agent_state["cart"].append("milk")
        >>> snapshot.state().agent_state
        {'cart': ['tea']}
    """

    def __init__(self, record: Record) -> None:
        self.record = record

    @property
    def seq(self) -> int:
        """The number of the checkpoint."""
        return self.record.seq

    def state(self) -> CheckpointState:
        """Return the state as it would be loaded: a new one each time, with no part in common with any other.

        Raises:
            UnreadableValue: A part of it needs code or a package that is missing here.
        """
        record = self.record
        agent_state, metadata = decode_head(record.head)
        return CheckpointState(
            record.run_id,
            record.seq,
            record.step,
            record.line,
            decode_items(record.items),
            agent_state,
            metadata,
            moment(record.created_at),
            record.version,
        )
