"""A local shop over HTTP, in a process of its own: the outside world of the demo.

What it offers is what real vendors offer, and no more: an order honours an ``Idempotency-Key``; a charge can be looked
up by its ``reference``, but is made again if it is asked for again; a mail is sent each time, and nobody but a person who
reads the mail server's log can tell whether it was.

Start it with ``python -m agent_tasks.demo.shop --ledger shop.db --ready shop.url``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from agent_tasks.demo.mail_log import MailLog
from agent_tasks.demo.shop_ledger import Effect, KeyTaken, ShopLedger

__all__ = ["ShopServer", "main"]

#: Longest body of a request, in bytes.
_MAX_BODY = 1_000_000
#: Bytes that are taken and thrown away of a body that was not read.
_MAX_UNREAD = 16_000_000
#: Seconds after which a client that sends nothing is let go.
_CLIENT_SECONDS = 30.0


class _BadRequest(Exception):
    """A request that changes nothing: the status and the sentence of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ShopServer(ThreadingHTTPServer):
    """The shop, the bank and the mail server behind one port of 127.0.0.1.

    Args:
        ledger_path: The SQLite file of what really happened; the mail log lies beside it as ``<ledger>.mail.log``.
        port: The port; 0 takes a free one.
        latency_seconds: How long each answer is held back after its effect happened.
    """

    # A worker that starts up opens more connections at once than the five of the standard library.
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, ledger_path: str | Path, *, port: int = 0, latency_seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.ledger = ShopLedger(ledger_path)
        self.mail_log = MailLog(f"{ledger_path}.mail.log")
        self.latency_seconds = latency_seconds

    @property
    def url(self) -> str:
        """Where the shop listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of the shop; a client that died before its answer came is what the demo is about."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Stop listening and close the ledger."""
        super().server_close()
        self.ledger.close()


