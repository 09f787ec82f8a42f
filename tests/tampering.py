"""Damage to checkpoints, in the bytes of whichever store holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select, update

from checkpoint import FileStore, MemoryStore, SqlStore
from checkpoint.file_names import checkpoint_name, folder_name, log_name

#: What can be done to the newest checkpoint of a run.
DAMAGES = ("cut off", "a bit flipped", "gone", "of a newer format")


def damage(store: Any, run_id: str, line: int, seq: int, how: str) -> None:
    """Damage a checkpoint's own bytes."""
    match store:
        case SqlStore():
            _damage_row(store, run_id, line, seq, how)
        case FileStore():
            _damage_file(folder_of(store, run_id) / checkpoint_name(line, seq), how)
        case MemoryStore():
            checkpoints = store._memory.runs[run_id].checkpoints
            kept, told = checkpoints[line, seq]
            if how == "gone":
                del checkpoints[line, seq]
            else:  # memory has no other formats
                changed = kept.head[:-1] if how == "cut off" else flipped(kept.head)
                checkpoints[line, seq] = replace(kept, head=changed), told


def lose_message(store: Any, run_id: str, log: int, position: int) -> None:
    """Take a message out of a log that begins at 0."""
    match store:
        case SqlStore():
            table = store.tables.messages
            here = (table.c.run_id == run_id, table.c.log == log, table.c.position == position)
            with store._engine.begin() as connection:
                assert connection.execute(delete(table).where(*here)).rowcount == 1
        case FileStore():
            path = folder_of(store, run_id) / log_name(log)
            lines = path.read_bytes().splitlines(keepends=True)
            del lines[position]
            path.write_bytes(b"".join(lines))
        case MemoryStore():
            del store._memory.runs[run_id].logs[log][1][position]


def folder_of(store: FileStore, run_id: str) -> Path:
    return store.directory / folder_name(run_id)


def flipped(content: bytes, bit: int | None = None) -> bytes:
    """Return bytes with one bit changed, in the middle if none is named."""
    bit = len(content) * 4 if bit is None else bit
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a file of JSON by hand."""
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields, indent=2))


def _damage_row(store: SqlStore, run_id: str, line: int, seq: int, how: str) -> None:
    table = store.tables.checkpoints
    here = (table.c.run_id == run_id, table.c.line == line, table.c.seq == seq)
    with store._engine.begin() as connection:
        head = connection.execute(select(table.c.head).where(*here)).scalar_one()
        if how == "gone":
            connection.execute(delete(table).where(*here))
            return
        changed = {"cut off": head[:-1], "a bit flipped": flipped(head), "of a newer format": b"\x02" + head[1:]}[how]
        connection.execute(update(table).where(*here).values(head=changed))


def _damage_file(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "gone":
            path.unlink()
        case "cut off":
            path.write_bytes(content[: len(content) // 2])
        case "a bit flipped":
            at = content.index(b'"seq": ', content.index(b'"agent_state"')) + len(b'"seq": ')
            path.write_bytes(flipped(content, at * 8))
        case "of a newer format":
            edit(path, lambda fields: fields.update(format=2, novelty=True))
