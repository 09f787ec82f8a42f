"""What tests of the LangGraph saver share: savers on each database, and checkpoints to save."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, event, func, select

from checkpoint import SqlStore, open_store

DATABASES = ["sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.mariadb)]


def database_url(database: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a database of one kind."""
    if database == "sqlite":
        return f"sqlite:///{folder / 'threads.db'}"
    return str(request.getfixturevalue("postgres_url" if database == "postgresql" else "mysql_url"))


@contextmanager
def savers(url: str) -> Iterator[Any]:
    """Open a factory of savers on the same tables, whose memories are their own; the tables go in the end."""
    from checkpoint.langgraph import CheckpointSaver

    prefix = f"lg_{uuid.uuid4().hex[:8]}_"
    store = open_store(url)
    try:
        CheckpointSaver(store, prefix=prefix).create_schema()

        def make(**options: Any) -> CheckpointSaver:
            return CheckpointSaver(store, prefix=prefix, **options)

        yield make
        make().metadata.drop_all(store._engine)
    finally:
        store.close()  # type: ignore[attr-defined]


def rows(saver: Any) -> dict[str, int]:
    """Return how many rows each table has."""
    tables: list[Table] = [saver._tables.spaces, *saver._tables.of_space()]
    with saver._store._engine.connect() as connection:
        return {
            table.name.rpartition("_")[2]: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in tables
        }


@contextmanager
def statements(store: SqlStore) -> Iterator[list[str]]:
    """Collect what is sent to the database, but for the beginning of a transaction."""
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("BEGIN"):
            said.append(statement)

    event.listen(store._engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(store._engine, "before_cursor_execute", note)


def thread(checkpoint_ns: str = "", thread_id: str | None = None) -> Any:
    """Return the config of a new thread."""
    return {"configurable": {"thread_id": thread_id or uuid.uuid4().hex, "checkpoint_ns": checkpoint_ns}}


def checkpoint_of(values: dict[str, Any], version: int = 1) -> Any:
    """Return a checkpoint that has these values, all of one version."""
    from langgraph.checkpoint.base import empty_checkpoint

    versions = dict.fromkeys(values, version)
    return {**empty_checkpoint(), "v": 4, "channel_values": values, "channel_versions": versions}


def put(saver: Any, config: Any, values: dict[str, Any], version: int = 1, **metadata: Any) -> Any:
    """Save a checkpoint after the one of `config` and return its config."""
    checkpoint = checkpoint_of(values, version)
    said = {"source": "loop", "step": version, "parents": {}, **metadata}
    return saver.put(config, checkpoint, said, checkpoint["channel_versions"])
