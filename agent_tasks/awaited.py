"""What an unfinished run waits for, in words: for its caller, its operator and the log alike (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_tasks.clock import moment
from agent_tasks.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping


def waits_for(row: Mapping[Any, Any], lease_seconds: float) -> str | None:
    """Return what a run waits for, in words that follow "waits for", or None of one that has ended.

    Args:
        row: of the run, with the database's time beside it as ``now``.
        lease_seconds: for how long a worker has been in contact with the ledger before it takes a lease over.
    """
    status, due = RunStatus(row["status"]), moment(row["due_at"])
    if status is RunStatus.QUEUED:
        return str(row["waiting_for"] or waits_for_worker(row))
    if status is RunStatus.RUNNING:
        lease = f"the lease of worker {row['lease_owner']}"
        if row["due_at"] is None or row["due_at"] > row["now"]:
            return f"the end of step {row['next_step']!r}; {lease} ends at {due}"
        return (
            f"another worker for step {row['next_step']!r}; {lease} ended at {due}, and a worker takes it over once it has been in "
            f"contact with the ledger for {lease_seconds:g} s. Is one running?"
        )
    if status is RunStatus.WAITING:
        return f"its time, {due}: {row['waiting_for']}"
    return f"a person: {row['waiting_for']}" if status is RunStatus.NEEDS_ATTENTION else None


def waits_for_worker(row: Mapping[Any, Any]) -> str:
    """Return what a queued run waits for, in words that follow "waits for"."""
    return f"a worker on queue {row['queue']!r}"
