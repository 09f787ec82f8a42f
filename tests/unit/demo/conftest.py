"""A real shop, in a process of its own where that is the point, and a client for it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_tasks import demo
from agent_tasks.demo.vendor import Vendor
from tests.shop import open_shop

ROOT = Path(demo.__file__).parents[2]


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool], str], None]:
    """Wait until a condition holds, or fail with what was waited for."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python processes that can import the package; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start(*arguments: str, environ: dict[str, str] | None = None, session: bool = False):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=ROOT,
                    env={**os.environ, **(environ or {})},
                    start_new_session=session,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def start_shop(tmp_path, processes, wait_for) -> Callable[..., tuple[subprocess.Popen[str], Vendor]]:
    def start(*options: str) -> tuple[subprocess.Popen[str], Vendor]:
        ready = tmp_path / "shop.url"
        ready.unlink(missing_ok=True)
        files = ["--ledger", str(tmp_path / "shop.db"), "--ready", str(ready)]
        process = processes("-m", "agent_tasks.demo.shop", *files, *options)
        wait_for(lambda: ready.exists() or process.poll() is not None, "the shop listens")
        assert process.poll() is None, process.stdout.read()
        return process, Vendor(ready.read_text(encoding="utf-8"))

    return start


@pytest.fixture
def vendor(tmp_path) -> Iterator[Vendor]:
    """A client of a shop where nothing has happened yet."""
    with open_shop(tmp_path) as (_, client):
        yield client
