"""The mail server's own log: programs cannot ask it about a mail, a person can read it."""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime, timezone
from pathlib import Path

__all__ = ["MailLog", "deliveries"]


class MailLog:
    """A text file with one line a delivered mail.

    Args:
        path: The file; made if it is missing, continued if it is there.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._path.touch()

    def delivered(self, to: str, subject: str, happened_at: int) -> None:
        """Write down a delivery; the line is on disk when this returns.

        Args:
            to: The address of the receiver.
            subject: The subject of the mail.
            happened_at: Microseconds since 1970, UTC.
        """
        moment = datetime.fromtimestamp(happened_at / 1_000_000, timezone.utc).isoformat(timespec="milliseconds")
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(f"{moment} {_entry(to, subject)}\n")
            file.flush()
            os.fsync(file.fileno())

    def text(self) -> str:
        """The whole log."""
        return self._path.read_text(encoding="utf-8")


def deliveries(log: str, to: str, subject: str) -> list[str]:
    """The lines of a mail log that tell of one mail: what an operator looks for.

    Args:
        log: The text of the log.
        to: The address of the receiver.
        subject: The subject of the mail.

    Returns:
        The lines, oldest first; none if the server never delivered it.

    Example:
        >>> line = '2026-03-01T08:00:00.000+00:00 delivered to="kim@example.com" subject="Hello"'
        >>> deliveries(line, "kim@example.com", "Hello") == [line]
        True
    """
    # Not splitlines: it also splits at characters that are allowed inside of a quoted subject.
    return [line for line in log.split("\n") if line.partition(" ")[2] == _entry(to, subject)]


def _entry(to: str, subject: str) -> str:
    # Quoted as JSON, so that no subject can look like a second line.
    return f"delivered to={json.dumps(to, ensure_ascii=False)} subject={json.dumps(subject, ensure_ascii=False)}"
