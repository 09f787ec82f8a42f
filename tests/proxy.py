"""A TCP proxy before PostgreSQL, which loses the answer to a commit: the server carried it out, and nobody is told.

A commit is a COMMIT, or a statement outside of any transaction, which commits by itself.

    with Proxy("127.0.0.1", 5432) as proxy:
        fault = proxy.plan(Fault("cut", b"run-1", b"INSERT INTO agent_operations", nth=2))
        …  # work through proxy.port; fault.met is set when it has struck

It reads what the client says (the wire protocol's frames) to know what a transaction did, and strikes at its COMMIT. It
also counts how often the client waits for an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Literal

_SO_ATTACH_FILTER = 26
_PROTOCOL_3 = 196608


class Fault:
    """What happens at the COMMIT of a transaction that sent certain words.

    Args:
        what: ``cut`` resets the connection, ``swallow`` lets nothing pass from then on while it looks open, and ``delay``
            holds the answer back for three seconds.
        words: all of them occur in the statements and parameters of the transaction.
        nth: the how manieth such transaction is meant.
    """

    def __init__(self, what: Literal["cut", "swallow", "delay"], *words: bytes, nth: int = 1) -> None:
        self.what, self.words, self.left = what, words, nth
        self.met = threading.Event()

    def strikes(self, said: bytes) -> bool:
        """Tell whether a transaction is the one that is meant; the caller holds the lock."""
        if self.met.is_set() or not all(word in said for word in self.words):
            return False
        self.left -= 1
        if not self.left:
            self.met.set()
        return not self.left


class Proxy:
    """Listens on a free port of 127.0.0.1 until it is left."""

    def __init__(self, host: str, port: int) -> None:
        self.round_trips = 0
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._lock, self._faults = threading.Lock(), list[Fault]()
        self._wires = set[_Wire]()

    def __enter__(self) -> Proxy:  # noqa: PYI034 - Self is newer than Python 3.10
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def plan(self, fault: Fault) -> Fault:
        """Let a fault happen from now on, once."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def cut_all(self) -> int:
        """Cut every connection now; return how many were open."""
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.close()
        return len(wires)

    def fault_of(self, said: bytes) -> Fault | None:
        """Return the fault that strikes at the end of a transaction that said this."""
        with self._lock:
            return next((fault for fault in self._faults if fault.strikes(said)), None)

    def forget(self, wire: _Wire) -> None:
        with self._lock:
            self._wires.discard(wire)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:  # the server is away
                client.close()
                continue
            wire = _Wire(self, client, server)
            with self._lock:
                self._wires.add(wire)
            wire.start()


class _Wire:
    """One connection through the proxy: a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._statements: dict[bytes, bytes] = {}
        self._said, self._in_transaction = bytearray(), False
        self._fault: Fault | None = None
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for direction in (self._to_server, self._to_client):
            threading.Thread(target=self._guarded, args=(direction,), name="proxy-wire", daemon=True).start()

    def close(self) -> None:
        """Reset both connections."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)

    def _guarded(self, direction: object) -> None:
        assert callable(direction)
        with contextlib.suppress(OSError, EOFError):
            direction()
        if self._fault is None or self._fault.what != "swallow":
            self.close()

    def _to_server(self) -> None:
        begun = False
        with self._client.makefile("rb") as stream:
            while True:
                kind = _exactly(stream, 1) if begun else b""
                length = _exactly(stream, 4)
                body = _exactly(stream, struct.unpack("!I", length)[0] - 4)
                begun = begun or struct.unpack("!I", body[:4])[0] == _PROTOCOL_3
                self._listen(kind, body)
                self._server.sendall(kind + length + body)

    def _listen(self, kind: bytes, body: bytes) -> None:
        if kind in (b"Q", b"S"):
            self._proxy.round_trips += 1
        if kind == b"S" and not self._in_transaction:
            self._commits()
        elif kind == b"Q":
            if body.startswith(b"COMMIT"):
                self._commits()
            if body.startswith((b"BEGIN", b"COMMIT", b"ROLLBACK")):
                self._said.clear()
                self._in_transaction = body.startswith(b"BEGIN")
            self._said += body
            if not self._in_transaction and not body.startswith((b"COMMIT", b"ROLLBACK")):
                self._commits()
        elif kind == b"P":
            name, statement = body.split(b"\0")[:2]
            self._statements[name] = statement
        elif kind == b"B":
            name = body.split(b"\0")[1]
            self._said += self._statements.get(name, b"") + body

    def _commits(self) -> None:
        self._fault = self._proxy.fault_of(bytes(self._said))
        self._said.clear()

    def _to_client(self) -> None:
        while True:
            answer = self._server.recv(65536)
            if not answer:
                return
            fault = self._fault
            if fault is not None:  # this answers the COMMIT, which is therefore done
                if fault.what == "swallow":
                    drop_everything(self._client)
                    return
                if fault.what == "cut":
                    return
                time.sleep(3)
                self._fault = None
            self._client.sendall(answer)


def drop_everything(end: socket.socket) -> None:
    """Let the kernel drop whatever arrives at a socket, as if the cable were cut: nothing is acknowledged."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes of each packet
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def _exactly(stream: object, count: int) -> bytes:
    found = stream.read(count)  # type: ignore[attr-defined]
    if len(found) < count:
        raise EOFError
    return bytes(found)


@contextlib.contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """Run a proxy before the server of an SQLAlchemy URL; yield it and the URL that leads through it."""
    import sqlalchemy

    parsed = sqlalchemy.make_url(url)
    with Proxy(parsed.host or "127.0.0.1", parsed.port or 5432) as proxy:
        through = parsed.set(host="127.0.0.1", port=proxy.port).update_query_dict({"sslmode": "disable"})
        yield proxy, through.render_as_string(hide_password=False)
