"""The cache keeps what was used last, within its limit."""

from __future__ import annotations

from checkpoint.cache import KnownRun, RunCache
from checkpoint.chain import ROOT
from checkpoint.tip import Tip

TIP = Tip(line=0, seq=0, segments=(), chain=ROOT, logs=0, ancestry=())


def test_the_run_that_was_not_used_for_the_longest_time_goes_first() -> None:
    cache = RunCache(limit_bytes=5_000)
    for name in "abc":
        cache.put(name, KnownRun(TIP, [bytes(500)]))
    assert cache.get("a") is not None
    cache.put("d", KnownRun(TIP, [bytes(500)]))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]


def test_a_run_that_grew_counts_once_and_one_over_the_limit_is_not_kept() -> None:
    cache = RunCache(limit_bytes=5_000)
    for size in (100, 1_000, 2_000):
        cache.put("a", KnownRun(TIP, [bytes(size)]))
    cache.put("b", KnownRun(TIP, []))
    assert cache.get("a") is not None
    cache.put("c", KnownRun(TIP, [bytes(6_000)]))
    assert cache.get("c") is None


def test_a_forgotten_run_is_not_known() -> None:
    cache = RunCache()
    cache.put("a", KnownRun(TIP, []))
    cache.forget("a")
    cache.forget("a")
    assert cache.get("a") is None
