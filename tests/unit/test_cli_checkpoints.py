"""The command that seals an edited checkpoint anew, as a person and as a script use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent_tasks.cli import agent, exit_codes
from checkpoint import CheckpointState, FileStore
from tests.tampering import edit


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "checkpoints")
    for seq in range(3):
        store.save(CheckpointState("order-7", seq, agent_state={"cart": ["tea"]}))
    return store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(agent, ["checkpoints", "reseal", *arguments], prog_name="agent-tasks")


def test_an_edited_checkpoint_is_sealed_anew_and_the_reason_is_kept(store: FileStore) -> None:
    path = store.directory / "order-7" / "2.json"
    edit(path, lambda fields: fields.update(agent_state={"cart": ["milk"]}))
    done = run("order-7", "2", "--store", store.url, "--reason", "kim: no tea left")
    assert (done.exit_code, done.stdout) == (exit_codes.OK, "checkpoint 2 (line 0) of run order-7 is sealed anew\n")
    state = store.load_latest("order-7", strict=True)
    assert state is not None
    assert state.agent_state == {"cart": ["milk"]}
    assert json.loads(path.read_text())["reseals"][0]["reason"] == "kim: no tea left"


def test_a_checkpoint_that_nobody_edited_is_left_alone(store: FileStore) -> None:
    before = (store.directory / "order-7" / "2.json").read_bytes()
    done = run("order-7", "2", "--store", store.url, "--reason", "x")
    assert (done.exit_code, done.stdout) == (exit_codes.STATE, "")
    assert "was not edited: its checksum fits" in done.stderr
    assert (store.directory / "order-7" / "2.json").read_bytes() == before


def test_an_edit_of_a_message_is_refused(store: FileStore) -> None:
    edit(store.directory / "order-7" / "2.json", lambda fields: fields.update(message_count=4))
    done = run("order-7", "2", "--store", store.url, "--reason", "x")
    assert done.exit_code == exit_codes.FAILED
    assert "Error: the checkpoint was not sealed anew." in done.stderr
    assert "message_count must not be edited" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["order-7", "9"], exit_codes.NOT_FOUND, "its head is at line 0, seq 2"),
        (["order-8", "0"], exit_codes.NOT_FOUND, "the run has no checkpoint at all"),
        (["order-7", "-1"], exit_codes.USAGE, "-1"),
        (["order-7", "2", "--store", "sqlite:///x.db"], exit_codes.USAGE, "as in file:///directory"),
        (["order-7", "2", "--store", "file:///does/not/exist"], exit_codes.USAGE, "there is no folder /does/not/exist"),
    ],
    ids=str,
)
def test_what_is_not_there_is_named(store: FileStore, arguments: list[str], code: int, said: str) -> None:
    done = run("--reason", "x", "--store", store.url, *arguments)
    assert done.exit_code == code
    assert said in done.stderr


def test_a_reason_is_asked_for(store: FileStore) -> None:
    done = run("order-7", "2", "--store", store.url)
    assert done.exit_code == exit_codes.USAGE
    assert "--reason" in done.stderr
