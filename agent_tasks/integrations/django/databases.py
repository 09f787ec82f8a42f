"""The ledger's URL, of one of Django's ``DATABASES``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from agent_tasks.database import DRIVERS
from agent_tasks.errors import ConfigurationError, did_you_mean
from checkpoint.postgresql import PREPARE_THRESHOLD

#: ``OPTIONS`` about how Django itself uses a connection; the ledger's own connections are set up as the ledger needs them.
_DJANGOS_OWN = frozenset(
    {"isolation_level", "pool", "server_side_binding", "cursor_factory", "client_encoding", "context"}
)
_OF_SQLITE = frozenset(
    {"timeout", "transaction_mode", "init_command", "uri", "check_same_thread", "isolation_level", "factory"}
)


def url_of(alias: str) -> str:
    """Return the SQLAlchemy URL of one of Django's databases.

    Args:
        alias: its name in ``DATABASES``.

    Raises:
        ConfigurationError: there is none of this name, or the ledger cannot use it, or not in the way that an option says.
    """
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    subject = f"agent_django_database={alias!r}"
    try:
        known = list(connections.settings)
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"{subject} needs Django's settings: {error}") from error
    if alias not in known:
        raise ConfigurationError(
            f"{subject} must be one of the names in DATABASES ({', '.join(map(repr, known))}).{did_you_mean(alias, known)}"
        )
    connection: Any = connections[alias]
    settings = connection.settings_dict
    if connection.vendor not in DRIVERS:
        raise ConfigurationError(
            f"{subject} is on {connection.display_name}, and the ledger needs PostgreSQL or SQLite: name another database of "
            "DATABASES, or set agent_database_url."
        )
    if not settings.get("AUTOCOMMIT", True):
        raise ConfigurationError(
            f"{subject} has AUTOCOMMIT=False, where nobody says when a run is committed. Leave it out."
        )
    url = _sqlite(subject, settings) if connection.vendor == "sqlite" else _postgresql(subject, settings)
    return url.render_as_string(hide_password=False)


def _sqlite(subject: str, settings: dict[str, Any]) -> URL:
    name = str(settings["NAME"])
    if name == ":memory:" or "mode=memory" in name:
        raise ConfigurationError(
            f"{subject} is an SQLite database in memory, which no other process sees. For tests with a worker, give "
            "DATABASES a file: TEST={'NAME': …}."
        )
    _refuse(subject, [option for option in settings["OPTIONS"] if option not in _OF_SQLITE])
    return URL.create("sqlite", database=str(Path(name).absolute()) if not name.startswith("file:") else name)


def _postgresql(subject: str, settings: dict[str, Any]) -> URL:
    options = {name: value for name, value in settings["OPTIONS"].items() if name not in _DJANGOS_OWN}
    # What libpq takes is a text or a number; assume_role is Django's own, and the ledger would work as another role.
    kinds = {PREPARE_THRESHOLD: (str, int, type(None))}
    _refuse(
        subject,
        [
            name
            for name, value in options.items()
            if name == "assume_role" or not isinstance(value, kinds.get(name, (str, int)))
        ],
    )
    host, name = str(settings["HOST"] or ""), str(settings["NAME"] or "")
    if not name and "service" not in options:
        raise ConfigurationError(f"{subject} has neither a NAME nor OPTIONS={{'service': …}}.")
    elsewhere = host.startswith("/") or "," in host  # a folder of sockets, or several hosts
    if elsewhere:
        options["host"] = host
        if settings["PORT"]:
            options["port"] = str(settings["PORT"])
    return URL.create(
        f"postgresql+{DRIVERS['postgresql']}",
        username=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        host=None if elsewhere else host or None,
        port=int(settings["PORT"]) if settings["PORT"] and not elsewhere else None,
        database=name or None,
        query={option: str(value) for option, value in options.items()},
    )


def _refuse(subject: str, options: list[str]) -> None:
    if options:
        raise ConfigurationError(
            f"{subject} has OPTIONS that the ledger's own connections cannot take over: {', '.join(options)}. Set "
            "agent_database_url to the database's URL instead; enqueue(connection=) works with both."
        )
