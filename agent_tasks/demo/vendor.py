"""The client of the shop: what the demo's tools call. One deadline bounds a whole call."""

from __future__ import annotations

import io
import json
import math
import socket
import time
from http.client import HTTPConnection, HTTPException
from typing import Any, cast
from urllib.parse import quote, urlsplit

from agent_tasks.demo.carts import Cart, receipt, total_cents
from agent_tasks.demo.shop_ledger import Effect

__all__ = ["NoAnswer", "Vendor", "VendorError", "VendorRefused", "VendorUnreachable"]


class VendorError(Exception):
    """A call of the vendor did not bring its result."""


class VendorRefused(VendorError):
    """The vendor said no: this request did not happen."""


class VendorUnreachable(VendorError):
    """No connection was made: nothing was sent, so this request did not happen."""


class NoAnswer(VendorError):
    """The request was sent and no answer came: it may or may not have happened."""


class Vendor:
    """The shop, the bank and the mail server, as a program sees them.

    Every method takes ``seconds``, the deadline of the whole call: connecting, sending and reading together.

    Args:
        url: Where the shop listens, such as ``http://127.0.0.1:8080``.

    Raises:
        ValueError: The URL is not one of plain HTTP with a host.

    Example:
        >>> Vendor("127.0.0.1:8080")
        Traceback (most recent call last):
        ValueError: the vendor's URL must look like http://127.0.0.1:8080, got '127.0.0.1:8080'.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"the vendor's URL must look like http://127.0.0.1:8080, got {url!r}.")
        self._host = parts.hostname
        self._port = parts.port or 80

    def create_order(self, cart: Cart, *, key: str, seconds: float) -> dict[str, Any]:
        """Order a cart; the same key gives the same order.

        Args:
            cart: The cart.
            key: Goes out as ``Idempotency-Key``.
            seconds: Deadline of the whole call.

        Returns:
            The order: its ``id``, ``cart``, ``cents`` and ``currency``.
        """
        body = {"cart": cart["id"], "items": cart["items"], "cents": total_cents(cart), "currency": cart["currency"]}
        return cast("dict[str, Any]", self._json("POST", "/orders", body, seconds, {"Idempotency-Key": key}))

    def charge(self, order: dict[str, Any], *, reference: str, seconds: float) -> dict[str, Any]:
        """Charge an order. The same reference charges again: the bank only remembers it.

        Args:
            order: What :meth:`create_order` returned.
            reference: Under which :meth:`charges` finds the charge.
            seconds: Deadline of the whole call.

        Returns:
            The charge: its ``id``, ``order``, ``cents``, ``currency`` and ``reference``.
        """
        body = {
            "order": order["id"],
            "cents": order["cents"],
            "currency": order["currency"],
            "reference": reference,
        }
        return cast("dict[str, Any]", self._json("POST", "/charges", body, seconds))

    def charges(self, reference: str, *, seconds: float) -> list[dict[str, Any]]:
        """Look up the charges with a reference, oldest first; none if none happened."""
        path = f"/charges?reference={quote(reference, safe='')}"
        return cast("list[dict[str, Any]]", self._json("GET", path, None, seconds))

    def send_mail(self, cart: Cart, order_id: str, *, seconds: float) -> dict[str, Any]:
        """Send the receipt of an order. No key, no look-up: each call sends a mail.

        Args:
            cart: Whose customer gets the mail.
            order_id: The ``id`` of the order.
            seconds: Deadline of the whole call.

        Returns:
            ``{"accepted": True}``; a mail server has no more to say.
        """
        body = {"order": order_id, **receipt(cart, order_id)}
        return cast("dict[str, Any]", self._json("POST", "/mails", body, seconds))

    def mail_log(self, *, seconds: float = 10.0) -> str:
        """The mail server's log, for the eyes of an operator."""
        return self._call("GET", "/mail-log", None, seconds, {}).decode()

    def ledger(self, *, seconds: float = 10.0) -> list[Effect]:
        """What really happened, by the shop's own book. No tool may look here."""
        return cast("list[Effect]", self._json("GET", "/ledger", None, seconds))

    def _json(self, method: str, path: str, body: object, seconds: float, headers: dict[str, str] | None = None) -> Any:
        answer = self._call(method, path, body, seconds, headers or {})
        try:
            return json.loads(answer)
        except ValueError as error:
            raise NoAnswer(f"{self._what(method, path)}: the answer is not JSON. It may have happened.") from error

    def _call(self, method: str, path: str, body: object, seconds: float, headers: dict[str, str]) -> bytes:
        if not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be above 0 and finite, got {seconds}.")
        what = self._what(method, path)
        content = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + seconds
        try:
            wire = socket.create_connection((self._host, self._port), timeout=seconds)
        except OSError as error:
            raise VendorUnreachable(f"{what}: no connection ({error}). Is the shop running?") from error
        connection = HTTPConnection(self._host, self._port)
        connection.sock = cast("socket.socket", _TimedSocket(wire, deadline))
        try:
            with wire:
                connection.request(method, path, body=content, headers={"Content-Type": "application/json", **headers})
                response = connection.getresponse()
                answer = response.read()
        except (OSError, HTTPException) as error:
            raise NoAnswer(f"{what}: no answer within {seconds:g} s ({error!r}). It may have happened.") from error
        if response.status >= 500:
            raise NoAnswer(f"{what}: answer {response.status}. It may have happened.")
        if response.status >= 400:
            raise VendorRefused(f"{what}: refused with {response.status}: {_sentence(answer)}")
        return answer

    def _what(self, method: str, path: str) -> str:
        return f"{method} {path} at {self._host}:{self._port}"


class _TimedSocket:
    """A socket whose sends and reads share one deadline; its own time-out would start anew with each of them.

    It has what :class:`http.client.HTTPConnection` uses. Whoever made the real socket closes it.
    """

    def __init__(self, wire: socket.socket, deadline: float) -> None:
        self._wire = wire
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self.bounded().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", mode
        return io.BufferedReader(_TimedReads(self))

    def close(self) -> None:
        """Nothing to do: the answer may still be read."""

    def bounded(self) -> socket.socket:
        """The socket, with what is left until the deadline as its time-out."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the call has passed")
        self._wire.settimeout(left)
        return self._wire


class _TimedReads(io.RawIOBase):
    def __init__(self, timed: _TimedSocket) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.bounded().recv_into(buffer)


def _sentence(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")
