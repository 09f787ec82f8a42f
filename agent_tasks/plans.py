"""Calls that nobody has begun, as pending operations of the ledger. The connection's transaction is the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, or_

from agent_tasks.states import OperationStatus
from checkpoint.inserts import upsert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.ledger import Ledger, Request
    from agent_tasks.operations import Operation

#: What of a planned call's row another plan of it writes anew; last what tells whether it may.
_ANEW = ("line", "seq", "effect", "args", "args_digest", "why", "fence", "token", "ended", "finished_at", "status")

#: Ids in one statement; databases take some thousands of parameters.
_IDS_ASKED = 500


def plan(
    ledger: Ledger, connection: Connection, attempt: Attempt, requests: Iterable[Request], seq: int | None = None
) -> None:
    """Write calls as pending; the caller holds the run's row.

    One that was planned before, and never begun, is planned as it is asked for now; any other row is left alone.

    Args:
        ledger: that gets them.
        connection: whose transaction is the caller's.
        attempt: that asks for the calls.
        requests: the calls.
        seq: of the step that makes them, if not the attempt's own.
    """
    c = ledger.table.c
    own = {"status": str(OperationStatus.PENDING), "fence": attempt.fence, "token": attempt.token, "attempts": 0}
    rows = [{**request.planned(attempt, seq), **own, "ended": None, "finished_at": None} for request in requests]
    if not rows:
        return
    unbegun = or_(c.status == OperationStatus.PENDING, c.status == OperationStatus.DROPPED)
    rows.sort(
        key=lambda row: row["operation_id"]
    )  # in one order: two batches with the same keys would else wait in a ring
    upsert(
        connection,
        ledger.table,
        rows,
        lambda excluded: [(name, excluded[name]) for name in _ANEW],
        where=and_(c.attempts == 0, unbegun),
    )


def planned(ledger: Ledger, connection: Connection, operation_ids: list[str]) -> list[Operation]:
    """Return the operations of these ids as they stand."""
    found: list[Operation] = []
    for begin in range(0, len(operation_ids), _IDS_ASKED):
        found += ledger.with_ids(connection, operation_ids[begin : begin + _IDS_ASKED])
    return found
