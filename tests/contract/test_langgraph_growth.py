"""What a thread of the LangGraph saver takes: bytes, statements and round trips, which grow with what is added."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from checkpoint.envelope import unpack
from tests.proxy import proxied
from tests.savers import put, rows, savers, thread

pytest.importorskip("langgraph.graph")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph

from checkpoint.langgraph import CheckpointSaver, ThreadCorrupted

CONFIG: Any = {"configurable": {"thread_id": "order-7"}, "recursion_limit": 10_000}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    with savers(f"sqlite:///{tmp_path / 'threads.db'}") as made:
        yield made


def run_steps(saver: CheckpointSaver, steps: int) -> None:
    """Run a graph whose steps each add a message of 500 bytes that nothing compresses."""
    letters = random.Random(7)

    def agent(state: MessagesState) -> Any:
        return {"messages": [AIMessage("".join(letters.choices(string.printable, k=500)))]}

    def again(state: MessagesState) -> str:
        return END if len(state["messages"]) > steps else "agent"

    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    compiled = graph.add_conditional_edges("agent", again).compile(checkpointer=saver)
    compiled.invoke({"messages": [HumanMessage("Go.")]}, CONFIG, durability="sync")


def raw_bytes(saver: CheckpointSaver) -> int:
    """Return what all columns of all rows take, keys included, before compression."""
    total = 0
    with saver._store._engine.connect() as connection:
        for table in (saver._tables.spaces, *saver._tables.of_space()):
            for row in connection.execute(select(table)):
                for column, value in zip(table.c, row, strict=True):
                    packed = column.name in ("body", "payload")
                    total += len(unpack(value)) if packed else 8 if isinstance(value, int) else len(value or b"")
    return total


def test_bytes_grow_with_the_steps_and_not_with_their_square(make: Any) -> None:
    sizes = []
    for steps in (50, 200):
        saver = make()
        run_steps(saver, steps)
        sizes.append(raw_bytes(saver))
        saver.delete_thread("order-7")
    assert sizes[1] <= sizes[0] * 4 * 1.02
    assert sizes[1] <= 200 * 1_500  # 1,000 steps take 1.5 MB at most


def test_a_message_and_a_large_value_are_one_row_however_often_they_are_saved(make: Any) -> None:
    saver = make()
    run_steps(saver, 100)
    counted = rows(saver)
    assert 100 < counted["blobs"] <= 105  # and what the graph was given, as input and as a message
    assert counted["chunks"] <= counted["checkpoints"]


def test_a_list_whose_end_is_edited_again_and_again_is_not_copied_each_time(make: Any) -> None:
    saver = make()
    config: Any = thread()
    messages = [f"{number} " + "x" * 100 for number in range(200)]
    for step in range(100):
        messages[-1] = f"edited {step} " + "x" * 100
        config = put(saver, config, {"messages": list(messages)}, step + 1)
    with saver._store._engine.connect() as connection:
        written = sum(len(row.refs) for row in connection.execute(select(saver._tables.chunks)))
    assert written <= 200 * 20 + 100 * 20 * 8


def test_a_put_and_a_tasks_writes_are_one_round_trip_each_on_postgresql(postgres_url: str) -> None:
    with proxied(postgres_url) as (proxy, url), savers(url) as make:
        saver = make()
        config = put(saver, thread(), {"messages": ["x" * 100]})
        saver.put_writes(config, [("messages", ["y" * 100])], "warm")
        config = put(saver, config, {"messages": ["x" * 100, "y" * 100]}, 2)
        before = proxy.round_trips
        put(saver, config, {"messages": ["x" * 100, "y" * 100, "z" * 100], "other": "z" * 300}, 3)
        put_trips, before = proxy.round_trips - before, proxy.round_trips
        saver.put_writes(config, [("messages", ["z" * 100]), ("other", 1)], "task")
        assert (put_trips, proxy.round_trips - before) == (1, 1)


class Shift(CipherProtocol):
    """As good as none, but like a real one it makes other bytes of the same ones each time."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        key = random.randbytes(16)
        return "shift", key + bytes(byte ^ key[place % 16] for place, byte in enumerate(plaintext))

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "shift"
        key, body = ciphertext[:16], ciphertext[16:]
        return bytes(byte ^ key[place % 16] for place, byte in enumerate(body))


def encrypted() -> EncryptedSerializer:
    return EncryptedSerializer(Shift(), JsonPlusSerializer(allowed_msgpack_modules=None))


def test_an_encrypted_list_grows_with_what_is_added_and_shows_nothing(make: Any) -> None:
    saver = make(serde=encrypted())
    config: Any = thread()
    messages: list[str] = []
    for step in range(80):
        messages = [*messages, f"secret {step} " + "x" * 100]
        config = put(saver, config, {"messages": messages}, step + 1, note="secret note")
        if step % 20 == 0:
            saver = make(serde=encrypted())
            assert saver.get_tuple(config).checkpoint["channel_values"] == {"messages": messages}
            messages = saver.get_tuple(thread(thread_id=config["configurable"]["thread_id"])).checkpoint[
                "channel_values"
            ]["messages"]
    assert rows(saver)["blobs"] <= 80 * 1.1 + 8
    with saver._store._engine.connect() as connection:
        for table in saver._tables.of_space():
            for row in connection.execute(select(table)):
                assert not any(b"secret" in value for value in row if isinstance(value, bytes))


def test_plain_rows_are_refused_where_encrypted_ones_are_wanted(make: Any) -> None:
    config = put(make(), thread(), {"a": "plain"})
    with pytest.raises(ThreadCorrupted, match="must be encrypted and is not"):
        make(serde=encrypted()).get_tuple(config)