class _Handler(BaseHTTPRequestHandler):
    server: ShopServer
    timeout = _CLIENT_SECONDS
    _body_is_read = False

    def do_GET(self) -> None:
        self._answer(self._GETS)

    def do_POST(self) -> None:
        self._answer(self._POSTS)

    def _order(self) -> tuple[int, object]:
        body = self._body(cart=_TEXT, cents=_CENTS, currency=_TEXT)
        key = self.headers.get("Idempotency-Key")
        if key is None:
            return 201, _seen(self.server.ledger.append("order", None, body))
        try:
            effect, new = self.server.ledger.append_once("order", key, body)
        except KeyTaken as error:
            message = f"Idempotency-Key {key!r} came before with another body. Send that body, or use a new key."
            raise _BadRequest(409, message) from error
        return (201 if new else 200), _seen(effect)

    def _charge(self) -> tuple[int, object]:
        body = self._body(order=_TEXT, cents=_CENTS, currency=_TEXT, reference=_TEXT)
        return 201, _seen(self.server.ledger.append("charge", body["reference"], body))

    def _charges(self) -> tuple[int, object]:
        references = parse_qs(urlsplit(self.path).query).get("reference", [])
        if len(references) != 1:
            raise _BadRequest(400, f"GET /charges needs one reference, got {len(references)}. Ask ?reference=….")
        return 200, [_seen(effect) for effect in self.server.ledger.find("charge", references[0])]

    def _mail(self) -> tuple[int, object]:
        body = self._body(order=_TEXT, to=_TEXT, subject=_TEXT, text=_TEXT)
        effect = self.server.ledger.append("mail", None, body)
        self.server.mail_log.delivered(body["to"], body["subject"], effect["happened_at"])
        # No id: there is nothing that a program could ask about later.
        return 202, {"accepted": True}

    def _mail_log(self) -> tuple[int, object]:
        return 200, self.server.mail_log.text()

    def _ledger(self) -> tuple[int, object]:
        return 200, self.server.ledger.effects()

    _GETS: ClassVar[dict[str, Callable[[_Handler], tuple[int, object]]]] = {
        "/charges": _charges,
        "/mail-log": _mail_log,
        "/ledger": _ledger,
    }
    _POSTS: ClassVar[dict[str, Callable[[_Handler], tuple[int, object]]]] = {
        "/orders": _order,
        "/charges": _charge,
        "/mails": _mail,
    }

    def _answer(self, routes: dict[str, Callable[[_Handler], tuple[int, object]]]) -> None:
        try:
            status, answer = routes.get(urlsplit(self.path).path, _Handler._nowhere)(self)
        except _BadRequest as error:
            status, answer = error.status, {"error": str(error)}
        # After the effect, so that a client that gives up or dies meanwhile is in doubt about something that happened.
        time.sleep(self.server.latency_seconds)
        self._send(status, answer)
        self._discard_unread()

    def _discard_unread(self) -> None:
        """Take what is left of the body: a client that is still sending when the connection ends never sees its answer."""
        length = self.headers.get("Content-Length", "")
        left = (
            0 if self._body_is_read or not length.isascii() or not length.isdigit() else min(int(length), _MAX_UNREAD)
        )
        while left > 0 and (taken := len(self.rfile.read1(min(left, 65_536)))):
            left -= taken

    def _nowhere(self) -> tuple[int, object]:
        there = ", ".join([*(f"GET {path}" for path in self._GETS), *(f"POST {path}" for path in self._POSTS)])
        raise _BadRequest(404, f"{self.command} {self.path} is not here. There is {there}.")

    def _send(self, status: int, answer: object) -> None:
        if isinstance(answer, str):
            content_type, content = "text/plain", answer.encode()
        else:
            content_type, content = "application/json", json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self, **fields: tuple[str, Callable[[Any], bool]]) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _BadRequest(411, f"Content-Length must be a number of bytes, got {length!r}.")
        if int(length) > _MAX_BODY:
            raise _BadRequest(413, f"the body must be at most {_MAX_BODY} bytes, got {length}.")
        self._body_is_read = True
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise _BadRequest(400, f"the body ended after {len(content)} of {length} bytes.")
        try:
            body = json.loads(content, parse_constant=_no_constant)
            json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise _BadRequest(400, f"the body must be JSON in UTF-8: {error}.") from error
        if not isinstance(body, dict):
            raise _BadRequest(400, f"the body must be a JSON object, got {type(body).__name__}.")
        for name, (expected, holds) in fields.items():
            if name not in body:
                raise _BadRequest(400, f"{name} is missing; it must be {expected}.")
            if not holds(body[name]):
                raise _BadRequest(400, f"{name} must be {expected}, got {body[name]!r}.")
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing: the ledger is the record, and the demo's view has the terminal."""


_TEXT = ("a text that is not empty", lambda value: isinstance(value, str) and value != "")
_CENTS = ("a whole number of cents above 0", lambda value: type(value) is int and value > 0)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _seen(effect: Effect) -> dict[str, Any]:
    """An effect as the client sees it."""
    return {**effect["body"], "id": effect["id"]}


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        arguments: The command line without the program; that of the process by default.
    """
    parser = argparse.ArgumentParser(prog="python -m agent_tasks.demo.shop", description="The demo's outside world.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 (default) takes a free one")
    parser.add_argument("--ledger", type=Path, required=True, help="SQLite file of what really happened")
    parser.add_argument("--ready", type=Path, help="file that gets the shop's URL once it listens")
    parser.add_argument("--latency-seconds", type=float, default=0.0, help="hold each answer back for so long")
    options = parser.parse_args(arguments)
    if not 0 <= options.latency_seconds < float("inf"):
        parser.error(f"--latency-seconds must be 0 or more, got {options.latency_seconds}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ShopServer(options.ledger, port=options.port, latency_seconds=options.latency_seconds) as server:
        if options.ready is not None:
            # Renamed into place, so that whoever waits for the file never reads half a URL.
            partial = options.ready.with_name(f"{options.ready.name}.partial")
            partial.write_text(server.url, encoding="utf-8")
            partial.replace(options.ready)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
