"""Encrypted values open with their key and at their place, and nowhere else."""

from __future__ import annotations

import pickle
import secrets
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    CheckpointError,
    CorruptedBytes,
    Keyring,
    KeyringError,
    Secret,
    UnreadableValue,
    UnstorableValue,
    dumps,
    envelope,
    loads,
)
from tests.libraries import library
from tests.values import same, scalars

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PLACE = ("order-7", 0, 3, "head")
VALUE = {"cart": ("tea", 2), "note": "private " * 50}
# What `Keyring({"2026-11": OLD})` wrote of VALUE at PLACE in its first release.
GOLDEN = "8107323032362d3131c0f4bf9431ea2d7ad511d1e2a460ad8bffec5dbb84a71c785db942447193cbfb0984473e1a2c36110cd1e3607ff48d6f7b7655e36c8c22549a57d7b30f033269459d2ae333bbb776682a8e31815e9f9193184998162e"


@pytest.fixture(autouse=True)
def _with_cryptography() -> None:
    library("cryptography")


@pytest.fixture
def keyring() -> Keyring:
    return Keyring({"2026-11": OLD})


def test_a_value_comes_back_from_its_place_and_shows_nothing(keyring: Keyring) -> None:
    stored = keyring.dumps(VALUE, PLACE)
    assert keyring.loads(stored, PLACE) == VALUE
    assert keyring.loads(stored, list(PLACE)) == VALUE
    assert b"private" not in stored
    assert b"tea" not in stored
    assert keyring.dumps(VALUE, PLACE) != stored


@given(scalars.filter(lambda value: not isinstance(value, Enum)))  # which are registered elsewhere
def test_any_value_comes_back(value: Any) -> None:
    keyring = Keyring({"k": NEW})
    stored = keyring.dumps([value], PLACE)
    assert same(keyring.loads(stored, PLACE), [value])
    assert keyring.open(stored, PLACE) == dumps([value])


def test_what_the_first_release_encrypted_is_read(keyring: Keyring) -> None:
    assert keyring.loads(bytes.fromhex(GOLDEN), PLACE) == VALUE


@pytest.mark.parametrize(
    "place",
    [("order-8", 0, 3, "head"), ("order-7", 1, 3, "head"), ("order-7", 0, 3), ("order-7", 0, "3", "head"), (), (None,),
     (b"order-7", 0, 3, "head"), ("order-70", 3, "head")],
    ids=str,
)  # fmt: skip
def test_a_value_that_was_moved_to_another_row_does_not_open(keyring: Keyring, place: Sequence[Any]) -> None:
    with pytest.raises(CorruptedBytes, match="do not open with key '2026-11' at this place"):
        keyring.loads(keyring.dumps(VALUE, PLACE), place)


@given(st.data())
def test_a_changed_byte_and_a_truncation_are_always_noticed(data: st.DataObject) -> None:
    keyring = Keyring({"2026-11": OLD, "2026-12": NEW}, current="2026-11")
    stored = bytearray(keyring.dumps(VALUE, PLACE))
    place = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CheckpointError):
        keyring.loads(bytes(stored[:place]), PLACE)
    with pytest.raises(CheckpointError):
        keyring.loads(bytes(stored) + bytes(place + 1), PLACE)
    stored[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CheckpointError):
        keyring.loads(bytes(stored), PLACE)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_give_an_error_of_ours(raw: bytes, sealed: bool) -> None:
    for required in (True, False):
        keyring = Keyring({"2026-11": OLD}, require_encryption=required)
        for stored in (raw, bytes((envelope.SEALED,)) + raw, b"\x81\x07" + b"2026-11" + raw, b"\x01" + raw):
            with pytest.raises(CheckpointError):
                keyring.loads(stored, PLACE)
            with pytest.raises(CheckpointError):
                keyring.loads(envelope.pack(b"\xc1" + raw), PLACE)


def test_keys_are_changed_one_step_after_the_other(keyring: Keyring) -> None:
    old = keyring.dumps(VALUE, PLACE)
    both = Keyring({"2026-11": OLD, "2026-12": NEW}, current="2026-12")
    assert both.loads(old, PLACE) == VALUE
    assert not both.is_current(old)
    new = both.reseal(old, PLACE)
    assert both.is_current(new)
    assert both.reseal(new, PLACE) == new
    only = Keyring({"2026-12": NEW})
    assert only.loads(new, PLACE) == VALUE
    with pytest.raises(
        UnreadableValue, match="the keyring has no key '2026-11', which it was encrypted with; add that key"
    ):
        only.loads(old, PLACE)
    with pytest.raises(CorruptedBytes, match="do not open"):
        Keyring({"2026-11": NEW}).loads(old, PLACE)
    with pytest.raises(CorruptedBytes, match="do not open"):
        both.reseal(old, ("elsewhere",))


