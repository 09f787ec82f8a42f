"""Rows to LangGraph's tuples: all that several checkpoints refer to is read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from checkpoint.errors import CorruptedBytes
from checkpoint.langgraph.body import Body, Pointer, Stored, load_body
from checkpoint.langgraph.errors import ThreadCorrupted
from checkpoint.langgraph.lists import Listed, chain_of
from checkpoint.langgraph.refs import digests, load_blob, load_refs, resolved
from checkpoint.langgraph.tables import Tables

#: How many keys one query names; each database has a limit for its parameters.
_KEYS = 500

#: The first byte of a write's value: one ref, or several that are a list's.
ONE, SEVERAL = b"\1", b"\2"

Loads = Callable[[bytes], Any]


@dataclass(frozen=True)
class Found:
    """A checkpoint as it was read.

    Args:
        row: Its columns, with `thread_id`, `checkpoint_ns` and `head` of its space.
        body: Its body.
        writes: Rows of its tasks' writes, in the order in which a run applies them.
    """

    row: Row[Any]
    body: Body
    writes: list[Row[Any]]

    @property
    def where(self) -> str:
        """What errors call it."""
        return place_name(self.row)


def place_name(row: Row[Any]) -> str:
    """Return what errors call a row's checkpoint."""
    return f"checkpoint {row.checkpoint_id} of thread {row.thread_id!r}, namespace {row.checkpoint_ns!r},"


def checkpoints_query(tables: Tables) -> Select[Any]:
    """Return the query for checkpoints with the names of their space."""
    spaces, checkpoints = tables.spaces, tables.checkpoints
    columns = (*checkpoints.c, spaces.c.thread_id, spaces.c.checkpoint_ns, spaces.c.head)
    return select(*columns).join_from(checkpoints, spaces, checkpoints.c.space == spaces.c.space)


def found(connection: Connection, tables: Tables, rows: Sequence[Row[Any]]) -> list[Found]:
    """Return rows of `checkpoints_query` with their bodies and writes.

    Raises:
        ThreadCorrupted: A body fails its checksum.
    """
    if not rows:
        return []
    writes = tables.writes
    of: dict[tuple[bytes, str], list[Row[Any]]] = {(bytes(row.space), row.checkpoint_id): [] for row in rows}
    ids: dict[bytes, list[str]] = {}
    for space, checkpoint_id in of:
        ids.setdefault(space, []).append(checkpoint_id)
    for space, wanted in ids.items():
        for some in batches(wanted):
            query = select(writes).where(writes.c.space == space, writes.c.checkpoint_id.in_(some))
            for write in connection.execute(query):
                of[space, write.checkpoint_id].append(write)
    for its in of.values():
        its.sort(key=lambda write: (write.task_path, write.task_id, write.idx))  # langgraph's writes_sort_key
    return [Found(row, _body(row), of[bytes(row.space), row.checkpoint_id]) for row in rows]


def _body(row: Row[Any]) -> Body:
    try:
        return load_body(row.body)
    except CorruptedBytes as error:
        raise ThreadCorrupted(place_name(row), error.reason) from error


