"""A run of n steps costs O(n) bytes, counted in the columns themselves."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import LargeBinary, String, create_engine, func, select

from checkpoint import CheckpointState, SqlStore, envelope

ALPHABET = string.ascii_letters + string.digits


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    engine = create_engine(f"sqlite:///{tmp_path / 'growth.db'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    store = SqlStore(engine)
    store.create_schema()
    yield store
    engine.dispose()


def stored_bytes(store: SqlStore, run_id: str) -> int:
    """Return the bytes that a run takes: its texts and payloads as they are, and 4 or 8 a number."""
    total = 0
    with store._engine.connect() as connection:
        for table in store.metadata.sorted_tables:
            sizes = [
                func.coalesce(func.length(column), 0) if isinstance(column.type, (LargeBinary, String)) else 4
                for column in table.c
            ]
            sized = select(func.sum(sum(sizes[1:], sizes[0]))).where(table.c.run_id == run_id)
            total += int(connection.scalar(sized) or 0)
    return total


def run(store: SqlStore, steps: int, *, edit_last: bool = False) -> int:
    """Save a run with one more 500-byte message at each step and return what it takes."""
    chance = random.Random(steps)
    run_id = f"run-{steps}-{edit_last}"
    messages: list[dict[str, object]] = []
    with store._engine.begin() as connection:
        for seq in range(steps):
            if edit_last and messages:
                messages[-1]["usage"] = seq
            content = "".join(chance.choices(ALPHABET, k=440))
            messages.append({"role": "assistant", "content": content, "id": f"message-{seq:06}"})
            state = {"phase": "research", "step": seq, "budget_cents": 1_000, "open": ["a", "b"]}
            store.save(
                CheckpointState(run_id, seq, "research", messages=messages, agent_state=state), connection=connection
            )
    return stored_bytes(store, run_id)


def exponent(bytes_at: dict[int, int]) -> float:
    small, large = min(bytes_at), max(bytes_at)
    return math.log(bytes_at[large] / bytes_at[small]) / math.log(large / small)


@pytest.mark.parametrize("compressed", [False, True], ids=["raw", "compressed"])
def test_a_thousand_steps_of_500_bytes_stay_linear_and_small(
    store: SqlStore, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compressed:
        monkeypatch.setattr(envelope, "COMPRESS_ABOVE_BYTES", envelope.MAX_BYTES)
    bytes_at = {steps: run(store, steps) for steps in (250, 500, 1_000)}
    assert bytes_at[1_000] <= (600_000 if compressed else 900_000)
    assert exponent(bytes_at) <= 1.02


def test_a_run_that_edits_its_last_message_at_each_step_stays_close_to_linear(store: SqlStore) -> None:
    bytes_at = {steps: run(store, steps, edit_last=True) for steps in (250, 500, 1_000)}
    assert exponent(bytes_at) <= 1.2
