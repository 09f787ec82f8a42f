"""Two values with a meaning of their own in a checkpoint: what must never be stored, and what cannot be read here."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")

#: By the identity of an object, why it is stored nowhere in this context.
kept_out: ContextVar[Mapping[int, str]] = ContextVar("checkpoint_kept_out", default={})  # noqa: B039 - never changed


@contextmanager
def keeping_out(reasons: Mapping[int, str]) -> Iterator[None]:
    """Refuse to store some objects, whatever they are, such as what will be closed; texts, bytes and numbers are not told apart.

    Args:
        reasons: By the identity of an object, which must live as long as this, what is said of it; read whenever a value is stored.

    Example:
        >>> from checkpoint import dumps
        >>> settings = {"region": "eu"}
        >>> with keeping_out({id(settings): "it is closed at the end; open it again"}):
        ...     dumps([settings])
        Traceback (most recent call last):
        checkpoint.errors.UnstorableValue: value[0] cannot be stored: it is closed at the end; open it again
    """
    token = kept_out.set(reasons)
    try:
        yield
    finally:
        kept_out.reset(token)


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