class Values:
    """The values that checkpoints and writes refer to, read together.

    Args:
        connection: Where they are read.
        tables: Where they are.
        wanted: By space, what is asked for: of bodies, and of writes.
    """

    def __init__(
        self, connection: Connection, tables: Tables, wanted: Iterable[tuple[bytes, Iterable[Stored], Iterable[bytes]]]
    ) -> None:
        self._chunks: dict[tuple[bytes, int], list[tuple[int, list[bytes]]]] = {}
        self._items: dict[bytes, dict[bytes, bytes]] = {}
        self._lists: dict[tuple[bytes, Pointer], list[bytes]] = {}
        asked = [(space, list(stored), list(writes)) for space, stored, writes in wanted]
        logs: dict[bytes, set[int]] = {}
        for space, stored, _ in asked:
            of = logs.setdefault(space, set())
            of.update(segment.log for value in stored if isinstance(value, Pointer) for segment in value.segments)
        for space, numbers in logs.items():
            self._read_chunks(connection, tables, space, sorted(numbers))
        refs: dict[bytes, set[bytes]] = {}
        for space, stored, writes in asked:
            of_space = refs.setdefault(space, set())
            for value in stored:
                of_space.update(digests(self.refs(space, value) if not isinstance(value, bytes) else [value]))
            for written in writes:
                of_space.update(digests(write_refs(written)))
        for space, wanted_digests in refs.items():
            self._items[space] = dict(_blobs(connection, tables, space, sorted(wanted_digests)))

    def refs(self, space: bytes, value: list[bytes] | Pointer) -> list[bytes]:
        """Return the refs of a list.

        Raises:
            ThreadCorrupted: A part of it is missing or another one than was written.
        """
        if isinstance(value, list):
            return value
        known = self._lists.get((space, value))
        if known is None:
            known = self._lists[space, value] = self._joined(space, value)
        return known

    def value(self, space: bytes, stored: Stored, loads: Loads, where: str) -> tuple[Any, Listed | None]:
        """Return a value of a body, and what a put that follows has to know of a list."""
        items = self._items[space]
        if isinstance(stored, bytes):
            return loads(resolved(stored, items, where)), None
        refs = self.refs(space, stored)
        elements = [loads(resolved(ref, items, where)) for ref in refs]
        if isinstance(stored, Pointer):
            return elements, Listed(refs, list(elements), stored.segments, stored.chain)
        return elements, Listed(refs, list(elements))

    def written(self, space: bytes, stored: bytes, loads: Loads, where: str) -> Any:
        """Return the value of a write."""
        values = [loads(resolved(ref, self._items[space], where)) for ref in write_refs(stored)]
        return values if stored[:1] == SEVERAL else values[0]

    def _read_chunks(self, connection: Connection, tables: Tables, space: bytes, logs: list[int]) -> None:
        chunks = tables.chunks
        for some in batches(logs):
            query = select(chunks.c.log, chunks.c.position, chunks.c.refs)
            query = query.where(chunks.c.space == space, chunks.c.log.in_(some))
            for log, rows in groupby(
                connection.execute(query.order_by(chunks.c.log, chunks.c.position)), lambda row: row.log
            ):
                self._chunks[space, log] = [(row.position, load_refs(row.refs)) for row in rows]

    def _joined(self, space: bytes, pointer: Pointer) -> list[bytes]:
        refs: list[bytes] = []
        for segment in pointer.segments:
            for position, part in self._chunks.get((space, segment.log), ()):
                if len(refs) >= segment.until:
                    break
                if position <= len(refs) < position + len(part):
                    refs += part[len(refs) - position : segment.until - position]
            if len(refs) != segment.until:
                raise ThreadCorrupted(
                    f"log {segment.log}", f"it must reach to {segment.until}, and ends at {len(refs)}"
                )
        if chain_of(refs) != pointer.chain:
            raise ThreadCorrupted(f"a list of {len(refs)} elements", "its hash chain does not match")
        return refs


def write_refs(stored: bytes) -> list[bytes]:
    """Return the refs of a write's value."""
    return load_refs(stored[1:]) if stored[:1] == SEVERAL else [stored[1:]]


def batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield as many keys as one query takes."""
    for start in range(0, len(keys), _KEYS):
        yield keys[start : start + _KEYS]


def _blobs(connection: Connection, tables: Tables, space: bytes, wanted: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    blobs = tables.blobs
    for some in batches(wanted):
        query = select(blobs.c.digest, blobs.c.payload).where(blobs.c.space == space, blobs.c.digest.in_(some))
        for digest, payload in connection.execute(query).all():
            yield bytes(digest), load_blob(bytes(digest), payload)


def wanted_of(of: Iterable[Found]) -> Iterator[tuple[bytes, Iterable[Stored], Iterable[bytes]]]:
    """Return what `Values` reads for whole checkpoints."""
    for each in of:
        stored: list[Stored] = [*each.body.values.values(), *([each.body.rest] if each.body.rest else [])]
        yield bytes(each.row.space), stored, [write.value for write in each.writes]