def test_what_stands_in_the_clear_is_refused_unless_it_may(keyring: Keyring) -> None:
    plain = dumps(VALUE)
    for look in (keyring.loads, keyring.reseal, lambda stored, _place: keyring.is_current(stored)):
        with pytest.raises(UnreadableValue, match="it is stored in the clear, and this keyring requires encryption"):
            look(plain, PLACE)
    lenient = Keyring({"2026-11": OLD}, require_encryption=False)
    assert lenient.loads(plain, PLACE) == VALUE
    assert not lenient.is_current(plain)
    sealed = lenient.reseal(plain, PLACE)
    assert keyring.loads(sealed, PLACE) == VALUE


def test_damage_is_not_taken_for_a_value_in_the_clear(keyring: Keyring) -> None:
    stored = keyring.dumps(VALUE, PLACE)
    with pytest.raises(CorruptedBytes, match="the checksum does not match"):
        keyring.loads(b"\x01" + stored[1:], PLACE)


def test_without_a_keyring_an_encrypted_value_says_what_reads_it(keyring: Keyring) -> None:
    with pytest.raises(CorruptedBytes, match="got 129; it may be encrypted, and is read with a Keyring"):
        loads(keyring.dumps(VALUE, PLACE))


def test_a_secret_is_refused_all_the_same(keyring: Keyring) -> None:
    with pytest.raises(UnstorableValue, match=r"state\['key'\] cannot be stored: it is a Secret"):
        keyring.dumps({"key": Secret("s")}, PLACE, "state")


def test_a_bomb_in_an_encrypted_value_is_refused(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = keyring.seal(envelope.pack(b"\x91" * 100_000 + b"\xc0"), PLACE)
    with pytest.raises(CorruptedBytes, match="nests deeper than 128"):
        keyring.loads(sealed, PLACE)
    monkeypatch.setattr("checkpoint.keyring.MAX_BYTES", 1000)
    with pytest.raises(CorruptedBytes, match="are more than the limit"):
        keyring.loads(keyring.seal(bytes(3000), PLACE), PLACE)


@pytest.mark.parametrize(
    ("keys", "current", "message"),
    [
        ({}, None, r"current= must name one of its keys \(none\), got None"),
        ({"a": OLD, "b": NEW}, None, r"current= must name one of its keys \(a, b\), got None"),
        ({"a": OLD}, "b", r"current= must name one of its keys \(a\), got 'b'"),
        ({"a": OLD[:16]}, None, "key 'a' must be 32 random bytes; make one with secrets.token_bytes"),
        ({"a": "x" * 32}, None, "key 'a' must be 32 random bytes"),
        ({"": OLD}, None, "the name of a key is letters, digits"),
        ({"a" * 64: OLD}, None, "the name of a key is letters, digits"),
        ({"é": OLD}, None, "the name of a key is letters, digits"),
        ({3: OLD}, None, "the name of a key is letters, digits"),
    ],
)
def test_keys_that_will_not_do_are_refused(keys: Any, current: Any, message: str) -> None:
    with pytest.raises(KeyringError, match=message):
        Keyring(keys, current=current)


@pytest.mark.parametrize("place", ["order-7", b"order-7", (1.5,), (("a",),), (True,)], ids=str)
def test_a_place_is_a_tuple_of_plain_parts(keyring: Keyring, place: Any) -> None:
    with pytest.raises(TypeError, match="place must be a tuple of str, int, bytes and None"):
        keyring.dumps(VALUE, place)


def test_a_keyring_shows_no_key_and_is_not_pickled() -> None:
    key = secrets.token_bytes(32)
    keyring = Keyring({"k1": key})
    assert repr(keyring) == "Keyring(k1; current k1)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(keyring)
    with pytest.raises(UnstorableValue, match="a Keyring has no stored form"):
        dumps(keyring)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(KeyringError, match=r"pip install 'celery-agent-tasks\[encryption\]'"):
        Keyring({"a": OLD})
