"""The examples of docs/threads.md and docs/asyncio.md run as they stand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.pages import ROOT, Page


class Vendor(ModuleType):
    """Stands in for `requests` and the vendor behind it, who answers with what it got."""

    def __init__(self) -> None:
        super().__init__("requests")
        self.asked: Any = None

    def request(self, _method: str, _url: str, **request: Any) -> Vendor:
        answer = Vendor()
        answer.asked = request["json"]
        return answer

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self.asked


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setitem(sys.modules, "requests", Vendor())
    names: dict[str, Any] = {"__name__": "shop"}
    Page("docs/threads.md").run(names)
    greeted = names["newsletter"].run_inline({"readers": ["kim", "robin", "kim"]})
    assert [mail["to"] for mail in greeted] == ["kim", "robin", "kim"]


def test_the_example_of_the_page_about_asyncio_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    names: dict[str, Any] = {"__name__": "shop"}
    Page("docs/asyncio.md").run(names)
    assert names["orders"].run_inline({"cart": ["tea", "milk"]}) == {"id": "o-1", "items": ["tea", "milk"]}
