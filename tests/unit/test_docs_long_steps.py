"""The examples of docs/long-steps.md run as they stand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_tasks import EffectInCheck, NotKept, RunFailed
from agent_tasks.retries import SHORTEST_PAUSE
from tests.pages import ROOT, Page

PAGE = Page("docs/long-steps.md")


class Studio(ModuleType):
    """Stands in for the vendor: he ships after some days of asking, if ever."""

    def __init__(self) -> None:
        super().__init__("studio")
        self.pages: list[int] = []
        self.jobs: dict[str, str] = {}
        self.desk: list[str] = []
        self.asked, self.ships_after, self.dies_after = 0, 5, -1

    def send_page(self, _book: str, page: int) -> None:
        self.pages.append(page)
        if len(self.pages) == self.dies_after:
            raise MemoryError

    def print_book(self, book: str, *, reference: str) -> str:
        return self.jobs.setdefault(reference, f"job for {book}")

    def find(self, *, reference: str) -> str | None:
        return self.jobs.get(reference)

    def wait_for(self, job: str, *, seconds: float) -> str:
        assert seconds > 0
        return f"copy of {job}"

    def connect(self) -> Any:
        self.desk.append("open")
        return self

    def note(self, book: str) -> None:
        self.desk.append(book)

    def close(self) -> None:
        self.desk.append("closed")

    def tracking(self, copy: str) -> str | None:
        self.asked += 1
        return f"number of {copy}" if 0 < self.ships_after <= self.asked else None


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setitem(sys.modules, "studio", Studio())
    names: dict[str, Any] = {"__name__": "press"}
    PAGE.run(names)
    return names


def test_the_book_of_the_page_is_sent_printed_and_shipped(page: dict[str, Any]) -> None:
    studio = page["studio"]
    studio.dies_after = 3  # the worker, in the middle of page 2
    output = page["press"].run_inline({"book": "tea", "pages": 5})
    assert output == "number of copy of job for tea"
    assert studio.pages == [0, 1, 2, 2, 3, 4]
    assert studio.desk == ["open", "tea", "closed"]
    assert (studio.asked, list(studio.jobs.values())) == (5, ["job for tea"])


def test_a_book_that_is_never_shipped_is_complained_of(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    page["studio"].ships_after = 0
    monkeypatch.setitem(page, "timedelta", lambda **_given: 60)  # five days of asking take long
    with pytest.raises(RunFailed, match="copy of job for tea was never shipped"):
        page["press"].run_inline({"book": "tea", "pages": 1})
    assert page["studio"].asked == 2


def test_the_page_says_what_the_code_does() -> None:
    assert SHORTEST_PAUSE.total_seconds() == 1
    assert all(f"`{error.__name__}`" in PAGE.text for error in (NotKept, EffectInCheck))
