"""Django in a test's own process: settings once, and a database of the test's own behind each of two aliases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections
from sqlalchemy.engine import make_url


def set_up_django() -> None:
    """Configure Django for this process, unless it was."""
    if not settings.configured:
        settings.configure(
            DATABASES={"default": {}, "ledger": {}},
            INSTALLED_APPS=["tests.djangos_shop"],
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            USE_TZ=True,
        )
        django.setup()


def settings_of(url: str, **more: Any) -> dict[str, Any]:
    """Return the entry of DATABASES for a database."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parsed.database, "OPTIONS": {"timeout": 20}, **more}
    query = dict(parsed.query)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parsed.database,
        "USER": parsed.username or "",
        "PASSWORD": parsed.password or "",
        "HOST": parsed.host or query.pop("host", ""),
        "PORT": str(parsed.port or query.pop("port", "")),
        "OPTIONS": query,
        **more,
    }


@contextmanager
def databases(**entries: dict[str, Any]) -> Iterator[None]:
    """Let aliases be these databases for a while."""
    set_up_django()
    before = {alias: connections.settings[alias] for alias in entries}
    _put(entries)
    try:
        yield
    finally:
        _put(before)


def _put(entries: dict[str, dict[str, Any]]) -> None:
    for alias, entry in entries.items():
        connections[alias].close()
        del connections[alias]
        # Django fills in what an entry does not say.
        connections.settings[alias] = connections.configure_settings({"default": {}, alias: entry})[alias]
