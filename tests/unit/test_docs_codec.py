"""The examples of docs/checkpoint-codec.md run as they stand, in their order."""

from __future__ import annotations

import pytest

from checkpoint.registry import registry
from tests.pages import Page


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    Page("docs/checkpoint-codec.md").run({"__name__": "shop"})
