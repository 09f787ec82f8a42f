"""What a connection to SQLite needs that its driver does not do."""

from __future__ import annotations

import sqlite3
import time

#: Between two tries for what SQLite refuses at once, in seconds.
_PAUSE_SECONDS = 0.005


def use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Let writers of a file not keep readers waiting (WAL), whoever does the same to it at this moment.

    A new file is changed over by the first one who opens it. Of several at once SQLite refuses some without the wait that
    ``busy_timeout`` asks for, since two of them could wait for each other.

    Args:
        connection: to the file, outside of any transaction.
        busy_seconds: how long to try.

    Raises:
        sqlite3.OperationalError: it stayed locked, or cannot be opened or written.

    Example:
        >>> connection = sqlite3.connect(directory + "/wal.db")
        >>> use_wal(connection, busy_seconds=30)
        >>> connection.execute("PRAGMA journal_mode").fetchone()
        ('wal',)
        >>> connection.close()
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
