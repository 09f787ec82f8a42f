"""Texts as every database stores them: without NUL, and without half of a surrogate pair."""

from __future__ import annotations


def is_storable(text: str) -> bool:
    r"""Tell whether every database stores a text.

    Example:
        >>> is_storable("cart 42"), is_storable("a\0b"), is_storable("\ud800")
        (True, False, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def storable(text: str) -> str:
    r"""Return a text with what no database stores written out, for people to read.

    Example:
        >>> storable("a\0b\ud800")
        'a\\x00b\\ud800'
    """
    return text if is_storable(text) else text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
