"""The examples of docs/testing.md run as they stand, as a newcomer's script; no argument is left out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_tasks.testing import explore_crashes
from tests.pages import ROOT, Page

PAGE = Page("docs/testing.md")


def test_the_examples_of_the_page_find_nothing_wrong() -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    PAGE.run(names)
    assert len(names["found"].schedules) >= 20
    assert set(names["found"].summary()["wrong"]) == set()
    assert set(names["charged"].summary()["wrong"]) == set()


def test_the_table_of_the_page_names_each_argument_and_no_other() -> None:
    rows = [line.split("|")[1] for line in PAGE.text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)=", row)}
    options = {
        name
        for name, parameter in inspect.signature(explore_crashes).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert named == options


def test_a_newcomer_who_runs_the_page_as_a_script_sees_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("\n".join(example.text for example in PAGE.examples))
    command = [sys.executable, str(tmp_path / "shop.py")]
    said = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
