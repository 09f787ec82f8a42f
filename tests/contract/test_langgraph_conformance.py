"""LangGraph's own conformance suite on the saver: every capability, in event loops and, by way of an adapter, without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.savers import DATABASES, database_url, savers

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

#: Cases of each capability in release 0.0.2 of the suite.
CASES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class Synchronously(BaseCheckpointSaver[Any]):
    """The suite calls the asynchronous methods only: here each of them is the synchronous one."""

    def __init__(self, saver: Any) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aput(self, *args: Any) -> Any:
        return self._saver.put(*args)

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        self._saver.put_writes(*args, **options)

    async def aget_tuple(self, config: Any) -> Any:
        return self._saver.get_tuple(config)

    async def alist(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        for each in self._saver.list(*args, **options):
            yield each

    async def adelete_thread(self, thread_id: str) -> None:
        self._saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self._saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source: str, target: str) -> None:
        self._saver.copy_thread(source, target)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self._saver.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("adapt", [lambda saver: saver, Synchronously], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("database", DATABASES)
def test_every_case_of_every_capability_passes(
    database: str, adapt: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with savers(database_url(database, request, tmp_path)) as make:

        @checkpointer_test(name="CheckpointSaver")
        async def saver() -> AsyncIterator[Any]:
            yield adapt(make())

        report = asyncio.run(validate(saver))
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {name: result.tests_passed for name, result in report.results.items()} == CASES
    assert sum(CASES.values()) == 81
