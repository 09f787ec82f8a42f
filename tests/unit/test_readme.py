"""The README's examples run as they stand, beside a worker."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest

from agent_tasks.integration import AppState
from agent_tasks.steps import Step
from tests.apps import close
from tests.pages import ROOT, Page, pages, worker_of


class Vendor(ModuleType):
    """Stands in for `requests` and the vendor behind it, which no test may reach."""

    def __init__(self) -> None:
        super().__init__("requests")
        self.orders: dict[str, Any] = {}
        self.charges: list[dict[str, Any]] = []

    def request(self, method: str, url: str, **request: Any) -> Any:
        assert 0 < request["timeout"] <= 30
        if url.endswith("/refunds"):
            return Answer(request["json"], status_code=402 if request["json"]["cents"] > 600 else 201)
        if url.endswith("/orders"):
            return Answer(self.orders.setdefault(request["headers"]["Idempotency-Key"], {"id": "o-1", "cents": 600}))
        if method == "POST":
            self.charges.append(request["json"])
            return Answer({"charge": len(self.charges), **request["json"]})
        return Answer([charge for charge in self.charges if charge["reference"] == request["params"]["reference"]])


class Answer:
    def __init__(self, body: Any, status_code: int = 200) -> None:
        self._body, self.status_code = body, status_code

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self._body


def test_the_examples_of_the_readme_make_a_run_that_a_worker_ends_and_run_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setitem(sys.modules, "requests", Vendor())
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set())  # tasks of apps of other tests are theirs
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)  # where Celery looks for the class of an exception
    names: dict[str, Any] = vars(shop)
    with ExitStack() as worker:

        def work() -> None:
            if "run" not in names:
                worker.enter_context(worker_of(names["app"]))

        Page("README.md").run(names, between=work)
        assert names["run"].status == "succeeded"
        again = names["order"].enqueue({"cart": {"tea": 2}}, dedupe_key="cart-42")
        assert again.run_id == names["run"].run_id
    charged = names["order"].run_inline({"cart": {"tea": 2}})
    assert (charged["order"], charged["cents"]) == ("o-1", 600)
    assert names["refund"].apply(("o-1", 300)).get()["cents"] == 300
    with pytest.raises(names["Declined"]):
        names["refund"].apply(("o-2", 601)).get()
    assert type(names["pay"]) is Step, "the snippets are one file, in which a task must not take a step's name"
    AppState.of(names["app"]).runtime.engine.dispose()
    close(names["app"])


def test_every_file_that_the_docs_link_to_is_there() -> None:
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.text):
            if "://" not in target:
                assert ((ROOT / page.name).parent / target).exists(), f"{page.name} links to {target}"
