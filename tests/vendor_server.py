"""An outside world over HTTP: a bank that keeps a book of what really happened, and whose answers a test scripts."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from typing_extensions import Self


@dataclass(frozen=True)
class Way:
    """How the bank treats one request.

    Args:
        status: of the answer; the effect happens only below 400.
        answers: False breaks the connection in place of an answer.
        body: sent in place of the charge.
        cut: the answer ends in the middle.
        silent: the answer never comes; the client has to give up.
        lands_after: the effect happens so many seconds later, on the bank's clock, whatever was answered.
    """

    status: int = 201
    answers: bool = True
    body: bytes | None = None
    cut: bool = False
    silent: bool = False
    lands_after: float | None = None


ACCEPT = Way()
RESET = Way(answers=False)
SILENT = Way(silent=True)
HALF = Way(cut=True)
GARBAGE = Way(status=200, body=b"<html>it works")
LOST_ON_THE_WAY = Way(status=502, body=b"")  # nothing happened, and nobody can know
ERROR = Way(status=500)
IN_USE, TOO_MANY, UNAUTHORIZED = Way(status=409), Way(status=429), Way(status=401)


def late(seconds: float) -> Way:
    """A gateway that gives up while the bank goes on."""
    return Way(status=504, lands_after=seconds)


@dataclass(frozen=True)
class Charge:
    """One line of the bank's book."""

    number: int
    reference: str
    cents: int
    at: float

    def seen(self) -> dict[str, Any]:
        """Return it as a client sees it."""
        return {"id": f"ch_{self.number}", "reference": self.reference, "cents": self.cents}


@dataclass
class _Key:
    """What the bank keeps for an idempotency key."""

    first_at: float
    status: int | None = None  # None while the request is in progress
    answer: bytes = b""


@dataclass
class _OnItsWay:
    at: float
    request: dict[str, Any]
    key: _Key | None


@dataclass
class Bank(ThreadingHTTPServer):
    """The bank; a context manager that serves while it is open.

    Args:
        key_life: seconds for which it honours an idempotency key, from its first request; None: it has no keys.
        lag: seconds after which its list of charges shows a charge.
        unique: it keeps references unique.
        stored_errors: an error answer is kept for its key, and given again.
    """

    key_life: float | None = 3600.0
    lag: float = 0.0
    unique: bool = False
    stored_errors: bool = False
    script: deque[Way] = field(default_factory=deque)
    requests: list[dict[str, Any]] = field(default_factory=list)
    book: list[Charge] = field(default_factory=list)

    daemon_threads = True

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._lock = threading.RLock()
        self._offset = 0.0
        self._keys: dict[str, _Key] = {}
        self._voided: set[str] = set()
        self._on_their_way: list[_OnItsWay] = []
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no error of the bank."""

    @cached_property
    def port(self) -> int:
        return int(self.server_address[1])

    # -- time --------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return seconds since 1970 on the bank's clock."""
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Move the bank's clock; what was on its way lands when its time comes."""
        with self._lock:
            until = self.now() + seconds
            for moving in sorted(self._on_their_way, key=lambda each: each.at):
                if moving.at <= until:
                    self._on_their_way.remove(moving)
                    self._settle(moving.request, moving.key, at=moving.at)
            self._offset += seconds

    # -- the book ----------------------------------------------------------------------------------------------------

    def count(self) -> Counter[str]:
        """Return how often each reference was charged."""
        with self._lock:
            return Counter(charge.reference for charge in self.book)

    def charged(self, reference: str) -> Charge | None:
        """Return the charge of a reference, as the bank's own staff sees it."""
        with self._lock:
            return next((charge for charge in self.book if charge.reference == reference), None)

    def void(self, reference: str) -> None:
        """Refuse a reference from now on."""
        with self._lock:
            self._voided.add(reference)

    def listed(self, reference: str) -> list[dict[str, Any]]:
        """Return the charges that the list of the bank shows by now."""
        with self._lock:
            return [c.seen() for c in self.book if c.reference == reference and c.at + self.lag <= self.now()]

    # -- a request ---------------------------------------------------------------------------------------------------

    def charge(self, request: dict[str, Any]) -> tuple[int, bytes, Way]:
        """Treat a request as the script says."""
        with self._lock:
            self.requests.append(request)
            way = self.script.popleft() if self.script else ACCEPT
            key, known = self._key(request.get("key"))
            if known is not None:
                return *known, way
            if way.status >= 400 and way.lands_after is None:
                answer = json.dumps({"error": f"status {way.status}"}).encode() if way.body is None else way.body
                self._keep(request, key, way.status, answer)
                return way.status, answer, way
            if way.lands_after is not None:
                self._on_their_way.append(_OnItsWay(self.now() + way.lands_after, request, key))
                return way.status, b"", way
            status, answer = self._settle(request, key, at=self.now())
            return (status, answer, way) if way.body is None else (way.status, way.body, way)

    def _key(self, name: str | None) -> tuple[_Key | None, tuple[int, bytes] | None]:
        """Return the entry of a key, and the answer that it has for this request already."""
        if name is None or self.key_life is None:
            return None, None
        found = self._keys.get(name)
        if found is not None and self.now() < found.first_at + self.key_life:
            if found.status is None:
                return found, (409, b'{"error": "this key is in use"}')
            return found, (found.status, found.answer)
        self._keys[name] = _Key(self.now())
        return self._keys[name], None

    def _keep(self, request: dict[str, Any], key: _Key | None, status: int, answer: bytes) -> None:
        if key is None:
            return
        if self.stored_errors:
            key.status, key.answer = status, answer
        else:
            del self._keys[request["key"]]

    def _settle(self, request: dict[str, Any], key: _Key | None, *, at: float) -> tuple[int, bytes]:
        reference, not_after = request["reference"], request.get("not_after")
        refused = (
            "this reference is void"
            if reference in self._voided
            else "this request has expired"
            if not_after is not None and at > not_after
            else "this reference exists"
            if self.unique and self.charged(reference) is not None
            else None
        )
        if refused is None:
            self.book.append(Charge(len(self.book) + 1, reference, request["cents"], at))
            status, answer = 201, json.dumps(self.book[-1].seen()).encode()
        else:
            status, answer = 409, json.dumps({"error": refused}).encode()
        if key is not None:
            key.status, key.answer = status, answer
        return status, answer


