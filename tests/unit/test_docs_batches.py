"""The examples of docs/batches.md run as they stand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_tasks.config import Settings
from tests.pages import ROOT, Page

PAGE = Page("docs/batches.md")


class Answer:
    def __init__(self, body: Any, status_code: int = 200) -> None:
        self.body, self.status_code = body, status_code

    def raise_for_status(self) -> None: ...

    def json(self) -> Any:
        return self.body


class Vendor(ModuleType):
    """Stands in for `requests` and the vendors behind it; its model asks for two searches, and then answers."""

    def __init__(self) -> None:
        super().__init__("requests")
        self.mails: dict[str, str] = {}

    def request(self, _method: str, url: str, *, timeout: float, **request: Any) -> Answer:
        assert timeout
        place = url.rpartition("/")[2]
        if place == "search":
            query = request["params"]["q"]
            return Answer({"found": query.upper()}, 404 if query == "coffee" else 200)
        if place == "mails":
            self.mails[request["headers"]["Idempotency-Key"]] = request["json"]["to"]
            return Answer({"id": f"mail to {request['json']['to']}"})
        heard = [message["content"] for message in request["json"]["messages"] if message["role"] == "tool"]
        if heard:
            return Answer({"role": "assistant", "content": " and ".join(heard)})
        asked = [{"id": str(number), "query": query} for number, query in enumerate(("tea", "coffee"))]
        return Answer({"role": "assistant", "content": "", "tool_calls": asked})


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    vendor = Vendor()
    monkeypatch.setitem(sys.modules, "requests", vendor)
    names: dict[str, Any] = {"__name__": "shop", "vendor": vendor}
    PAGE.run(names)
    return names


def test_the_batch_of_the_page_greets_each_reader_once(page: dict[str, Any]) -> None:
    readers = [f"reader {number}" for number in range(6)]
    assert page["newsletter"].run_inline({"readers": readers}) == [f"mail to {reader}" for reader in readers]
    assert sorted(page["vendor"].mails.values()) == readers


def test_the_failures_that_the_page_collects_are_named(page: dict[str, Any]) -> None:
    output = page["library"].run_inline({"queries": ["tea", "coffee", "milk"]})
    assert output == {"found": ["TEA", "MILK"], "missing": ["coffee"]}


def test_the_chat_of_the_page_hears_what_its_model_asked_for(page: dict[str, Any]) -> None:
    assert page["chat"].run_inline({"question": "what is there?"}) == "TEA and error: /search"


def test_the_test_of_the_page_passes(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    page["test_a_turn_asks_for_what_the_model_wants"](monkeypatch)


def test_the_page_names_the_limit() -> None:
    assert f"`agent_max_batch` ({Settings('sqlite:///x').max_batch:,})" in PAGE.text
