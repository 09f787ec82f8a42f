"""What passes between a worker and PostgreSQL: a proxy that counts.

A round trip is counted when the server begins to answer what a client said: however many statements were sent in one go,
and in however many packets either side speaks. Bytes are those of the wire protocol, both ways. Only connections that
call themselves `STEPS` (application_name) are counted: those of the processes that run steps.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import sqlalchemy

#: What the processes that run steps call themselves.
STEPS = "steps"

_PROTOCOL_3 = 196608


@dataclass(frozen=True)
class Traffic:
    """How much passed.

    Attributes:
        trips: requests that were answered.
        sent: bytes to the server.
        received: bytes from it.
    """

    trips: int = 0
    sent: int = 0
    received: int = 0

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.trips - before.trips, self.sent - before.sent, self.received - before.received)


class Meter:
    """Listens on a free port of 127.0.0.1 and passes everything on to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._lock, self._trips, self._sent, self._received = threading.Lock(), 0, 0, 0
        threading.Thread(target=self._accept, name="meter", daemon=True).start()

    def traffic(self) -> Traffic:
        """Return how much has passed until now."""
        with self._lock:
            return Traffic(self._trips, self._sent, self._received)

    def close(self) -> None:
        """Take no further connections; those that are open end with their clients."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._serve, args=(client,), name="meter-wire", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        counted, asked, other = False, False, {client: server, server: client}
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, client)
            ready.register(server, selectors.EVENT_READ, server)
            while True:
                for key, _ in ready.select():
                    end: socket.socket = key.data
                    words = end.recv(1 << 16)
                    if not words:
                        return
                    counted = counted or (end is client and is_from_steps(words))
                    if counted:  # before it is passed on, so that whoever got it finds it counted
                        self._count(len(words), asked=asked, by_client=end is client)
                    asked = end is client
                    other[end].sendall(words)

    def _count(self, size: int, *, asked: bool, by_client: bool) -> None:
        with self._lock:
            if by_client:
                self._sent += size
            else:
                self._trips += asked
                self._received += size


def is_from_steps(words: bytes) -> bool:
    r"""Tell whether this is the startup message of a process that runs steps.

    Example:
        >>> said = struct.pack("!II", 0, _PROTOCOL_3) + b"user\0kim\0application_name\0steps\0\0"
        >>> is_from_steps(said), is_from_steps(said.replace(b"steps", b"psql"))
        (True, False)
    """
    if len(words) < 8 or struct.unpack("!I", words[4:8])[0] != _PROTOCOL_3:
        return False
    parts = words[8:].split(b"\0")
    return dict(zip(parts[::2], parts[1::2], strict=False)).get(b"application_name") == STEPS.encode()


@contextmanager
def metered(url: str) -> Iterator[tuple[Meter, str]]:
    """Run a meter before the server of an SQLAlchemy URL; yield it and the URL that leads through it."""
    parsed = sqlalchemy.make_url(url)
    with closing(Meter(parsed.host or "127.0.0.1", parsed.port or 5432)) as meter:
        plain = {"sslmode": "disable", "gssencmode": "disable"}  # what is encrypted cannot be read
        through = parsed.set(host="127.0.0.1", port=meter.port).update_query_dict(plain)
        yield meter, through.render_as_string(hide_password=False)
