"""The Python examples of the documentation, which run as they stand: all of a page, in their order."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

ROOT = Path(__file__).resolve().parents[1]

_FENCED = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<language>\S*).*\n(?P<text>(?:.*\n)*?)(?P=fence)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page.

    Attributes:
        language: the word at the opening fence.
        line: of that fence.
        text: between the fences.
    """

    language: str
    line: int
    text: str


class Page:
    """A page of the documentation.

    Args:
        name: its path from the project's folder.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text(encoding="utf-8")
        self.blocks = [
            Block(found["language"], self.text.count("\n", 0, found.start()) + 1, found["text"])
            for found in _FENCED.finditer(self.text)
        ]

    @property
    def examples(self) -> list[Block]:
        """The blocks of Python."""
        return [block for block in self.blocks if block.language == "python"]

    def run(self, names: dict[str, Any], between: Callable[[], object] = lambda: None) -> None:
        """Run all examples, each with the names of those before it.

        Args:
            names: that the first one finds, and what is made gets into.
            between: called after each: time passes, a worker works.
        """
        sys.modules.pop("celeryconfig", None)  # of another page, whose data folder is gone
        for example in self.examples:
            # An error shows the line of the page.
            code = compile("\n" * example.line + example.text, str(ROOT / self.name), "exec", dont_inherit=True)
            exec(code, names)
            between()


def pages() -> list[Page]:
    """All pages of the documentation."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return [Page(str(path.relative_to(ROOT))) for path in sorted(found)]


@contextmanager
def worker_of(app: Celery) -> Iterator[None]:
    """Run a worker in this process, for pages whose examples wait for one."""

    def leave(**_options: Any) -> None:
        """Keep the worker from setting up the logging of all tests."""

    setup_logging.connect(leave)
    try:
        with patch.dict(os.environ), start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
            yield
    finally:
        setup_logging.disconnect(leave)
