"""Words for messages about values that may do anything when they are looked at."""

from __future__ import annotations

from typing import Any

_qualified_name: Any = type.__dict__["__qualname__"]


def class_name(value: object) -> str:
    """Return the qualified name of a value's class, whatever its metaclass hides.

    Example:
        >>> class_name(KeyError("cart"))
        'KeyError'
    """
    return str(_qualified_name.__get__(type(value)))


def shown(value: object) -> str:
    """Return the `repr` of a value, or that it has none; at most 60 characters.

    Example:
        >>> class Cart:
        ...     def __repr__(self):
        ...         raise RuntimeError("no connection")
        >>> shown("tea"), shown(Cart())
        ("'tea'", '<Cart without a repr>')
    """
    try:
        text = repr(value)
    except (Exception, SystemExit):  # noqa: BLE001 - what cannot be shown must not hide that it was there
        text = f"<{class_name(value)} without a repr>"
    return text if len(text) <= 60 else text[:59] + "…"


def said(error: BaseException) -> str:
    """Return an exception in a line: its class, and its text if it has one.

    Example:
        >>> said(ValueError("no such cart"))
        'ValueError: no such cart'
    """
    try:
        text = str(error)
    except (Exception, SystemExit):  # noqa: BLE001 - as above
        text = "<without a text>"
    return f"{class_name(error)}: {text}"
