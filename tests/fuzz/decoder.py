"""The decoder under bytes that nobody wrote: a value or an error of `checkpoint`, and nothing else, ever.

`one_input` is a target for atheris and for libFuzzer's corpus format (`corpus/`, a file an input; the first byte chooses whether
the rest stands without a header, behind a right one, or with its own). `python -m tests.fuzz.decoder` runs it: with
atheris where that is installed, else with a mutator of its own that knows msgpack's opcodes.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import checkpoint
from checkpoint import CheckpointError, codec, envelope, kinds

CORPUS = Path(__file__).parent / "corpus"
BARE, SEALED, STORED = 0, 1, 2

_OPCODES = bytes([*range(0x7E, 0xE2), 0x00, 0x7F, 0xFF])
#: What an input may take at the most; a decoder that needs longer for such short inputs has lost its way.
MAX_INPUT_BYTES = 4096


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Line:
    item: Any
    count: Any = 1


class Point(NamedTuple):
    x: Any
    y: Any = 0


class Shape(msgspec.Struct, frozen=True):
    name: Any


class Word:
    """One whose own functions take and raise anything."""

    def __init__(self, text: str) -> None:
        self.text = text.upper()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text.lower())


def register_types() -> None:
    """Register a class of each kind, so that forged data meets what rebuilds them."""
    for cls in (Colour, Line, Point, Shape):
        checkpoint.register(f"fuzz.{cls.__name__}", cls, version=2, upcast={1: lambda data: {**data}})
    checkpoint.register("fuzz.Word", Word, to_data=lambda word: word.text, from_data=Word)


def one_input(data: bytes) -> bool:
    """Decode one input.

    Args:
        data: Its first byte says how the rest is meant.

    Returns:
        Whether it gave a value.

    Raises:
        Exception: Whatever is not an error of `checkpoint`, and a value that is not stored again as what it is.
    """
    if not data or len(data) > MAX_INPUT_BYTES:
        return False
    how, rest = data[0] % 3, data[1:]
    try:
        raw = rest if how == BARE else envelope.unpack(rest if how == STORED else envelope.pack(rest))
        value = codec.decode(raw)
    except CheckpointError:
        return False
    try:
        raw = codec.encode(value)
    except CheckpointError:  # such as one that is a little deeper when it is written in our way
        return True
    assert codec.encode(codec.decode(raw)) == raw, f"{data.hex()} is not stored again as it was read"
    return True


def mutated(seed: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Return bytes that are nearly an input."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        place, other = chance.randrange(len(data) + 1), chance.choice(others)
        begin = chance.randrange(len(other))
        piece = other[begin : begin + chance.choice((1, 2, 4, 8, 64))]
        changes: list[Callable[[], Any]] = [
            lambda at=place: data.insert(at, chance.choice(_OPCODES)),
            lambda at=place: data.__setitem__(slice(at, at + 1), bytes((chance.randrange(256),))),
            lambda at=place: data.__setitem__(slice(at, at + 1), bytes((chance.choice(_OPCODES),))),
            lambda at=place: data.__delitem__(slice(at, at + chance.choice((1, 2, 8)))),
            lambda at=place, new=piece: data.__setitem__(slice(at, at), new),
            lambda at=place, new=piece: data.__setitem__(slice(at, at + len(new)), new),
            lambda at=place: data.__setitem__(slice(at, at), data[at : at + 8] * chance.choice((2, 40))),
        ]  # fmt: skip
        chance.choice(changes)()
    return bytes(data[:MAX_INPUT_BYTES])


_TAGS = (
    "fuzz.Colour",
    "fuzz.Line",
    "fuzz.Point",
    "fuzz.Shape",
    "fuzz.Word",
    "@numpy.ndarray",
    "@langchain.AIMessage",
    "none",
)
_TEXTS = (
    "",
    "item",
    "x",
    "name",
    "RED",
    "1.10",
    "2024-01-01",
    "01:00",
    "2024-01-01T00:00:00",
    "UTC",
    "<f8",
    "|b1",
    "<U1",
    *_TAGS,
)
_SCALARS = (None, True, 0, 1, -1, 2**63, 1.5, float("nan"), b"", b"\0" * 8, b"\0" * 16, b"\xc0", *_TEXTS)


def grown(chance: random.Random, depth: int = 0) -> Any:
    """Return plain data with extensions of every code in it, whose payloads are anything that is whole."""
    kind = chance.randrange(8) if depth < 6 else 0
    if kind < 3:
        return chance.choice(_SCALARS)
    inner = [grown(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 3:
        return inner
    if kind == 4:
        return {chance.choice(_TEXTS): member for member in inner}
    payload: Any = chance.choice((inner, inner[0] if inner else None))
    code = chance.randrange(-2, 17)
    if code == kinds.REGISTERED:
        payload = [chance.choice(_TAGS), chance.choice((1, 2, 3)), payload]
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload))


def corpus() -> list[bytes]:
    """The inputs that are kept."""
    return [file.read_bytes() for file in sorted(CORPUS.iterdir())]


def fuzz(runs: int, seed: int) -> tuple[int, int]:
    """Decode mutations of the corpus, and as many inputs that were grown.

    Args:
        runs: How many.
        seed: The same gives the same.

    Returns:
        How many gave a value, and how many an error of ours.
    """
    chance, inputs, values = random.Random(seed), corpus(), 0
    for run in range(runs):
        if run % 2:
            data = mutated(chance.choice(inputs), inputs, chance)
        else:
            data = bytes((BARE,)) + msgspec.msgpack.encode(grown(chance))
        try:
            values += one_input(data)
        except BaseException:
            print(f"input: {data.hex()}", file=sys.stderr)
            raise
    return values, runs - values


def main() -> None:
    """Run until interrupted: atheris with its own arguments, or a thousand mutations of one seed after another."""
    register_types()
    try:
        import atheris
    except ImportError:
        seed = int(sys.argv[1]) if len(sys.argv) > 1 else time.time_ns() % 1_000_000
        while True:
            values, errors = fuzz(1000, seed)
            print(f"seed {seed}: {values} values, {errors} refused")
            seed += 1
    atheris.instrument_all()
    atheris.Setup([*sys.argv, str(CORPUS)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
