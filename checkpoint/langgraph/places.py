"""Which thread, namespace and checkpoint a config names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from checkpoint.langgraph.tables import MAX_ID_LENGTH


class Latest(str):
    """The id of a checkpoint that was the head of its space when it was read: who goes on from it expects it to be still.

    LangGraph hands the ids of configs on as they are, so that a put knows how its parent was found.
    """

    __slots__ = ()


class Addressed(str):
    """The id of an older checkpoint: who goes on from it means to fork."""

    __slots__ = ()


@dataclass(frozen=True)
class Place:
    """A thread and a namespace in it, and perhaps a checkpoint.

    Args:
        thread_id: The thread.
        checkpoint_ns: The namespace; empty for the graph itself.
        checkpoint_id: The checkpoint; None for the newest.
    """

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None

    @property
    def space(self) -> bytes:
        """The key of the thread and the namespace."""
        return _key(b"langgraph.space", self.thread_id, self.checkpoint_ns)

    @property
    def thread(self) -> bytes:
        """The key of the thread."""
        return thread_key(self.thread_id)

    def config(self, checkpoint_id: str | None = None) -> Any:
        """Return the config of a checkpoint here."""
        configurable = {"thread_id": self.thread_id, "checkpoint_ns": self.checkpoint_ns}
        if checkpoint_id is not None:
            configurable["checkpoint_id"] = checkpoint_id
        return {"configurable": configurable}


def place_of(config: Mapping[str, Any]) -> Place:
    """Return the place that a config names.

    Raises:
        ValueError: It names no thread, or has a name that cannot be stored.
    """
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None or thread_id == "":
        raise ValueError("config['configurable'] must have a thread_id, which names the thread to save or load")
    checkpoint_id = configurable.get("checkpoint_id") or None
    return Place(
        checked("thread_id", thread_id),
        checked("checkpoint_ns", configurable.get("checkpoint_ns") or ""),
        None if checkpoint_id is None else checked_id("checkpoint_id", checkpoint_id),
    )


def checked(name: str, value: object) -> str:
    """Return a name as a text that each database can hold; numbers and UUIDs become their text."""
    text = value if isinstance(value, str) else str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be a text without lone surrogates, got {text!r}") from error
    if "\0" in text:
        raise ValueError(f"{name} must have no NUL character, got {text!r}")
    return text


def checked_id(name: str, value: object) -> str:
    """Return an id as `checked` does, unless it is too long for a key."""
    text = checked(name, value)
    if len(text) > MAX_ID_LENGTH:
        raise ValueError(f"{name} must have at most {MAX_ID_LENGTH} characters, got {len(text)}: {text[:40]!r}…")
    return text


def thread_key(thread_id: str) -> bytes:
    """Return the key of a thread."""
    return _key(b"langgraph.thread", thread_id)


def _key(person: bytes, *names: str) -> bytes:
    return blake2b("\0".join(names).encode(), digest_size=16, person=person).digest()
