"""LangGraph's serializer as it is safe to use: it makes no object of a type that data alone names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from checkpoint.langgraph.errors import ThreadCorrupted
from checkpoint.langgraph.refs import digest_of, item_of, typed

#: What LangGraph's serializer writes. It also reads JSON and pickles that name what to import; nothing here wrote them.
_WRITTEN = frozenset(("null", "bytes", "bytearray", "msgpack"))


def serializer(allowed: Iterable[type | tuple[str, str]]) -> SerializerProtocol:
    """Return LangGraph's serializer for its own types and the allowed ones."""
    return JsonPlusSerializer(allowed_msgpack_modules=tuple(allowed) or None)


def refuse_permissive(serde: Any) -> None:
    """Refuse a serializer of LangGraph's that imports whatever the data names.

    Raises:
        ValueError: It does.
    """
    inner = serde.serde if isinstance(serde, EncryptedSerializer) else serde
    if isinstance(inner, JsonPlusSerializer) and (
        inner._allowed_msgpack_modules is True or inner._allowed_json_modules is True or inner.pickle_fallback
    ):
        raise ValueError(
            "serde must not import whatever its data names: give JsonPlusSerializer the types as "
            "allowed_msgpack_modules=[…], and neither True nor pickle_fallback; or leave serde out and use allowed=[…]"
        )


def dumps(serde: SerializerProtocol, value: Any) -> bytes:
    """Return the item of a value."""
    return item_of(*serde.dumps_typed(value))


def plain(serde: SerializerProtocol) -> Callable[[Any], bytes] | None:
    """Return what makes the same bytes of the same value, where the serializer itself encrypts them differently each time."""
    if not isinstance(serde, EncryptedSerializer):
        return None
    inner = serde.serde
    return lambda value: digest_of(dumps(inner, value))


def loader(serde: SerializerProtocol) -> Callable[[bytes], Any]:
    """Return what makes the value of an item.

    It raises `ThreadCorrupted` for an item of a type that the serializer does not write.
    """
    encrypts = isinstance(serde, EncryptedSerializer)
    of_langgraph = encrypts or isinstance(serde, JsonPlusSerializer)

    def loads(item: bytes) -> Any:
        kind, payload = typed(item)
        if of_langgraph and kind not in _WRITTEN and kind.partition("+")[0] not in _WRITTEN:
            raise ThreadCorrupted("a value", f"its type must be one of {', '.join(sorted(_WRITTEN))}, got {kind!r}")
        if encrypts and "+" not in kind:
            raise ThreadCorrupted("a value", "it must be encrypted and is not")
        return serde.loads_typed((kind, payload))

    return loads
