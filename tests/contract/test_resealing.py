"""Checkpoints that a person edits in their files, and seals anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CheckpointConflict,
    CheckpointCorrupted,
    CheckpointNotFound,
    FileStore,
    Position,
    UnstorableValue,
    reseal,
)
from tests.filed import RUN, saved, state_at
from tests.tampering import edit


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "checkpoints")


def edited(store: FileStore, change: Callable[[dict[str, Any]], object], seq: int = 3) -> Path:
    path = store.directory / RUN / f"{seq}.json"
    edit(path, change)
    return path


def test_an_edited_checkpoint_counts_as_damaged_until_it_is_resealed(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    states = saved(store, 4)

    def change(fields: dict[str, Any]) -> None:
        fields["agent_state"] = {"seq": 3, "who": {"$set": ["b", "a"]}}
        fields["step"] = "another"

    path = edited(store, change)
    told = json.loads(path.read_text())["checksum"]
    assert store.load_latest(RUN) == states[2]
    assert "if it was edited on purpose, reseal it" in caplog.text
    assert reseal(store, RUN, 3, reason="kim: wrong cart") == Position(RUN, 0, 3)
    now = store.load_latest(RUN, strict=True)
    assert now == state_at(3, agent_state={"seq": 3, "who": {"a", "b"}}, step="another")
    (note,) = json.loads(path.read_text())["reseals"]
    assert (note["reason"], note["before"]) == ("kim: wrong cart", told)
    assert datetime.fromisoformat(note["at"]).tzinfo is not None
    assert reseal(store, RUN, 3, reason="again") is None
    store.save(state_at(4))
    assert FileStore(store.directory).load(RUN, 3) == now
    with pytest.raises(CheckpointConflict):
        store.save(states[3])


def test_the_reason_of_a_reseal_is_sealed_too(store: FileStore) -> None:
    saved(store, 4)
    path = edited(store, lambda fields: fields.update(agent_state={}))
    reseal(store, RUN, 3, reason="first")
    edited(store, lambda fields: fields["reseals"][0].update(reason="forged"))
    assert store.load_latest(RUN) == state_at(2)
    reseal(store, RUN, 3, reason="second")
    assert [note["reason"] for note in json.loads(path.read_text())["reseals"]] == ["forged", "second"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda fields: fields.update(agent_state=[1]), "a head must be a list of two dicts"),
        (lambda fields: fields.update(agent_state={"x": {"$date": "tomorrow"}}), "tomorrow"),
        (lambda fields: fields.update(agent_state={"x": {"$what": 1}}), "what shows no value"),
        (lambda fields: fields.update(agent_state={"x": 2**70}), "OverflowError"),
        (lambda fields: fields.update(parent_line=2), "parent_line must not be edited, got 2"),
        (lambda fields: fields.update(parent_line=None), "parent_line must not be edited, got None"),
        (lambda fields: fields.update(message_count=7), "message_count must not be edited"),
        (lambda fields: fields.update(messages=[[0, 2]], message_count=2), "its messages do not match its chain"),
        (lambda fields: fields.update(chain="00"), "do not match its chain"),
        (lambda fields: fields.update(seq=2), "its file is of line 0, seq 2"),
        (lambda fields: fields.update(run_id="x"), "its file is of line 0, seq 3 of run 'x'"),
        (lambda fields: fields.update(created_at="noon"), "'noon' is no moment"),
        (lambda fields: fields.update(format=2), "format must be 1, got 2"),
        (lambda fields: fields.update(typo=1), "unknown field `typo`"),
        (lambda fields: fields.pop("metadata"), "missing required field `metadata`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_not_be_edited_is_not_resealed(
    store: FileStore, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    saved(store, 4)
    path = edited(store, change)
    before = path.read_bytes()
    with pytest.raises(CheckpointCorrupted, match=why):
        reseal(store, RUN, 3, reason="try")
    assert path.read_bytes() == before
    assert store.load_latest(RUN) == state_at(2)


def test_an_edited_message_is_not_resealed(store: FileStore) -> None:
    saved(store, 4)
    edited(store, lambda fields: fields.update(agent_state={}))
    log = store.directory / RUN / "messages-0.jsonl"
    log.write_text(log.read_text().replace('"message 1"', '"forged"'))
    with pytest.raises(CheckpointCorrupted, match="message 1 does not match the chain"):
        reseal(store, RUN, 3, reason="try")


def test_a_reseal_names_what_is_missing(store: FileStore) -> None:
    saved(store, 2)
    for run_id, seq, line in ((RUN, 2, None), (RUN, 1, 1), ("other", 0, None)):
        with pytest.raises(CheckpointNotFound):
            reseal(store, run_id, seq, line=line, reason="x")
    edited(store, lambda fields: fields.update(step="a\x00b"), seq=1)
    with pytest.raises(UnstorableValue, match="step"):
        reseal(store, RUN, 1, reason="x")
    with pytest.raises(UnstorableValue, match="reason"):
        reseal(store, RUN, 1, reason=" ")


def test_a_checkpoint_of_an_older_line_is_resealed_by_its_line(store: FileStore) -> None:
    saved(store, 3)
    store.save(state_at(2, line=1))
    edited(store, lambda fields: fields.update(agent_state={"old": True}), seq=2)
    assert reseal(store, RUN, 2, reason="x") is None
    assert reseal(store, RUN, 2, reason="x", line=0) == Position(RUN, 0, 2)
    assert store.load(RUN, 2, line=0).agent_state == {"old": True}
