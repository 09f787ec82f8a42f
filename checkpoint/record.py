"""A checkpoint as a store keeps it: encoded before any transaction begins, checked before anything is decoded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.chain import links, relinked
from checkpoint.codec import decode, encode
from checkpoint.errors import CorruptedBytes, UnstorableValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkpoint.cache import KnownRun
    from checkpoint.state import CheckpointState

#: A head (agent_state and metadata) above this many bytes is warned about: each step stores it anew.
LARGE_HEAD_BYTES = 64 * 1024

#: The greatest line and seq, for stores with 32-bit columns.
MAX_NUMBER = 2**31 - 1

#: Longest run_id and step, in characters.
MAX_NAME_LENGTH = 255

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """An encoded state.

    Args:
        run_id: The run.
        line: Its line.
        seq: Its number.
        step: The step that made it.
        version: The caller's version of the state's shape.
        created_at: Microseconds since 1970, UTC.
        items: The encoded messages.
        chain: The links over them; one more than items.
        head: agent_state and metadata, encoded together.
    """

    run_id: str
    line: int
    seq: int
    step: str | None
    version: int
    created_at: int
    items: list[bytes]
    chain: list[bytes]
    head: bytes

    def checksum(self, parent_line: int | None, segments: bytes, created_at: int | None = None) -> bytes:
        """Return the checksum of this checkpoint at its place, as if made at `created_at` if given."""
        return checksum(
            (
                self.run_id,
                self.line,
                self.seq,
                parent_line,
                self.step,
                self.version,
                self.created_at if created_at is None else created_at,
                len(self.items),
                segments,
                self.chain[-1],
                self.head,
            )
        )


def checksum(bound: tuple[Any, ...]) -> bytes:
    """Return the checksum over a head and all that it is bound to, in the order of `Record.checksum`."""
    return blake2b(msgspec.msgpack.encode(bound), digest_size=16, person=b"checkpoint.head").digest()


def encode_state(state: CheckpointState, known: KnownRun | None = None) -> Record:
    """Encode a state.

    Args:
        state: The state.
        known: An earlier head of the run, which spares hashing the messages that did not change.

    Returns:
        Its record.

    Raises:
        UnstorableValue: A part cannot be stored; its path is named.
    """
    _name("run_id", state.run_id)
    _number("line", state.line, least=0)
    _number("seq", state.seq, least=0)
    _number("version", state.version, least=1)
    if state.step is not None:
        _name("step", state.step)
    for path, kind in (("messages", list), ("agent_state", dict), ("metadata", dict)):
        if type(getattr(state, path)) is not kind:
            raise UnstorableValue(path, f"it must be a {kind.__name__}, got {type(getattr(state, path)).__name__}")
    items = [encode(message, f"messages[{index}]") for index, message in enumerate(state.messages)]
    agent_state = encode(state.agent_state, "agent_state", depth=1)  # both stand in a list
    metadata = encode(state.metadata, "metadata", depth=1)
    head = msgspec.msgpack.encode([msgspec.Raw(agent_state), msgspec.Raw(metadata)])
    if len(head) > LARGE_HEAD_BYTES:
        _warn_large(state, len(head))
    return Record(
        state.run_id,
        state.line,
        state.seq,
        state.step,
        state.version,
        microseconds(state.created_at),
        items,
        links(items) if known is None else relinked(items, known.items, known.chain),
        head,
    )


def decode_head(head: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return agent_state and metadata of an encoded head.

    Raises:
        CorruptedBytes: The bytes are no head.
        UnreadableValue: A type in it cannot be rebuilt here.
    """
    match decode(head):
        case [dict(agent_state), dict(metadata)]:
            return agent_state, metadata
    raise CorruptedBytes("a head must be a list of two dicts")


def decode_items(items: Sequence[bytes]) -> list[Any]:
    """Return the messages of encoded ones.

    Raises:
        CorruptedBytes: The bytes are no messages.
        UnreadableValue: A type in them cannot be rebuilt here.
    """
    return [decode(item) for item in items]


def moment(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return _EPOCH + _MICROSECOND * microseconds


def microseconds(when: datetime | None) -> int:
    """Return a moment as microseconds since 1970; now, if it is None.

    Raises:
        UnstorableValue: It has no time zone.
    """
    if when is None:
        when = datetime.now(timezone.utc)
    if when.tzinfo is None:
        raise UnstorableValue("created_at", "it must have a time zone; use datetime.now(timezone.utc)")
    return (when - _EPOCH) // _MICROSECOND


def _name(path: str, text: Any) -> None:
    if type(text) is not str or not 1 <= len(text) <= MAX_NAME_LENGTH or "\x00" in text:
        reason = f"it must be text of 1 to {MAX_NAME_LENGTH} characters without NUL, got {text!r:.100}"
        raise UnstorableValue(path, reason)
    encode(text, path)


def _number(path: str, number: Any, least: int) -> None:
    if type(number) is not int or not least <= number <= MAX_NUMBER:
        raise UnstorableValue(path, f"it must be an int from {least} to {MAX_NUMBER}, got {number!r:.100}")


def _warn_large(state: CheckpointState, size: int) -> None:
    parts = {
        f"{path}[{key!r}]": len(encode(value))
        for path, part in (("agent_state", state.agent_state), ("metadata", state.metadata))
        for key, value in part.items()
    }
    largest = sorted(parts, key=lambda name: -parts[name])[:3]
    _logger.warning(
        "the head of run %r at seq %d takes %d bytes, more than %d, and each step stores it again; largest: %s",
        state.run_id,
        state.seq,
        size,
        LARGE_HEAD_BYTES,
        ", ".join(f"{name} {parts[name]} bytes" for name in largest),
    )
