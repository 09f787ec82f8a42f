"""The examples of docs/plain-tasks.md run as they stand, beside a worker."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest

from agent_tasks.integration import AppState
from agent_tasks.states import RunStatus
from tests.apps import close
from tests.pages import ROOT, Page, worker_of


class Vendor(ModuleType):
    """Stands in for `requests` and the vendor behind it; the answer to the first refund is lost."""

    def __init__(self) -> None:
        super().__init__("requests")
        self.posted: list[tuple[str, Any]] = []
        self._asked: Any = None

    def request(self, method: str, url: str, **request: Any) -> Vendor:
        assert 0 < request["timeout"] <= 30
        place = url.removeprefix("https://vendor.example/").split("/")[0]
        if method == "POST":
            self.posted.append((place, request["json"]))
            self._asked = request["json"]
            if place == "refunds":
                raise TimeoutError("no answer")
        elif place == "prices":
            self._asked = {"cents": 5}
        else:
            reference = request["params"]["reference"]
            self._asked = [asked for kind, asked in self.posted if asked.get("reference") == reference]
        return self

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self._asked


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    vendor = Vendor()
    monkeypatch.setitem(sys.modules, "requests", vendor)
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set())  # tasks of apps of other tests are theirs
    names: dict[str, Any] = {"__name__": "shop"}
    with ExitStack() as worker:

        def work() -> None:
            if "result" not in names:
                worker.enter_context(worker_of(names["app"]))

        Page("docs/plain-tasks.md").run(names, between=work)

    assert names["result"].get(timeout=0) == {"order": "o-1", "cents": 300}
    runtime = AppState.of(names["app"]).runtime
    with runtime.engine.connect() as connection:
        assert runtime.runs.find(connection, names["result"].id)["status"] == RunStatus.SUCCEEDED
    assert names["pay"].apply(("o-2", 300)).get() == {"order": "o-2", "cents": 300}
    assert names["refund"].apply(("ch-1",)).get()["charge"] == "ch-1"
    assert names["offer"].apply(("kim", "tea")).get() == {"to": "kim", "words": "tea costs 5 cents today"}
    assert [place for place, _ in vendor.posted] == ["payments", "payments", "refunds", "mails"]
    runtime.engine.dispose()
    close(names["app"])
