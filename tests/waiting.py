"""Waiting for something that other processes bring about: on a condition, with a limit, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str = "", limit_seconds: float = 30) -> T:
    """Wait until `condition` returns something true, and return that; fail with `what` when the limit has passed."""
    deadline = time.monotonic() + limit_seconds
    while not (held := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"within {limit_seconds} s it did not happen that {what or condition}; last: {held!r}")
        time.sleep(0.01)
    return held
