"""A new SQLite file that several open at once."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from checkpoint.sqlite import use_wal

#: A bare PRAGMA refuses about one file in eight to somebody.
FILES, OPENERS = 50, 6


def test_a_new_file_is_refused_to_none_of_those_who_open_it_at_once(tmp_path: Path) -> None:
    refused: list[Exception] = []

    def opened(path: Path, together: threading.Barrier) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA busy_timeout=20000")
            together.wait(30)
            try:
                use_wal(connection, busy_seconds=20)
            except sqlite3.OperationalError as error:
                refused.append(error)

    for number in range(FILES):
        together = threading.Barrier(OPENERS)
        openers = [threading.Thread(target=opened, args=(tmp_path / f"{number}.db", together)) for _ in range(OPENERS)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join(60)
    assert refused == []


def test_a_file_that_stays_locked_is_refused_in_the_end(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "held.db", isolation_level=None)) as holder:
        holder.execute("CREATE TABLE t (n)")
        holder.execute("BEGIN EXCLUSIVE")
        other = sqlite3.connect(tmp_path / "held.db", isolation_level=None, timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            use_wal(other, busy_seconds=0.01)
