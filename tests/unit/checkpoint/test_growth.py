"""A run of n steps costs O(n) bytes, counted in the columns themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from sqlalchemy import Connection, LargeBinary, String, create_engine, func, select

from checkpoint import CheckpointState, FileStore, MemoryStore, SqlStore, envelope

#: Prose to cut messages from, so that compression finds what it finds in an agent's texts.
PROSE = "".join(topics.values())
CONTENT_LENGTH = 450  # with role, id and usage a message takes 500 bytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    engine = create_engine(f"sqlite:///{tmp_path / 'growth.db'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    store = SqlStore(engine)
    store.create_schema()
    yield store
    engine.dispose()


def stored_bytes(store: SqlStore, connection: Connection) -> int:
    """Return the bytes that everything takes: texts and payloads as they are, and 4 a number."""
    total = 0
    for table in store.metadata.sorted_tables:
        for column in table.c:
            size = func.length(column) if isinstance(column.type, (LargeBinary, String)) else 4
            total += int(connection.scalar(select(func.sum(func.coalesce(size, 0))).select_from(table)) or 0)
    return total


def run(store: SqlStore, measured_at: tuple[int, ...], *, edit_last: bool = False) -> dict[int, int]:
    """Save a run with one more 500-byte message at each step; return what it takes after some of them."""
    messages: list[dict[str, object]] = []
    bytes_at = {}
    with store._engine.begin() as connection:
        for seq in range(measured_at[-1]):
            if edit_last and messages:
                messages[-1]["usage"] = seq
            start = seq * CONTENT_LENGTH % (len(PROSE) - CONTENT_LENGTH)
            content = PROSE[start : start + CONTENT_LENGTH]
            messages.append({"role": "assistant", "content": content, "id": f"message-{seq:06}"})
            state = {"phase": "research", "step": seq, "budget_cents": 1_000, "open": ["a", "b"]}
            store.save(CheckpointState("run-1", seq, "research", 0, messages, state), connection=connection)
            if seq + 1 in measured_at:
                bytes_at[seq + 1] = stored_bytes(store, connection)
    return bytes_at


def exponent(bytes_at: dict[int, int]) -> float:
    """Return p of bytes ~ n^p between the last two measurements."""
    (small, fewer), (large, more) = list(bytes_at.items())[-2:]
    return math.log(more / fewer) / math.log(large / small)


@pytest.mark.parametrize(("compressed", "limit"), [(False, 900_000), (True, 600_000)], ids=["raw", "compressed"])
def test_a_thousand_steps_of_500_bytes_stay_linear_and_small(
    store: SqlStore, compressed: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compressed:
        monkeypatch.setattr(envelope, "COMPRESS_ABOVE_BYTES", envelope.MAX_BYTES)
    bytes_at = run(store, (250, 500, 1_000))
    assert bytes_at[1_000] <= limit
    assert exponent(bytes_at) <= 1.02
    assert exponent({250: bytes_at[250], 500: bytes_at[500]}) <= 1.02


def test_a_run_that_edits_its_last_message_at_each_step_stays_close_to_linear(store: SqlStore) -> None:
    assert exponent(run(store, (100, 200, 400), edit_last=True)) <= 1.25


def test_files_of_a_run_stay_linear_and_a_save_writes_one_small_head(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    folder = tmp_path / "run-1"
    messages: list[dict[str, object]] = []
    bytes_at = {}
    for seq in range(400):
        start = seq * CONTENT_LENGTH
        messages.append(
            {"role": "assistant", "content": PROSE[start : start + CONTENT_LENGTH], "id": f"message-{seq:06}"}
        )
        store.save(CheckpointState("run-1", seq, "research", 0, messages, {"phase": "research", "step": seq}))
        if seq + 1 in (100, 200, 400):
            bytes_at[seq + 1] = sum(path.stat().st_size for path in folder.iterdir())
    assert exponent(bytes_at) <= 1.02
    assert max(path.stat().st_size for path in folder.glob("*.json")) < 1_000


def test_memory_of_a_run_stays_linear() -> None:
    store = MemoryStore()
    for seq in range(50):
        store.save(CheckpointState("run-1", seq, messages=[f"message {n}" for n in range(seq)]))
    shelf = store._memory.runs["run-1"]
    assert sum(len(rows) for _, rows in shelf.logs.values()) == 49
