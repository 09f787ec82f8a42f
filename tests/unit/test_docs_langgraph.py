"""The package of the LangGraph saver: what it needs, what it costs who does not use it, and that its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, Page

WITHOUT = "import sys; sys.modules['langgraph.checkpoint.base'] = None; import checkpoint.langgraph"
WITH_OTHERS = "import sys, checkpoint; assert not [name for name in sys.modules if name.split('.')[0] == 'langgraph']"


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False).stderr


def test_who_uses_other_parts_imports_nothing_of_langgraph() -> None:
    assert run(WITH_OTHERS) == ""


def test_without_langgraph_the_error_names_the_extra() -> None:
    assert "pip install 'celery-agent-tasks[langgraph]'" in run(WITHOUT).splitlines()[-1]


def test_the_examples_of_the_docstrings_run(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.graph")
    package = importlib.import_module("checkpoint.langgraph")
    names = [f"checkpoint.langgraph.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    results = [
        doctest.testmod(importlib.import_module(name), extraglobs={"directory": str(tmp_path)}) for name in names
    ]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 0


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langgraph.graph")
    monkeypatch.chdir(tmp_path)
    Page("docs/langgraph.md").run({"__name__": "orders"})
