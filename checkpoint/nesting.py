"""How deep encoded bytes nest, found without decoding them.

A decoder that recurses in C may exhaust a small thread stack before Python's own guard notices, so depth is known
before any byte reaches it.
"""

from __future__ import annotations

from checkpoint.errors import CorruptedBytes

#: Containers inside containers, as encoded: a tuple, a set or a registered type counts as two. Agents' data seldom
#: passes 20; 128 leaves every thread stack room.
MAX_DEPTH = 128

# Every byte that may open an array, a map or an extension, wherever in the data it stands.
_OPENERS = bytes([*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), *range(0xDC, 0xE0)])

# Opcode → bytes that follow it, for kinds of a fixed size.
_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    **dict.fromkeys((0xCC, 0xD0), 1),
    **dict.fromkeys((0xCD, 0xD1), 2),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 4),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 8),
}
# Opcode → width of the length that follows it: strings and bytes, arrays, maps, extensions.
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = frozenset(range(0xD4, 0xD9))
# msgpack's own timestamp, the extension -1. Its payload is no encoded value, so what follows it would be read at a wrong
# place and could hide a nesting; this codec never writes one.
_TIMESTAMP = 0xFF


def check_depth(raw: bytes) -> None:
    """Refuse bytes that nest deeper than `MAX_DEPTH`.

    Args:
        raw: An encoded value.

    Raises:
        CorruptedBytes: They nest too deep, or are not exactly one encoded value.
    """
    # Plain text and numbers seldom hold that many such bytes, and counting them is a hundred times cheaper.
    if len(raw) - len(raw.translate(None, _OPENERS)) >= MAX_DEPTH:
        depth_of(raw)


def depth_of(raw: bytes) -> int:
    """Return how many containers nest in one encoded value, extensions included.

    Args:
        raw: An encoded value.

    Returns:
        0 for a scalar, 1 for a flat list.

    Raises:
        CorruptedBytes: They nest too deep, or are not exactly one encoded value.
    """
    size = len(raw)
    position, deepest = 0, 0
    pending = [1]  # values still to come, one entry an open container
    while pending:
        if not pending[-1]:
            pending.pop()
            continue
        pending[-1] -= 1
        if position >= size:
            raise CorruptedBytes("the data ends inside a value")
        opcode = raw[position]
        position += 1
        inner: int | None = None
        if opcode < 0x80 or opcode >= 0xE0:
            pass
        elif opcode < 0x90:
            inner = 2 * (opcode & 0x0F)
        elif opcode < 0xA0:
            inner = opcode & 0x0F
        elif opcode < 0xC0:
            position += opcode & 0x1F
        elif opcode in _FIXED:
            position += _FIXED[opcode]
        elif opcode in _FIXED_EXTENSIONS:
            position = _extension(raw, position)
            inner = 1
        else:
            width = _SIZED.get(opcode) or _ARRAYS.get(opcode) or _MAPS.get(opcode) or _EXTENSIONS.get(opcode)
            if width is None:
                raise CorruptedBytes(f"opcode {opcode:#x} does not exist")
            count = int.from_bytes(raw[position : position + width], "big")
            position += width
            if opcode in _SIZED:
                position += count
            elif opcode in _ARRAYS:
                inner = count
            elif opcode in _MAPS:
                inner = 2 * count
            else:
                position = _extension(raw, position)
                inner = 1
        if inner is not None:
            pending.append(inner)
            deepest = max(deepest, len(pending) - 1)
            if deepest > MAX_DEPTH:
                raise CorruptedBytes(f"it nests deeper than {MAX_DEPTH}")
    if position != size:
        raise CorruptedBytes("the data does not end where its value ends")
    return deepest


def _extension(raw: bytes, position: int) -> int:
    """Return where the payload begins of the extension whose code is at `position`; it is one encoded value."""
    if raw[position : position + 1] == bytes((_TIMESTAMP,)):
        raise CorruptedBytes("it holds a timestamp of msgpack's own, which is never stored")
    return position + 1