class _Handler(BaseHTTPRequestHandler):
    server: Bank
    timeout = 30

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if urlsplit(self.path).path == "/voids":
            self.server.void(body["reference"])
            return self._send(200, b"{}", ACCEPT)
        key = self.headers.get("Idempotency-Key")
        status, answer, way = self.server.charge({**body, "key": key})
        return self._send(status, answer, way)

    def do_GET(self) -> None:
        (reference,) = parse_qs(urlsplit(self.path).query)["reference"]
        self._send(200, json.dumps(self.server.listed(reference)).encode(), ACCEPT)

    def _send(self, status: int, answer: bytes, way: Way) -> None:
        self.close_connection = True
        if way.silent:
            self.server.closing.wait(30)
        elif not way.answers:
            # Zero seconds to linger: the client's read fails with a reset, not with an empty answer.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer) + (1000 if way.cut else 0)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if way.cut else answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing: the book is the record."""


class Answered(Exception):
    """The bank answered with an error status."""


class Refused(Answered):
    """Below 500: the bank says that this request did nothing."""


@dataclass
class Client:
    """The bank as a program sees it.

    Args:
        port: where it listens.
        patience: seconds for which a read waits.
    """

    port: int
    patience: float = 5.0
    statuses: ClassVar[Callable[[int], type[Answered]]] = lambda status: Refused if status < 500 else Answered

    def charge(self, reference: str, cents: int = 100, *, key: str | None = None, **more: Any) -> dict[str, Any]:
        """Charge; with a key, once."""
        headers = {} if key is None else {"Idempotency-Key": key}
        answer: dict[str, Any] = self._call(
            "POST", "/charges", {"reference": reference, "cents": cents, **more}, headers
        )
        return answer

    def charges(self, reference: str) -> list[dict[str, Any]]:
        """List the charges of a reference."""
        found: list[dict[str, Any]] = self._call("GET", f"/charges?reference={reference}")
        return found

    def void(self, reference: str) -> None:
        """Have a reference refused from now on."""
        self._call("POST", "/voids", {"reference": reference})

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise Client.statuses(response.status)(f"{response.status}: {answer.decode(errors='replace')}")
        return json.loads(answer)


#: What a call without an answer raises here, beside `ValueError` for an answer that is none.
NO_ANSWER = (OSError, HTTPException)
