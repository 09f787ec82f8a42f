"""How NumPy arrays are taken apart and rebuilt: their dtype, their shape and their bytes in C order.

Only kinds of numbers, booleans, texts, bytes, dates and durations, which are the same on every machine. An array of objects
would hold anything, and a structured one its field names; both are refused, as subclasses such as masked arrays are.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

_DTYPE = re.compile(
    r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)|\|S[1-9]\d{0,7}|[<>]U[1-9]\d{0,7}"
    r"|[<>][mM]8(\[(\d{1,9})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
_MAX_DIMENSIONS = 32  # of NumPy 1; NumPy 2 has 64


def to_data(array: Any) -> list[Any]:
    """Return the data of an array.

    Raises:
        ValueError: Its dtype is none of those that have a stored form.
    """
    numpy: Any = sys.modules["numpy"]
    dtype = array.dtype
    if not _DTYPE.fullmatch(dtype.str) or numpy.dtype(dtype.str) != dtype or dtype.metadata:
        raise ValueError(f"an array of dtype {dtype} has no stored form; use numbers, booleans, text or dates (astype)")
    if array.ndim > _MAX_DIMENSIONS:
        raise ValueError(f"it has {array.ndim} dimensions, and at most {_MAX_DIMENSIONS} are stored; reshape it")
    return [dtype.str, list(array.shape), array.tobytes()]


def from_data(data: Any) -> Any:
    """Return a new array in C order, which may be written to.

    Raises:
        ValueError: The data is that of no array.
    """
    numpy: Any = sys.modules["numpy"]
    match data:
        case [str(name), [*shape], bytes(content)] if _DTYPE.fullmatch(name) and len(shape) <= _MAX_DIMENSIONS:
            pass
        case _:
            raise ValueError("the data is no dtype, shape and bytes of an array")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("the lengths of an array's dimensions are ints from 0 up")
    dtype = numpy.dtype(name)
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are no array of shape {shape} and dtype {name}")
    if (dtype.kind == "b" and content.strip(b"\0\1")) or (
        dtype.kind == "U" and not _are_characters(numpy, dtype, content)
    ):
        raise ValueError(f"the bytes are none of dtype {name}")
    if not content:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(content, dtype).reshape(shape).copy()


def _are_characters(numpy: Any, dtype: Any, content: bytes) -> bool:
    numbers = numpy.frombuffer(content, dtype.byteorder.replace("=", "<" if sys.byteorder == "little" else ">") + "u4")
    return not numbers.size or int(numbers.max()) <= sys.maxunicode
