"""The shop's own book: one row for each effect that really happened."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, TypedDict

from checkpoint.sqlite import use_wal

__all__ = ["Effect", "KeyTaken", "ShopLedger"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    key TEXT,
    body TEXT NOT NULL,
    happened_at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (kind, key);
"""


class Effect(TypedDict):
    """One effect: ``kind`` is order, charge or mail; ``key`` is the idempotency key or reference that came with it."""

    id: str  # "order-1": the kind and the place in the book
    kind: str
    key: str | None
    body: dict[str, Any]
    happened_at: int  # microseconds since 1970, UTC


class KeyTaken(Exception):
    """An idempotency key came again with another body."""


class ShopLedger:
    """A SQLite file that threads of one shop write to.

    An effect is on disk when the method returns: the answer is sent after that, so what a client saw is never lost.

    Args:
        path: The file; made if it is missing, continued if it is there.

    Example:
        >>> ledger = ShopLedger(":memory:")
        >>> ledger.append("mail", None, {"to": "kim@example.com"})["id"]
        'mail-1'
    """

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        use_wal(self._connection, busy_seconds=30)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_SCHEMA)

    def append(self, kind: str, key: str | None, body: dict[str, Any]) -> Effect:
        """Record an effect that happens now, whatever happened before."""
        with self._lock:
            return self._insert(kind, key, body)

    def append_once(self, kind: str, key: str, body: dict[str, Any]) -> tuple[Effect, bool]:
        """Record an effect unless its key has one already.

        Returns:
            The effect of that key, and whether it happened just now.

        Raises:
            KeyTaken: The key belongs to an effect with another body.
        """
        with self._lock:
            found = self._select("WHERE kind = ? AND key = ?", kind, key)
            if not found:
                return self._insert(kind, key, body), True
            if found[0]["body"] != body:
                raise KeyTaken(key)
            return found[0], False

    def find(self, kind: str, key: str) -> list[Effect]:
        """The effects of one kind that came with this key, oldest first."""
        with self._lock:
            return self._select("WHERE kind = ? AND key = ?", kind, key)

    def effects(self) -> list[Effect]:
        """Everything that happened, oldest first."""
        with self._lock:
            return self._select("")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _insert(self, kind: str, key: str | None, body: dict[str, Any]) -> Effect:
        now = time.time_ns() // 1_000
        cursor = self._connection.execute(
            "INSERT INTO effects (kind, key, body, happened_at) VALUES (?, ?, ?, ?)",
            (kind, key, json.dumps(body, ensure_ascii=False), now),
        )
        return _effect(cursor.lastrowid, kind, key, body, now)

    def _select(self, where: str, *values: str) -> list[Effect]:
        query = f"SELECT number, kind, key, body, happened_at FROM effects {where} ORDER BY number"
        return [
            _effect(number, kind, key, json.loads(body), happened_at)
            for number, kind, key, body, happened_at in self._connection.execute(query, values)
        ]


def _effect(number: int | None, kind: str, key: str | None, body: dict[str, Any], happened_at: int) -> Effect:
    return {"id": f"{kind}-{number}", "kind": kind, "key": key, "body": body, "happened_at": happened_at}
