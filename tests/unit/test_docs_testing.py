"""The example of docs/testing.md runs as it stands, as a newcomer's script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.pages import ROOT, Page

PAGE = Page("docs/testing.md")


def test_the_example_of_the_page_finds_nothing_wrong() -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    PAGE.run(names)
    assert len(names["found"].schedules) >= 20
    assert set(names["found"].summary()["wrong"]) == set()


def test_a_newcomer_who_runs_the_page_as_a_script_sees_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("\n".join(example.text for example in PAGE.examples))
    command = [sys.executable, str(tmp_path / "shop.py")]
    said = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
