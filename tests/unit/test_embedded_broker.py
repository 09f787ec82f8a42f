"""The embedded broker survives processes that die in the middle of a write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection


@pytest.fixture
def name() -> str:
    """Of its own for each test: kombu remembers for the whole process which queues it has bound."""
    return f"agents-{uuid.uuid4()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("queues", "control"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def connection(folder: Path) -> Iterator[Connection]:
    options = {
        "data_folder_in": str(folder / "queues"),
        "data_folder_out": str(folder / "queues"),
        "control_folder": str(folder / "control"),
    }
    transport = "agent_tasks.embedded:Transport"
    with Connection("filesystem://localhost", transport=transport, transport_options=options) as made:
        yield made


def test_a_message_arrives(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put({"run": 1})
        message = queue.get(timeout=5)
        message.ack()
        assert message.payload == {"run": 1}


def test_a_file_that_its_writer_never_filled_is_passed_over(connection: Connection, folder: Path, name: str) -> None:
    (folder / "queues" / f"0_torn.{name}.msg").touch()
    with connection.SimpleQueue(name) as queue:
        queue.put("whole")
        assert queue.get(timeout=5).payload == "whole"


def test_a_message_of_a_writer_that_died_in_the_middle_is_not_seen(
    connection: Connection, folder: Path, name: str
) -> None:
    (folder / "queues" / f"0_half.{name}.msg.partial").write_text('{"bo')
    with connection.SimpleQueue(name) as queue:
        assert queue.qsize() == 0


def test_a_table_of_bindings_that_its_writer_never_filled_is_made_again(
    connection: Connection, folder: Path, name: str
) -> None:
    broken = folder / "control" / f"{name}.exchange"
    broken.touch()
    with connection.SimpleQueue(name) as queue:
        queue.put("whole")
        assert queue.get(timeout=5).payload == "whole"
    assert name in broken.read_text()
