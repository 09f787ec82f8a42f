"""The cache keeps what was used last, within its limit."""

from __future__ import annotations

import os
import signal

import pytest

from checkpoint.cache import KnownRun, RunCache
from checkpoint.chain import ROOT, links
from checkpoint.tip import Tip

TIP = Tip(line=0, seq=0, segments=(), chain=ROOT, logs=0, ancestry=())


def known(*items: bytes) -> KnownRun:
    return KnownRun(TIP, list(items), links(items))


def test_the_run_that_was_not_used_for_the_longest_time_goes_first() -> None:
    cache = RunCache(limit_bytes=5_000)
    for name in "abc":
        cache.put(name, known(bytes(500)))
    assert cache.get("a") is not None
    cache.put("d", known(bytes(500)))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]


def test_a_run_that_grew_counts_once_and_one_over_the_limit_is_not_kept() -> None:
    cache = RunCache(limit_bytes=5_000)
    for size in (100, 1_000, 2_000):
        cache.put("a", known(bytes(size)))
    cache.put("b", known())
    assert cache.get("a") is not None
    cache.put("c", known(bytes(6_000)))
    assert cache.get("c") is None


def test_a_forgotten_run_is_not_known() -> None:
    cache = RunCache()
    cache.put("a", known())
    cache.forget("a")
    cache.forget("a")
    assert cache.get("a") is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() -> None:
    cache = RunCache()
    cache.put("a", known(b"x"))
    with cache._lock:
        child = os.fork()
        if not child:
            signal.alarm(30)  # a child that waits forever is ended, and so seen
            os._exit(0 if cache.get("a") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") is not None
