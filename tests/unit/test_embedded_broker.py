"""The embedded broker survives processes that die in the middle of a write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection

pytestmark = pytest.mark.versions


@pytest.fixture
def name() -> str:
    return "agents"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("queues", "control"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def connection(folder: Path) -> Iterator[Connection]:
    with connect(folder) as made:
        yield made


def connect(folder: Path) -> Connection:
    options = {
        "data_folder_in": str(folder / "queues"),
        "data_folder_out": str(folder / "queues"),
        "control_folder": str(folder / "control"),
    }
    return Connection("filesystem://localhost", transport="agent_tasks.embedded:Transport", transport_options=options)


def test_a_url_without_a_host_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    with Connection("filesystem://", transport="agent_tasks.embedded:Transport") as connection:
        assert connection.as_uri()
        assert connection.clone().info()["transport"]
    assert caplog.text == ""


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
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise InterruptedError

    with connection.SimpleQueue(name) as queue:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", die)
            with pytest.raises(InterruptedError):
                queue.put("half")
        assert queue.qsize() == 0
        queue.put("whole")
        assert queue.get(timeout=30).payload == "whole"


def test_a_table_of_bindings_that_its_writer_never_filled_is_made_again(
    connection: Connection, folder: Path, name: str
) -> None:
    broken = folder / "control" / f"{name}.exchange"
    broken.touch()
    with connection.SimpleQueue(name) as queue:
        queue.put("whole")
        assert queue.get(timeout=5).payload == "whole"
    assert name in broken.read_text()


def test_two_brokers_of_one_process_know_nothing_of_each_other(tmp_path: Path, name: str) -> None:
    for folder in ("one", "two"):
        with connect(tmp_path / folder) as connection, connection.SimpleQueue(name) as queue:
            queue.put(folder)
            assert queue.get(timeout=5).payload == folder


def test_a_broker_whose_folder_was_removed_carries_messages_again(
    connection: Connection, folder: Path, name: str
) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put("lost")
        shutil.rmtree(folder / "queues")
        shutil.rmtree(folder / "control")
        with pytest.raises(queue.Empty):
            queue.get_nowait()
        queue.put("carried")
        assert queue.get(timeout=5).payload == "carried"
