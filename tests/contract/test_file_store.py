"""What a file store does beyond the contract: a layout for people and Git, and edits by hand."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from checkpoint import (
    CheckpointCorrupted,
    CheckpointState,
    FileStore,
    open_store,
)
from tests.filed import NOON, RUN, saved, state_at
from tests.tampering import edit, flipped


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "checkpoints")


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The layout

GOLDEN = {
    "0.json": """{
  "format": 1,
  "run_id": "order-7",
  "line": 0,
  "seq": 0,
  "parent_line": null,
  "step": "plan",
  "version": 1,
  "created_at": "2026-03-01T12:00:00+00:00",
  "message_count": 2,
  "messages": [
    [
      0,
      2
    ]
  ],
  "chain": "2250f0464f7136e2b2996a5f0d14576b",
  "agent_state": {
    "cart": [
      "thé"
    ],
    "price": {
      "$decimal": "1.10"
    },
    "size": {
      "$tuple": [
        2,
        0.5
      ]
    }
  },
  "metadata": {},
  "checksum": "1ab5b4378c6f5203f906451ed1b35372"
}
""",
    "head.json": """{
  "format": 1,
  "run_id": "order-7",
  "line": 0,
  "seq": 0,
  "messages": [
    [
      0,
      2
    ]
  ],
  "chain": "2250f0464f7136e2b2996a5f0d14576b",
  "logs": 1,
  "ancestry": [
    [
      0,
      0
    ]
  ],
  "lines": [
    [
      0,
      0,
      0
    ]
  ],
  "log_bytes": 185,
  "checksum": "aabfd5ca0262551f6609ee4e261bc7dc"
}
""",
    "messages-0.jsonl": """{"position":0,"link":"900fc8308b312b9d69b3f4940836bd67","message":{"role":"user","content":"a\\nb"}}
{"position":1,"link":"2250f0464f7136e2b2996a5f0d14576b","message":{"$bytes":"AP8="}}
""",
}


def test_the_files_of_a_run_are_pinned(store: FileStore) -> None:
    messages = [{"role": "user", "content": "a\nb"}, b"\x00\xff"]
    values = {"cart": ["thé"], "price": Decimal("1.10"), "size": (2, 0.5)}
    state = CheckpointState(RUN, 0, "plan", messages=messages, agent_state=values, created_at=NOON)
    store.save(state)
    folder = store.directory / RUN
    assert {name: content.decode() for name, content in content_of(folder).items()} == GOLDEN
    assert sorted(path.name for path in store.directory.iterdir()) == [".gitignore", ".locks", RUN]
    assert store.load_latest(RUN, strict=True) == state
    later = FileStore(store.directory.with_name("later"))  # what is written today is read by each later release
    (later.directory / RUN).mkdir()
    for name, content in GOLDEN.items():
        (later.directory / RUN / name).write_text(content, encoding="utf-8", newline="")
    assert later.load_latest(RUN, strict=True) == state


def test_a_checkpoint_on_another_line_says_so_in_its_name(store: FileStore) -> None:
    saved(store, 3)
    store.save(state_at(2, line=3, messages=["other"]))
    assert {"2.json", "2.line-3.json", "messages-1.jsonl"} <= set(content_of(store.directory / RUN))


def test_a_save_writes_its_own_files_and_adds_new_messages_only(store: FileStore) -> None:
    folder = store.directory / RUN
    saved(store, 20)
    before = content_of(folder)
    nodes = {path.name: path.stat().st_ino for path in folder.iterdir()}
    store.save(state_at(20))
    after = content_of(folder)
    log = "messages-0.jsonl"
    assert {name for name in after if after[name] != before.get(name)} == {"20.json", "head.json", log}
    assert after[log].startswith(before[log])
    assert len(after[log].splitlines()) == 20
    assert (folder / log).stat().st_ino == nodes[log]
    assert len(after["20.json"]) - len(after["10.json"]) <= 10  # digits


# Git


def git(folder: Path, *arguments: str) -> str:
    names = {"GIT_AUTHOR_NAME": "kim", "GIT_COMMITTER_NAME": "kim", "GIT_CONFIG_GLOBAL": os.devnull}
    mails = {"GIT_AUTHOR_EMAIL": "kim@example.com", "GIT_COMMITTER_EMAIL": "kim@example.com"}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **names, **mails},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def test_a_run_can_be_stepped_through_with_git(repository: Path) -> None:
    store = FileStore(repository / "runs")
    states = [state_at(seq) for seq in range(4)]
    for state in states:
        store.save(state)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"step {state.seq}")
    shown = git(repository, "show", "--numstat", "--format=", "HEAD").split("\n")
    assert "1\t0\truns/order-7/messages-0.jsonl" in shown
    for back in (3, 1, 2, 0):
        git(repository, "checkout", "-q", f"main~{back}")
        with open_store(store.directory.as_uri()) as looked:
            assert looked.load_latest(RUN, strict=True) == states[3 - back]
        assert git(repository, "status", "--porcelain") == ""
    git(repository, "checkout", "-q", "-b", "other", "main~2")
    other = state_at(2, agent_state={"other": True})
    FileStore(repository / "runs").save(other)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "another way")
    assert store.load_latest(RUN, strict=True) == other
    git(repository, "checkout", "-q", "main")
    assert store.load_latest(RUN, strict=True) == states[3]


def test_a_store_outlives_a_cleaning_of_what_git_does_not_know(repository: Path) -> None:
    store = FileStore(repository / "runs")
    saved(store, 2)
    git(repository, "add", "-A")
    git(repository, "clean", "-fdxq")
    assert store.load_latest(RUN, strict=True) == state_at(1)
    store.save(state_at(2))
    assert store.load_latest(RUN, strict=True) == state_at(2)


def test_a_clone_without_locks_is_read_and_goes_on(repository: Path, tmp_path: Path) -> None:
    saved(FileStore(repository / "runs"), 3)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "all")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    clone = FileStore(tmp_path / "clone" / "runs")
    assert clone.load_latest(RUN, strict=True) == state_at(2)
    clone.save(state_at(3))
    assert clone.load_latest(RUN, strict=True) == state_at(3)


def test_line_ends_and_spaces_that_a_tool_changes_break_nothing(store: FileStore) -> None:
    states = saved(store, 4)
    for path in (store.directory / RUN).iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    edit(store.directory / RUN / "3.json", lambda fields: None)
    fresh = FileStore(store.directory)
    assert fresh.load_latest(RUN, strict=True) == states[3]
    fresh.save(state_at(4))
    fresh.save(state_at(5))
    again = FileStore(store.directory)
    assert [again.load(RUN, seq) for seq in range(6)] == [*states, state_at(4), state_at(5)]


# Damage


def test_no_flipped_bit_anywhere_becomes_state(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="checkpoint")
    states = saved(store, 3)
    noticed = 0
    for name, content in content_of(store.directory / RUN).items():
        for bit in range(0, len(content) * 8, 7):  # each place in a byte, and nearly each byte
            path = store.directory / RUN / name
            path.write_bytes(flipped(content, bit))
            reader = FileStore(store.directory)
            try:
                assert reader.load_latest(RUN) in states, (name, bit)
                reader.load_latest(RUN, strict=True)
            except CheckpointCorrupted:
                noticed += 1
            path.write_bytes(content)
    assert noticed > 500
    assert FileStore(store.directory).load_latest(RUN, strict=True) == states[2]


@pytest.mark.parametrize("how", ["gone", "cut off", "of a newer format", "of another run"])
def test_without_its_head_file_a_run_stands_where_its_checkpoints_say(
    store: FileStore, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    saved(store, 5)
    lines = [state_at(2, line=2, messages=["x"]), state_at(3, line=2, messages=["x", "y"]), state_at(3, line=4)]
    for state in lines:
        store.save(state)
    head = store.directory / RUN / "head.json"
    match how:
        case "gone":
            head.unlink()
        case "cut off":
            head.write_bytes(head.read_bytes()[:40])
        case "of a newer format":
            edit(head, lambda fields: fields.update(format=2))
        case _:
            edit(head, lambda fields: fields.update(run_id="order-8"))
    fresh = FileStore(store.directory)
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        assert fresh.load_latest(RUN, strict=True) == lines[2]
    assert "head.json of run 'order-7' cannot be used" in caplog.text
    assert "the run stands at (line 4, seq 3)" in caplog.text
    assert [(fresh.load(RUN, seq).line) for seq in range(4)] == [0, 0, 2, 4]
    assert len(list(fresh.list_checkpoints(RUN))) == 8
    fresh.save(state_at(4, line=4, messages=["z"]))
    caplog.clear()
    assert FileStore(store.directory).load_latest(RUN, strict=True) == state_at(4, line=4, messages=["z"])
    assert FileStore(store.directory).load(RUN, 3) == lines[2]
    assert caplog.messages == []


def test_a_damaged_checkpoint_and_no_head_file_give_the_newest_that_is_whole(store: FileStore) -> None:
    states = saved(store, 4)
    (store.directory / RUN / "head.json").unlink()
    (store.directory / RUN / "3.json").write_bytes(b"{")
    assert FileStore(store.directory).load_latest(RUN) == states[2]


def test_a_run_of_which_no_file_is_whole_says_so(store: FileStore) -> None:
    saved(store, 2)
    for path in (store.directory / RUN).glob("*.json"):
        path.write_bytes(b"{")
    fresh = FileStore(store.directory)
    for read in (fresh.load_latest, fresh.head, lambda run_id: fresh.load(run_id, 0)):
        with pytest.raises(CheckpointCorrupted, match="no checkpoint is whole"):
            read(RUN)


def test_the_files_of_one_run_are_no_other_runs(store: FileStore) -> None:
    states = saved(store, 2)
    shutil.copytree(store.directory / RUN, store.directory / "order-8")
    with pytest.raises(CheckpointCorrupted, match="no checkpoint is whole"):
        store.load_latest("order-8")
    shutil.copy(store.directory / RUN / "0.json", store.directory / RUN / "1.json")
    assert FileStore(store.directory).load_latest(RUN) == states[0]


def test_a_head_file_that_is_older_than_its_checkpoints_is_not_built_on(store: FileStore) -> None:
    head = store.directory / RUN / "head.json"
    saved(store, 2)
    old = head.read_bytes()
    for seq in (2, 3):
        store.save(state_at(seq))
    head.write_bytes(old)
    before = content_of(head.parent)
    fresh = FileStore(store.directory)
    with pytest.raises(CheckpointCorrupted, match=r"head\.json is older than 3\.json"):
        fresh.save(state_at(2, agent_state={"other": 1}))
    assert content_of(head.parent) == before
    head.unlink()
    assert fresh.load_latest(RUN) == state_at(3)


def test_a_log_that_was_cut_is_not_added_to(store: FileStore) -> None:
    saved(store, 4)
    log = store.directory / RUN / "messages-0.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    fresh = FileStore(store.directory)
    with pytest.raises(CheckpointCorrupted, match=r"line 0, seq 3\).*messages-0\.jsonl"):
        fresh.save(state_at(4))
    assert fresh.load_latest(RUN) == state_at(2)
    fresh.save(state_at(3, line=1))
    assert FileStore(store.directory).load_latest(RUN, strict=True) == state_at(3, line=1)


THEIRS = ("notes.md", "00.json", "1.json.bak", "2.line-0.json", "messages-00.jsonl")


def test_what_somebody_else_keeps_in_the_folder_is_left_alone(store: FileStore) -> None:
    saved(store, 2)
    folder = store.directory / RUN
    for name in THEIRS:
        (folder / name).write_text("mine")
    assert len(list(store.list_checkpoints(RUN))) == 2
    store.save(state_at(2))
    assert (folder / "notes.md").read_text() == "mine"
    (folder / "drafts").mkdir()
    (folder / "9.json.tmp").write_text("left behind")
    store.delete(RUN)
    assert store.load_latest(RUN) is None
    assert sorted(path.name for path in folder.iterdir()) == sorted([*THEIRS, "drafts"])
