"""Types of other packages that may be stored without being registered, and the tags that they have.

A package is looked at when its module is loaded, and imported only to read a value of it. Which modules may be imported
stands in this file: a stored tag is looked up here, and names nothing. No registered tag can begin with ``@``, so that
these are nobody else's. What a user registers for one of these classes comes first.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from checkpoint import arrays
from checkpoint.pydantics import model_adapter
from checkpoint.registry import Registration

_ARRAY = "@numpy.ndarray"
_MESSAGES = "langchain_core.messages"

# Tag → module and name of its class.
_CLASSES: dict[str, tuple[str, str]] = {
    _ARRAY: ("numpy", "ndarray"),
    **{
        f"@langchain.{name}": (_MESSAGES, name)
        for kind in ("AI", "Chat", "Function", "Human", "System", "Tool")
        for name in (f"{kind}Message", f"{kind}MessageChunk")
    },
    "@langchain.RemoveMessage": (_MESSAGES, "RemoveMessage"),
}

_by_tag: dict[str, Registration] = {}
_by_class: dict[type, Registration] = {}


def for_class(cls: type) -> Registration | None:
    """Return how values of exactly this class are stored, or None.

    Args:
        cls: The class. What it says of itself is not asked for.
    """
    if (known := _by_class.get(cls)) is not None:
        return known
    for tag, (module, name) in _CLASSES.items():
        if _loaded(module, name) is cls:
            return _register(tag, cls)
    return None


def for_tag(tag: str) -> Registration | None:
    """Return the registration of a tag, or None for another one and where its package is not installed."""
    if tag not in _CLASSES or tag in _by_tag:
        return _by_tag.get(tag)
    module, name = _CLASSES[tag]
    try:
        cls: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # not installed, or a release without this class
        return None
    return _register(tag, cls)


def _loaded(module: str, name: str) -> Any:
    try:
        return getattr(sys.modules.get(module), name, None)
    except Exception:  # noqa: BLE001 - a package that loads its parts when they are asked for, and lacks one
        return None


def _register(tag: str, cls: type) -> Registration:
    to_data, from_data = (arrays.to_data, arrays.from_data) if tag == _ARRAY else model_adapter(cls)
    known = Registration(tag, cls, 1, {}, to_data, from_data, checked=False)
    _by_tag[tag] = known
    _by_class[cls] = known
    return known
