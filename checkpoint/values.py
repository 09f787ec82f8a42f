"""Two values with a meaning of their own in a checkpoint: what must never be stored, and what cannot be read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """A value that is used but never saved, logged or shown; saving a state that holds one fails.

    Args:
        value: What `reveal` gives back.

    Example:
        >>> key = Secret("sk-123")
        >>> key, key.reveal()
        (Secret('…'), 'sk-123')
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('…')"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Secret cannot be pickled; pass what fetches it instead")


@dataclass(frozen=True)
class Opaque:
    """A stored value whose tag, or version of it, this process does not know. Saved again, it gives the same bytes.

    Args:
        tag: The registered tag.
        version: The schema version of the data.
        data: The encoded data, as it was stored.
    """

    tag: str
    version: int
    data: bytes
