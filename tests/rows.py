"""Runs as rows, for tests of what works on rows: the sweeper, the heartbeat, the bell."""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping, update

from tests.one_process import OneProcess


class Rows:
    """The runs of a ledger, without agents."""

    def __init__(self, here: OneProcess) -> None:
        self.runtime = here.runtime

    def queue(self, run_id: str, *, queue: str = "inline", priority: int = 0) -> None:
        """Write a queued run."""
        values = {"agent": "shop", "next_step": "pay", "input_digest": "", "dedupe_key": None}
        self.runtime.boundary.commit(
            "enqueue",
            self.runtime.engine,
            lambda connection: self.runtime.runs.insert(
                connection, run_id=run_id, queue=queue, priority=priority, **values
            ),
        )

    def claim(self, run_id: str, token: str = "token") -> RowMapping:
        """Take the lease of a queued run."""
        row = self.runtime.boundary.commit(
            "claim",
            self.runtime.engine,
            lambda connection: self.runtime.runs.claim(
                connection, run_id, 1, agent="shop", step="pay", owner="a worker", token=token
            ),
        )
        assert row is not None
        return row

    def run(self, run_id: str, token: str = "token") -> RowMapping:
        """Write a run that is being worked on."""
        self.queue(run_id)
        return self.claim(run_id, token)

    def find(self, run_id: str) -> RowMapping:
        """Return a run's row."""
        row = self.runtime.boundary.read(
            self.runtime.engine, lambda connection: self.runtime.runs.find(connection, run_id)
        )
        assert row is not None
        return row

    def write(self, run_id: str, **values: Any) -> None:
        """Write columns of a run by hand."""
        table = self.runtime.runs.table
        with self.runtime.engine.connect() as connection, connection.begin():
            connection.execute(update(table).where(table.c.run_id == run_id).values(**values))

    def rung(self) -> list[str]:
        """Take the doorbells that were rung, as run ids in order."""
        rings = self.runtime.bell.rings  # type: ignore[attr-defined]
        rung = [ring.run_id for ring in rings]
        rings.clear()
        return rung
