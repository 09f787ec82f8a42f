"""The examples of docs/steps.md run as they stand."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_tasks import Agent, RunCancelled
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell
from agent_tasks.inline import answer_all
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.retries import OPTIONS
from agent_tasks.runtime import Runtime
from agent_tasks.sweeper import Sweeper
from tests.clocks import StandingClock
from tests.pages import ROOT, Page

PAGE = Page("docs/steps.md")


class Warehouse(ModuleType):
    """Stands in for the vendor of the page: busy at first, then sold out, then it orders."""

    def __init__(self) -> None:
        super().__init__("warehouse")
        self.asked: list[str] = []

    def order(self, item: str, *, key: str) -> dict[str, str]:
        self.asked.append(key)
        if len(self.asked) <= 2:
            return {"status": "busy" if len(self.asked) == 1 else "sold out"}
        return {"status": "ordered", "goods": f"a box of {item}"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    warehouse = Warehouse()
    monkeypatch.setitem(sys.modules, "warehouse", warehouse)
    upgrade(url := f"sqlite:///{tmp_path / 'agent.db'}")
    names: dict[str, Any] = {"__name__": "shop", "runtime": Runtime(Settings(url), InlineBell, clock=StandingClock())}
    PAGE.run(names, between=lambda: AppState.of(names["app"]).use_runtime(names["runtime"]))
    yield names
    names["runtime"].engine.dispose()


def test_the_step_of_the_page_waits_for_the_vendor_is_retried_and_comes_to_its_end(page: dict[str, Any]) -> None:
    runtime, order = page["runtime"], page["order"]
    run = order.enqueue({"item": "tea"})
    for _ in range(4):
        answer_all(runtime, order)
        runtime.clock.advance(60)
        Sweeper(runtime).sweep()
    assert run.get(timeout=0) == ["a box of tea", 1]
    assert len(set(page["warehouse"].asked)) == 1  # one key, three requests
    assert len(page["warehouse"].asked) == 3


def test_the_run_that_the_page_cancels_is_cancelled(page: dict[str, Any]) -> None:
    with pytest.raises(RunCancelled, match="cancelled by kim: the customer called"):
        page["run"].get(timeout=0)


def test_the_steps_of_the_page_share_a_message_up_to_the_one_with_a_rate(page: dict[str, Any]) -> None:
    runtime, seen = page["runtime"], list[str]()
    page["warehouse"].asked = ["", ""]  # it orders now
    runtime.bell.rings.clear()
    items = [{"name": "pin", "grams": 1, "cents": 5}, {"name": "tea", "grams": 600, "cents": 350}]
    run = page["sort"].enqueue({"items": items})
    runtime.boundary.observer = lambda point: seen.append(str(point))
    answer_all(runtime, page["sort"])
    assert run.get(timeout=0) == "a box of tea"
    # Two messages; weigh was held, and written before choose gave the run back.
    assert (seen.count("after ack doorbell"), seen.count("after commit step")) == (2, 3)


def test_the_page_and_the_docstring_name_every_option_about_retries() -> None:
    for option in OPTIONS:
        assert f"| `{option}` |" in PAGE.text
        assert f"``{option}``" in (inspect.getdoc(Agent.step) or "")
