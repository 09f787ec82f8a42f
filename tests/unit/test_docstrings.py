"""The examples in the docstrings of the engine run; checkpoint's are run beside its own tests."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import agent_tasks

#: A migration runs inside Alembic only, and a `__main__` starts something.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(agent_tasks.__path__, "agent_tasks.")
    if ".migrations." not in module.name and not module.name.endswith(".__main__")
)


@pytest.mark.parametrize("name", ["agent_tasks", *MODULES])
def test_the_examples_of_a_module_run(name: str, tmp_path: Path) -> None:
    """An example that needs a folder calls it `directory`."""
    assert doctest.testmod(importlib.import_module(name), extraglobs={"directory": str(tmp_path)}).failed == 0


def test_the_public_way_in_is_shown_by_an_example() -> None:
    shown = [getattr(agent_tasks, name) for name in ("Agent", "tool", "done", "fail", "Happened")]
    assert [thing for thing in shown if ">>>" not in (thing.__doc__ or "")] == []
