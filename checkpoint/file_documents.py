"""What stands in the files of a file store: heads and checkpoints as JSON, messages as a line of JSON each.

Checksums are taken over the meaning and not over the text, so that whoever reformats a file or lets Git change its line
ends breaks nothing, and whoever changes a word breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from checkpoint.ancestry import Stretch, dump_ancestry
from checkpoint.errors import CorruptedBytes
from checkpoint.kept import Kept, Reseal
from checkpoint.readable import dump_json, from_readable, load_json, to_readable
from checkpoint.record import microseconds, moment
from checkpoint.segments import Segments, dump_segments, load_segments
from checkpoint.tip import Tip

#: Of all files. What they promise is pinned by golden files in the tests.
FORMAT = 1

_Document = TypeVar("_Document", bound=msgspec.Struct)


@dataclass(frozen=True)
class Line:
    """The checkpoints of one line, those that were abandoned among them.

    Args:
        line: Its number.
        first: Its first seq.
        last: Its last seq.
    """

    line: int
    first: int
    last: int


@dataclass(frozen=True)
class FileTip:
    """Where a run stands, and which of the files in its folder count.

    Args:
        tip: The head.
        lines: The checkpoints that were saved; other files were left behind by a process that died.
        log_bytes: Size of the head's last log, for which a save need not read it; -1 if nobody knows.
    """

    tip: Tip
    lines: tuple[Line, ...]
    log_bytes: int


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    run_id: str
    line: int
    seq: int
    messages: list[tuple[int, int]]
    chain: str
    logs: int
    ancestry: list[tuple[int, int]]
    lines: list[tuple[int, int, int]]
    log_bytes: int
    checksum: str


class _Edit(msgspec.Struct, forbid_unknown_fields=True):
    at: str
    reason: str
    before: str


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    run_id: str
    line: int
    seq: int
    parent_line: int | None
    step: str | None
    version: int
    created_at: str
    message_count: int
    messages: list[tuple[int, int]]
    chain: str
    agent_state: Any
    metadata: Any
    checksum: str
    reseals: list[_Edit] = []


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    position: int
    link: str
    message: Any


def dump_head(run_id: str, head: FileTip) -> bytes:
    """Return the file that says where a run stands."""
    tip = head.tip
    fields = {
        "format": FORMAT,
        "run_id": run_id,
        "line": tip.line,
        "seq": tip.seq,
        "messages": _pairs(tip.segments),
        "chain": tip.chain.hex(),
        "logs": tip.logs,
        "ancestry": [(stretch.line, stretch.start) for stretch in tip.ancestry],
        "lines": [(line.line, line.first, line.last) for line in head.lines],
        "log_bytes": head.log_bytes,
        "checksum": _head_checksum(run_id, head).hex(),
    }
    return dump_json(fields, indent=2)


def load_head(stored: bytes, run_id: str) -> FileTip:
    """Return what the file says where a run stands.

    Raises:
        CorruptedBytes: It is damaged, of another run, or of a newer format.
    """
    read = _read(stored, _Head)
    ancestry = tuple(Stretch(line, start) for line, start in read.ancestry)
    tip = Tip(read.line, read.seq, _segments(read.messages), _digest(read.chain), read.logs, ancestry)
    head = FileTip(tip, tuple(Line(*line) for line in read.lines), read.log_bytes)
    if read.run_id != run_id:
        raise CorruptedBytes(f"it is of run {read.run_id!r}")
    if _head_checksum(run_id, head) != _digest(read.checksum):
        raise CorruptedBytes("it does not match its checksum")
    return head


def dump_checkpoint(kept: Kept) -> bytes:
    """Return the file of a checkpoint."""
    agent_state, metadata = msgspec.msgpack.decode(kept.head, type=tuple[msgspec.Raw, msgspec.Raw])
    fields = {
        "format": FORMAT,
        "run_id": kept.run_id,
        "line": kept.line,
        "seq": kept.seq,
        "parent_line": kept.parent_line,
        "step": kept.step,
        "version": kept.version,
        "created_at": moment(kept.created_at).isoformat(),
        "message_count": kept.message_count,
        "messages": _pairs(kept.segments),
        "chain": kept.chain.hex(),
        "agent_state": to_readable(bytes(agent_state)),
        "metadata": to_readable(bytes(metadata)),
        "checksum": kept.checksum().hex(),
    }
    if kept.reseals:
        fields["reseals"] = [
            {"at": moment(edit.at).isoformat(), "reason": edit.reason, "before": edit.before.hex()}
            for edit in kept.reseals
        ]
    return dump_json(fields, indent=2)


def load_checkpoint(stored: bytes) -> tuple[Kept, bytes]:
    """Return what the file of a checkpoint says, and the checksum that stands in it, which is not compared.

    Raises:
        CorruptedBytes: It is no such file, or of a newer format.
    """
    read = _read(stored, _Checkpoint)
    parts = [msgspec.Raw(from_readable(part)) for part in (read.agent_state, read.metadata)]
    kept = Kept(
        run_id=read.run_id,
        line=read.line,
        seq=read.seq,
        parent_line=read.parent_line,
        step=read.step,
        version=read.version,
        created_at=_microseconds(read.created_at),
        message_count=read.message_count,
        segments=_segments(read.messages),
        chain=_digest(read.chain),
        head=msgspec.msgpack.encode(parts),
        reseals=tuple(Reseal(_microseconds(edit.at), edit.reason, _digest(edit.before)) for edit in read.reseals),
    )
    return kept, _digest(read.checksum)


def dump_message(position: int, link: bytes, item: bytes) -> bytes:
    """Return the line of a message."""
    return dump_json({"position": position, "link": link.hex(), "message": to_readable(item)})


def load_message(line: bytes) -> tuple[int, bytes, bytes]:
    """Return position, link and item of a message's line.

    Raises:
        CorruptedBytes: It is no such line.
    """
    read = _converted(load_json(line), _Message)
    return read.position, _digest(read.link), from_readable(read.message)


def _read(stored: bytes, kind: type[_Document]) -> _Document:
    fields = load_json(stored)
    told = fields.get("format") if type(fields) is dict else None
    if told != FORMAT:
        raise CorruptedBytes(f"its format must be {FORMAT}, got {told!r}; a newer release may have written it")
    return _converted(fields, kind)


def _converted(fields: Any, kind: type[_Document]) -> _Document:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise CorruptedBytes(str(error)) from error


def _head_checksum(run_id: str, head: FileTip) -> bytes:
    tip = head.tip
    lines = [(line.line, line.first, line.last) for line in head.lines]
    bound = (
        run_id,
        tip.line,
        tip.seq,
        dump_segments(tip.segments),
        tip.chain,
        tip.logs,
        dump_ancestry(tip.ancestry),
        lines,
        head.log_bytes,
    )
    return blake2b(msgspec.msgpack.encode(bound), digest_size=16, person=b"checkpoint.tip").digest()


def _pairs(segments: Segments) -> list[tuple[int, int]]:
    return [(segment.log, segment.until) for segment in segments]


def _segments(pairs: list[tuple[int, int]]) -> Segments:
    try:
        return load_segments(msgspec.msgpack.encode(pairs))
    except (ValueError, OverflowError) as error:
        raise CorruptedBytes(str(error)) from error


def _digest(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise CorruptedBytes(f"{digits!r:.60} is no digest") from error


def _microseconds(text: str) -> int:
    try:
        return microseconds(datetime.fromisoformat(text).astimezone(timezone.utc))
    except (ValueError, OverflowError) as error:
        raise CorruptedBytes(f"{text!r:.60} is no moment") from error
