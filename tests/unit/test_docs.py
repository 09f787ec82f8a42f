"""The examples of docs/tools.md run as they stand, in their order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from agent_tasks import OutsideRun, RunFailed, RunHandle, UnguardedTool, tool
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import RunNotFound
from agent_tasks.inline import answer_all
from agent_tasks.integration import AppState
from agent_tasks.migrate import upgrade
from agent_tasks.runtime import Runtime
from agent_tasks.states import Effect, RunStatus
from agent_tasks.sweeper import Sweeper
from checkpoint import dumps, loads
from checkpoint.registry import registry
from tests.pages import ROOT, Page

PAGE = Page("docs/tools.md")


class Answer:
    def __init__(self, body: Any, status_code: int = 200) -> None:
        self.body, self.status_code = body, status_code

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self.body


class Vendor(ModuleType):
    """Stands in for `requests` and the vendor behind it: acts, and gives no answer to the first charge and mail."""

    def __init__(self) -> None:
        super().__init__("requests")
        self.orders: dict[str, Any] = {}
        self.charges: list[dict[str, Any]] = []
        self.mails: list[dict[str, Any]] = []
        self.declines = False

    def request(self, method: str, url: str, **request: Any) -> Answer:
        assert 0 < request["timeout"] <= 30
        place = url.removeprefix("https://vendor.example/").split("/")[0]
        if method == "GET" and place == "charges":
            reference = request["params"]["reference"]
            return Answer([charge for charge in self.charges if charge["reference"] == reference])
        if method in {"GET", "PUT"} or place == "invoices":
            return Answer({"count": 3, "id": "i-1"})
        if place == "charges":
            return self._charge(request["json"])
        if place == "mails":
            self.mails.append(request["json"])
            if request["json"]["words"] == "your order is paid":
                raise TimeoutError("no answer")
            return Answer({"id": str(len(self.mails))})
        return Answer(self.orders.setdefault(request["headers"]["Idempotency-Key"], {"id": "o-1", "cents": 600}))

    def _charge(self, asked: dict[str, Any]) -> Answer:
        if self.declines:
            return Answer(None, status_code=402)
        self.charges.append({"id": f"ch-{len(self.charges) + 1}", "status": "paid", **asked})
        raise TimeoutError("no answer")


class Shop:
    """The page's app on a ledger in this process; time passes after each of its examples."""

    def __init__(self, url: str) -> None:
        upgrade(url)
        self.names: dict[str, Any] = {"__name__": "shop"}
        self.runtime = Runtime(Settings(url), InlineBell)
        with self.runtime.engine.begin() as connection:
            connection.execute(text("CREATE TABLE stock (item VARCHAR(40), count INTEGER)"))
            connection.execute(text("INSERT INTO stock VALUES ('tea', 3)"))

    def stock(self) -> int:
        with self.runtime.engine.connect() as connection:
            return int(connection.execute(text("SELECT count FROM stock")).scalar_one())

    def run_examples(self) -> None:
        PAGE.run(self.names, between=self.work)

    def work(self) -> None:
        AppState.of(self.names["app"]).use_runtime(self.runtime)
        if "order" not in self.names:
            return
        for _ in range(5):
            answer_all(self.runtime, self.names["order"])
            self.runtime.clock.advance(60)
            Sweeper(self.runtime).sweep()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    vendor = Vendor()
    monkeypatch.setitem(sys.modules, "requests", vendor)
    return vendor


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: Vendor) -> Iterator[Shop]:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    for kept in ("_by_class", "_by_tag"):  # what the page registers is forgotten again
        monkeypatch.setattr(registry, kept, dict(getattr(registry, kept)))
    shop = Shop(f"sqlite:///{tmp_path / 'agent.db'}")
    shop.run_examples()
    yield shop
    shop.runtime.engine.dispose()


def test_the_run_of_the_page_comes_to_its_end_with_each_effect_once(
    shop: Shop, vendor: Vendor, capsys: pytest.CaptureFixture[str]
) -> None:
    run: RunHandle = shop.names["run"]
    assert run.get(timeout=0) == {"charge": "ch-1", "mail": "17"}
    assert (len(vendor.orders), len(vendor.charges), len(vendor.mails), shop.stock()) == (1, 1, 1, 1)
    assert {operation.effect for operation in run.operations()} == set(Effect)
    assert [(entry.who, entry.what) for entry in run.audit()] == [("kim", "unknown: happened")]


def test_the_page_says_how_a_refusal_ends_the_run(shop: Shop, vendor: Vendor) -> None:
    vendor.declines = True
    run = shop.names["order"].enqueue({"cart": {"tea": 1}, "to": "kim@example.com"})
    shop.work()
    with pytest.raises(RunFailed, match="the card was declined: insufficient funds"):
        run.get(timeout=0)
    assert vendor.charges[1:] == []


def test_the_tools_with_identity_and_key_run(shop: Shop, vendor: Vendor) -> None:
    state = {"readers": ["kim", "robin"], "order_id": "o-1", "asked_at": "noon"}
    assert shop.names["newsletter"].run_inline(state)["id"] == "i-1"
    assert {mail["to"] for mail in vendor.mails[1:]} == {"kim", "robin"}


def test_a_cart_and_its_run_are_committed_together(shop: Shop) -> None:
    engine = create_engine(shop.runtime.engine.url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE carts (id INTEGER PRIMARY KEY)"))
    with Session(engine) as session:
        run = shop.names["check_out"](session, 43, {"tea": 1}, "lee@example.com")
        with pytest.raises(RunNotFound, match="has not committed it yet"):
            run.get(timeout=0)
        session.commit()
        assert session.execute(text("SELECT id FROM carts")).scalars().all() == [43]
    assert run.status is RunStatus.QUEUED
    engine.dispose()


def test_the_test_of_the_page_passes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.names["test_a_quote_says_what_is_left"](monkeypatch)


def test_what_the_page_registers_can_be_stored(shop: Shop) -> None:
    for value in (shop.names["Address"]("High Street 1"), shop.names["IPv4Address"]("10.0.0.1")):
        assert loads(dumps(value)) == value


def test_bound_tools_refuse_to_run_outside_a_run_as_the_page_says(shop: Shop) -> None:
    with pytest.raises(OutsideRun):
        shop.names["send_mail"].unguarded("kim@example.com", "hello")
    with pytest.raises(OutsideRun):
        shop.names["label"]("o-1", "paid")


@pytest.mark.parametrize(
    ("effect", "needs"),
    [("repeatable", "why="), ("keyed", "key_lifetime="), ("probed", "timeout="), ("manual", "timeout=")],
)
def test_the_table_of_the_page_says_what_each_effect_needs(effect: str, needs: str) -> None:
    heads, *rows = (
        line.strip("|").split("|") for line in PAGE.text.splitlines() if line.startswith("| ") and "`" in line
    )
    column = [head.strip() for head in heads].index(f"`{effect}`")
    (row,) = (row for row in rows if row[0].strip() == f"`{needs}`")
    assert "required" in row[column]
    with pytest.raises(UnguardedTool, match=needs):
        tool(effect=effect)(lambda: None)
