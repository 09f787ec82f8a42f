"""A run in files, for the tests of their store."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from checkpoint import CheckpointState, FileStore

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
RUN = "order-7"


def state_at(seq: int, line: int = 0, **changed: Any) -> CheckpointState:
    messages = [f"message {n}" for n in range(seq)]
    return replace(CheckpointState(RUN, seq, f"step-{seq}", line, messages, {"seq": seq}, created_at=NOON), **changed)


def saved(store: FileStore, length: int) -> list[CheckpointState]:
    states = [state_at(seq) for seq in range(length)]
    for state in states:
        store.save(state)
    return states
