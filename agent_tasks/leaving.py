"""What a step leaves, encoded before its commit (I7, I11).

A value may do anything when it is looked at: raise an error of a database of its own, or end the process. In the middle of a
write that would pass for a refusal of the ledger, or for a lost worker, and the step would be run again for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded

from agent_tasks.outcomes import Done, Next
from checkpoint import codec
from checkpoint.errors import UnstorableValue
from checkpoint.words import said

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpoint import CheckpointState, Snapshot, SqlStore

T = TypeVar("T")


@dataclass(frozen=True)
class Left:
    """What a step leaves.

    Attributes:
        snapshot: of its checkpoint; None where it makes none.
        output: of the run, as it is stored; None where it does not succeed.
    """

    snapshot: Snapshot | None = None
    output: bytes | None = None


def left_by(store: SqlStore, outcome: object, state: CheckpointState) -> Left:
    """Encode what a step leaves that has ended.

    Args:
        store: of the checkpoints.
        outcome: of the step.
        state: the checkpoint that it has made.

    Raises:
        UnstorableValue: a part of it cannot be stored, or did something else when it was looked at.
    """
    if not isinstance(outcome, (Next, Done)):
        return Left()
    snapshot = _looked_at("agent_state", lambda: store.snapshot(state))
    if isinstance(outcome, Next):
        return Left(snapshot)
    return Left(snapshot, _looked_at("output", lambda: codec.dumps(outcome.output, "output")))


def _looked_at(path: str, encode: Callable[[], T]) -> T:
    try:
        try:
            return encode()
        except SoftTimeLimitExceeded:  # which strikes once, at a step that is over: it is committed all the same
            return encode()
    except UnstorableValue:
        raise
    except (Exception, SystemExit) as error:
        raise UnstorableValue(path, f"looking at it raised {said(error)}") from error
