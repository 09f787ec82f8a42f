"""The examples of docs/checkpoint-stores.md run as they stand, in a folder of the test's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import checkpoint
from checkpoint import FileStore
from tests.pages import Page

PAGE = Page("docs/checkpoint-stores.md")


def test_the_examples_of_the_page_do_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened: list[str] = []

    def open_here(url: str) -> Any:
        opened.append(url)
        return FileStore(tmp_path / "checkpoints")

    monkeypatch.setattr(checkpoint, "open_store", open_here)
    names: dict[str, Any] = {"__name__": "shop"}
    PAGE.run(names)
    store: FileStore = names["store"]
    assert opened == ["file:///tmp/checkpoints"]
    assert "it is saved already with other content; load it, or save yours on a new line" in capsys.readouterr().out
    assert store.load("order-7", 1).messages == ["which tea?"]
    assert store.load("order-7", 1, line=0).messages == ["how many?"]
    listed = [(one.line, one.seq, one.step) for one in store.list_checkpoints("order-7")]
    assert listed == [(1, 2, "clear"), (1, 1, "ask again"), (0, 1, "ask"), (0, 0, None)]
    assert (names["usable"].line, names["usable"].seq) == (0, 0)
    assert "must not be used: its health check says: the cart is gone; fell back to (line 0, seq 0)" in caplog.text
    assert store.load("order-7", 0).agent_state == {"cart": ["coffee"]}


def test_the_files_are_those_of_the_page(tmp_path: Path) -> None:
    listed = re.search(r"    checkpoints/\n((?:      .*\n)+)", PAGE.text)
    assert listed is not None
    shown = {line.split()[0] for line in listed[1].splitlines()}
    store = FileStore(tmp_path)
    for seq, line, messages in ((0, 0, []), (1, 0, ["a"]), (1, 1, ["b"])):
        store.save(checkpoint.CheckpointState("order-7", seq, line=line, messages=messages))
    made = {path.name for path in (tmp_path / "order-7").iterdir()} | {".gitignore", ".locks/", "order-7/"}
    assert made == shown
