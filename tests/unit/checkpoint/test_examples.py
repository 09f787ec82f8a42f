"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import checkpoint
from checkpoint.registry import registry
from tests.libraries import library

#: A package of its own, such as that for LangGraph, has an optional dependency and tests of its own.
MODULES = [f"checkpoint.{module.name}" for module in pkgutil.iter_modules(checkpoint.__path__) if not module.ispkg]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    if name == "checkpoint.keyring":
        library("cryptography")
    result = doctest.testmod(importlib.import_module(name), extraglobs={"directory": str(tmp_path)})
    assert result.failed == 0
