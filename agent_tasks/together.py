"""What an attempt knows of its batches: which calls were planned, and which are not at their end (I13)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from agent_tasks.current import bodies
from agent_tasks.states import Effect, OperationStatus

if TYPE_CHECKING:
    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation


class Together:
    """The calls that an attempt makes together.

    Attributes:
        planned: ids of the operations that are pending until their turn comes.
        open: ids of the operations whose calls have not come to their end; other threads make them.
    """

    def __init__(self) -> None:
        self.planned: set[str] = set()
        self.open: set[str] = set()
        self._numbers = count(1)

    def next_number(self) -> int:
        """Return a number for one more batch."""
        return next(self._numbers)


def may_be_asked_for_yet(attempt: Attempt, operation: Operation) -> bool:
    """Tell whether an operation belongs inside a call of a batch that another thread makes, whose body may still ask for it.

    What the caller's own body has not asked for is out of order as ever.
    """
    mine = {body.request.operation_id for body in bodies.get()}
    outer = operation.row["parent_operation"]
    while outer is not None:
        if outer in attempt.together.open and outer not in mine:
            return True
        known = attempt.known.get(outer)
        outer = None if known is None else known.row["parent_operation"]
    return False


def never_begun(attempt: Attempt) -> list[Operation]:
    """Return the pending operations of this step that this line does not start: nobody asked for them, or a batch stopped."""
    pending = [
        operation
        for operation in list(attempt.known.values())
        if operation.status is OperationStatus.PENDING and operation.seq == attempt.seq
    ]
    if not pending:
        return []
    asked = attempt.asked_for() - attempt.together.planned
    return [
        operation
        for operation in pending
        if operation.operation_id not in asked and not _is_to_be_bought_anew(operation)
    ]


def _is_to_be_bought_anew(operation: Operation) -> bool:
    return operation.effect is Effect.READ and operation.attempts > 0
