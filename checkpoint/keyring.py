"""Encrypted values: AES-256-GCM, under keys that can be changed, each value bound to the place it is stored at.

What stands behind the format byte `SEALED`: the length of the key's name, the name, 12 random bytes, and what `dumps` gives,
encrypted. The header and the place are authenticated with it, so that bytes which were changed, or moved to another row, do not
open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.codec import dumps, loads
from checkpoint.envelope import MAX_BYTES, SEALED, unpack
from checkpoint.errors import CorruptedBytes, KeyringError, UnreadableValue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_NAME = re.compile(r"[A-Za-z0-9][\w.:-]{0,62}", re.ASCII)


class Keyring:
    """Encrypts values with one key, and opens those of every key that it has.

    To change the key, add a new one everywhere, then name it as `current`, then `reseal` what is stored, and remove the old one at
    last. A key serves for four billion values.

    Args:
        keys: Name → 32 random bytes, such as ``secrets.token_bytes(32)``. The name is stored beside each value.
        current: The name of the key that encrypts; not needed where there is only one.
        require_encryption: Refuse what is stored in the clear. False reads it, while older values are being resealed.

    Raises:
        KeyringError: A name or key is malformed, no key is current, or the package `cryptography` is missing.

    Example:
        >>> import secrets
        >>> from checkpoint import Keyring
        >>> keyring = Keyring({"2026-11": secrets.token_bytes(32)})
        >>> stored = keyring.dumps({"card": "4242"}, place=("order-7", 3))
        >>> keyring.loads(stored, place=("order-7", 3))
        {'card': '4242'}
        >>> keyring.loads(stored, place=("order-8", 3))
        Traceback (most recent call last):
        checkpoint.errors.CorruptedBytes: these bytes are not a stored value: they do not open with key '2026-11' at this \
place: they were changed, moved, or encrypted with another key of that name
    """

    def __init__(
        self, keys: Mapping[str, bytes], *, current: str | None = None, require_encryption: bool = True
    ) -> None:
        self._ciphers = {name: _cipher(name, key) for name, key in keys.items()}
        if current is None and len(self._ciphers) == 1:
            current = next(iter(self._ciphers))
        if current is None or current not in self._ciphers:
            raise KeyringError(
                f"current= must name one of its keys ({', '.join(self._ciphers) or 'none'}), got {current!r}"
            )
        self._current = current
        self._require_encryption = require_encryption

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ciphers)}; current {self._current})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Keyring cannot be pickled; make it where it is used")

    def dumps(self, value: Any, place: Sequence[str | int | bytes | None], path: str = "value") -> bytes:
        """Encode and encrypt a value.

        Args:
            value: As for `checkpoint.dumps`.
            place: What tells where it is stored from any other place, such as run, line and seq.
            path: What errors call the value.

        Returns:
            Bytes for `loads` with the same place; other ones each time.

        Raises:
            UnstorableValue: As for `checkpoint.dumps`.
        """
        return self.seal(dumps(value, path), place)

    def loads(self, stored: bytes, place: Sequence[str | int | bytes | None]) -> Any:
        """Decrypt and decode what `dumps` wrote.

        Args:
            stored: The bytes.
            place: Where they are stored.

        Raises:
            CorruptedBytes: They were changed, or moved from another place, or are not ours.
            UnreadableValue: The keyring lacks their key, or they are in the clear and must not be; or as for
                `checkpoint.loads`.
        """
        return loads(self.open(stored, place))

    def seal(self, packed: bytes, place: Sequence[str | int | bytes | None]) -> bytes:
        """Encrypt what `checkpoint.dumps` gave; see `dumps`."""
        name = self._current.encode()
        start = bytes((SEALED, len(name))) + name
        nonce = os.urandom(_NONCE_BYTES)
        body: bytes = self._ciphers[self._current].encrypt(nonce, packed, _bound(start, place))
        return start + nonce + body

    def open(self, stored: bytes, place: Sequence[str | int | bytes | None]) -> bytes:
        """Return what `seal` was given; see `loads`."""
        from cryptography.exceptions import InvalidTag

        name, start = self._header(stored)
        if name is None:
            return stored
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise UnreadableValue(
                "encrypted", 0, f"the keyring has no key {name!r}, which it was encrypted with; add that key"
            )
        nonce, body = stored[len(start) : len(start) + _NONCE_BYTES], stored[len(start) + _NONCE_BYTES :]
        try:
            packed: bytes = cipher.decrypt(nonce, body, _bound(start, place))
        except InvalidTag as error:
            raise CorruptedBytes(
                f"they do not open with key {name!r} at this place: they were changed, moved, or encrypted with another key "
                "of that name"
            ) from error
        except MemoryError as error:
            raise UnreadableValue("encrypted", 0, f"its {len(stored)} bytes need more memory than there is") from error
        return packed

    def is_current(self, stored: bytes) -> bool:
        """Return whether bytes are encrypted with the current key; else `reseal` them.

        Raises:
            CorruptedBytes: They are not ours.
            UnreadableValue: They are in the clear and must not be.
        """
        return self._header(stored)[0] == self._current

    def reseal(self, stored: bytes, place: Sequence[str | int | bytes | None]) -> bytes:
        """Encrypt stored bytes with the current key; those that are already stay as they are.

        Raises:
            CorruptedBytes: As for `loads`.
            UnreadableValue: As for `loads`.
        """
        packed = self.open(stored, place)
        return stored if self.is_current(stored) else self.seal(packed, place)

    def _header(self, stored: bytes) -> tuple[str | None, bytes]:
        """Return the name of the key, or None for bytes in the clear that may be so, and all that stands before the nonce."""
        if stored[:1] != bytes((SEALED,)):
            if self._require_encryption:
                unpack(stored)  # raises for bytes that were damaged, or are not ours
                raise UnreadableValue(
                    "plain", 0, "it is stored in the clear, and this keyring requires encryption; require_encryption=False "
                    "reads it, so that it can be resealed"
                )  # fmt: skip
            return None, b""
        if len(stored) > MAX_BYTES + 1024:
            raise CorruptedBytes(f"{len(stored)} bytes are more than the limit of {MAX_BYTES}")
        start = stored[: 2 + int.from_bytes(stored[1:2], "big")]
        name = start[2:].decode("ascii", "replace")
        if not _NAME.fullmatch(name) or len(stored) < len(start) + _NONCE_BYTES + _TAG_BYTES:
            raise CorruptedBytes("what stands before the encrypted bytes is no name of a key")
        return name, start


def _bound(start: bytes, place: Sequence[str | int | bytes | None]) -> bytes:
    if isinstance(place, (str, bytes)) or any(type(part) not in (str, int, bytes, type(None)) for part in place):
        raise TypeError(f"place must be a tuple of str, int, bytes and None, got {place!r:.100}")
    return b"checkpoint.sealed" + start + msgspec.msgpack.encode(list(place))


def _cipher(name: Any, key: Any) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise KeyringError("it needs the package cryptography: pip install 'celery-agent-tasks[encryption]'") from error
    if type(name) is not str or not _NAME.fullmatch(name):
        raise KeyringError(
            f"the name of a key is letters, digits, '_', '.', ':' or '-', at most 63 long, got {name!r:.100}"
        )
    if not isinstance(key, (bytes, bytearray)) or len(key) != KEY_BYTES:
        raise KeyringError(
            f"key {name!r} must be {KEY_BYTES} random bytes; make one with secrets.token_bytes({KEY_BYTES})"
        )
    return AESGCM(bytes(key))
