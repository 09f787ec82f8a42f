"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Shop:
    """The `shop` of the README: honours idempotency keys, and can be asked for charges."""

    def __init__(self) -> None:
        self.orders: dict[str, Any] = {}
        self.charges: list[dict[str, Any]] = []

    def post(self, path: str, json: dict[str, Any], headers: dict[str, str] | None = None, timeout: float = 1) -> Any:
        if path == "/orders":
            assert headers is not None
            return self.orders.setdefault(headers["Idempotency-Key"], {"id": "order-1", "cents": 600})
        assert 0 < timeout <= 10
        self.charges.append(json)
        return {"charge": len(self.charges), **json}

    def get(self, path: str, params: dict[str, str]) -> list[dict[str, Any]]:
        return [charge for charge in self.charges if charge["reference"] == params["reference"]]


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_the_example_of_the_readme_enqueues_a_run_and_runs_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(ROOT)
    names: dict[str, Any] = {"shop": Shop(), "__name__": "readme"}

    exec(compile(example(), "README.md", "exec"), names)

    assert names["run"].status == "queued"
    again = names["order"].enqueue({"cart": {"tea": 2}}, dedupe_key="cart-42")
    assert again.run_id == names["run"].run_id
    charged = names["order"].run_inline({"cart": {"tea": 2}})
    assert charged["order"] == "order-1"
    assert charged["cents"] == 600


def test_every_file_that_the_docs_link_to_is_there() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
