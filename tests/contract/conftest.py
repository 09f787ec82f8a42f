"""Each store that there is: the contract's tests run on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import CheckpointStore, open_store


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql", "mysql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return f"memory://{uuid.uuid4().hex}"
        case "file":
            return (tmp_path / "checkpoints").as_uri()
        case "sqlite":
            return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    return str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "mysql_url"))


@pytest.fixture
def store(store_url: str) -> Iterator[CheckpointStore]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex}"
