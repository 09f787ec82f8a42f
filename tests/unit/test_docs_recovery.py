"""The examples of docs/recovery.md run as they stand; a worker does what the first and the last leave to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_tasks import RunFailed
from agent_tasks.integration import AppState
from tests.apps import close
from tests.pages import ROOT, Page, worker_of


def test_the_run_of_the_page_fails_is_resumed_three_times_and_meets_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    names: dict[str, Any] = {"__name__": "shop"}

    def work() -> None:
        if names["run"].status == "queued":
            with worker_of(names["app"]), pytest.raises(RunFailed, match="coupon"):
                names["run"].get(timeout=60)

    Page("docs/recovery.md").run(names, between=work)
    run = names["run"]
    assert [entry.why for entry in run.audit() if entry.who == "kim"] == [
        "the discount was wrong",
        "release 12 reads a cart without a coupon",
        "prices are old",
    ]
    assert run.state().agent_state["cents"] == 700
    assert [(operation.tool, operation.attempts) for operation in run.operations()] == [("price_of", 2)]
    assert names["cart_is_whole"]({}) == "the cart is gone"
    AppState.of(names["app"]).runtime.engine.dispose()
    close(names["app"])
