"""Stable identities (I4): functions of where a call stands in its run, never of the attempt."""

from __future__ import annotations

import hashlib

#: What the id of every inbox item begins with.
ITEM_PREFIX = "q_"


def _digest(*parts: str | int) -> str:
    """Hash the parts, each with its length before it, so that no two lists of parts run together."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = str(part).encode()
        hasher.update(len(encoded).to_bytes(4, "big"))
        hasher.update(encoded)
    return hasher.hexdigest()


def operation_id(run_id: str, seq: int, tool: str, ordinal: int) -> str:
    """Return the id of the ``ordinal``-th call (from 0) of a tool in the step that makes checkpoint ``seq``.

    Example:
        >>> operation_id("run", 1, "charge", 0) == operation_id("run", 1, "charge", 0)
        True
        >>> len(operation_id("run", 1, "charge", 0))
        35
    """
    return "op_" + _digest("call", run_id, seq, tool, ordinal)


def identify(run_id: str, seq: int, tool: str, ordinal: int, *, key: str | None, outer: str | None) -> str:
    """Return the id of a call: by its key, by its place in the body of ``outer``, or by its place in the step."""
    if key is not None:
        return keyed_operation_id(run_id, tool, key)
    return operation_id(run_id, seq, tool, ordinal) if outer is None else nested_operation_id(outer, tool, ordinal)


def keyed_operation_id(run_id: str, tool: str, key: str) -> str:
    """Return the id of a call with an explicit key: the same anywhere in the run."""
    return "op_" + _digest("key", run_id, tool, key)


def nested_operation_id(outer: str, tool: str, ordinal: int) -> str:
    """Return the id of a call made inside the body of the operation ``outer``."""
    return "op_" + _digest("nested", outer, tool, ordinal)


def renewed_operation_id(operation_id: str, digest: str) -> str:
    """Return the id of the new operation that a person allowed for other arguments."""
    return "op_" + _digest("new", operation_id, digest)


def item_id(question: str, subject: str, attempts: int, digest: str) -> str:
    """Return the id of an inbox item: the same question about the same try is one item."""
    return ITEM_PREFIX + _digest(question, subject, attempts, digest)
