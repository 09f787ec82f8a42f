"""Settings, read from the Celery app when they are first used, never at import."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from agent_tasks.database import parse_url
from agent_tasks.errors import ConfigurationError, SingleHostOnly, did_you_mean, install, nearest
from agent_tasks.limits import LONGEST_SECONDS
from agent_tasks.states import Mode
from agent_tasks.variables import check_variables

if TYPE_CHECKING:
    from celery import Celery

#: kombu transports that no other host can reach.
_LOCAL_TRANSPORTS = frozenset({"memory", "filesystem", "sqla", "sqlalchemy"})


@dataclass(frozen=True)
class Settings:
    """The settings of this package; each is the Celery setting ``agent_<name>``.

    Attributes:
        database_url: SQLAlchemy URL of the ledger.
        django_database: the name in Django's ``DATABASES`` of the database that the ledger is in, instead of its URL.
        table_prefix: what the ledger's table names start with.
        lease_seconds: how long a run stays with a worker that is not heard of.
        sweep_seconds: pause between two looks of the sweeper.
        ring_again_seconds: how long a queued run waits for its doorbell to be heard before it is rung again.
        queue_depth: the sweeper rings nothing while a queue holds this many messages.
        max_crashes: a step that lost its worker this often is parked for a person.
        max_steps: a run that would take more steps is parked for a person, unless its agent says another number.
        max_batch: a batch may have so many calls.
        step_timeout_seconds: no lease is renewed past this age of an attempt; a child that goes on is killed.
        retry_backoff_seconds: first pause before a doubtful keyed request is sent again; doubles each time.
        retry_backoff_max_seconds: longest such pause.
        publish_max_retries: how often a doorbell's publish is tried again before it is left to the sweeper.
        retention_days: how long a run is kept after its end; None keeps every run for good.
        dedupe_days: a run is kept at least as long after its end, so that its dedupe key and its id find it;
            ``retention_days`` if not given.
        mode: of plain tasks that do not say it themselves: ``guard``, or ``observe``, which only counts what is done twice.
        single_host: allow an SQLite ledger with a network broker.
    """

    database_url: str
    table_prefix: str = "agent_"
    lease_seconds: float = 15.0
    sweep_seconds: float = 1.0
    ring_again_seconds: float = 5.0
    queue_depth: int = 100
    max_crashes: int = 3
    max_steps: int = 10_000
    max_batch: int = 1_000
    step_timeout_seconds: float = 1800.0
    retry_backoff_seconds: float = 1.0
    retry_backoff_max_seconds: float = 600.0
    publish_max_retries: int = 3
    retention_days: float | None = None
    dedupe_days: float | None = None
    single_host: bool = False
    django_database: str | None = None
    mode: str = Mode.GUARD

    def __post_init__(self) -> None:
        if not self.database_url or not isinstance(self.database_url, str):
            raise ConfigurationError(
                "agent_database_url is not set: the ledger needs a database. For one host "
                "agent_database_url='sqlite:////var/lib/shop/agent.db' will do, with the whole path of a file (four slashes), since a relative "
                "one means another ledger in each folder; for a fleet use 'postgresql+psycopg://…'. Or copy this project's "
                "celeryconfig.py beside the app, for app.config_from_object('celeryconfig'): it takes the URL from AGENT_DATABASE_URL "
                "in the environment, which nothing else reads."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.type == "float | None"
            if (field.type in ("float", "int") or (optional and value is not None)) and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0
            ):
                raise ConfigurationError(f"agent_{field.name} must be a number above 0, got {value!r}.")
            if isinstance(value, (int, float)) and value > (most := _most(field.name)):
                raise ConfigurationError(f"agent_{field.name} must be {most:,.0f} at most, got {value!r}.")
            if field.type == "int" and not isinstance(value, int):
                raise ConfigurationError(f"agent_{field.name} must be a whole number, got {value!r}.")
        if not isinstance(self.single_host, bool):
            raise ConfigurationError(f"agent_single_host must be True or False, got {self.single_host!r}.")
        mode_named("the setting agent_mode", self.mode)
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,29}", str(self.table_prefix)):
            raise ConfigurationError(
                "agent_table_prefix must be 1 to 30 of the characters a-z, 0-9 and _, no digit first, "
                f"got {self.table_prefix!r}."
            )

    def backoff_seconds(self, tries: int) -> float:
        """Return the pause before the next try, in seconds; ``tries`` were made."""
        return min(self.retry_backoff_seconds * 2.0 ** min(max(0, tries - 1), 64), self.retry_backoff_max_seconds)

    @classmethod
    def of(cls, app: Celery) -> Settings:
        """Read the settings of an app.

        Raises:
            ConfigurationError: a value is of no use, or a name is nearly that of a setting, or of its variable in the
                environment.
            SingleHostOnly: other hosts reach the broker and not the ledger.
        """
        known = setting_names()
        for name in _given(app):
            near = nearest(name, known)
            if name.startswith("agent_") and name not in known and near:
                raise ConfigurationError(
                    f"{name} is not a setting. Did you mean {near!r}?",
                    f"write {near} in the place of {name} where the app reads its settings",
                )
        check_variables(os.environ, known, app.conf.get)
        values = {
            field.name: app.conf.get(f"agent_{field.name}", field.default)
            for field in fields(cls)
            if app.conf.get(f"agent_{field.name}") is not None
        }
        if values.get("django_database") is not None:
            values["database_url"] = _url_in_django(values)
        values.setdefault("database_url", "")
        settings = cls(**values)
        settings.check_broker(app.conf.broker_url or app.conf.broker_write_url)
        return settings

    def check_broker(self, broker_url: str | list[str] | None) -> None:
        """Refuse a broker that hosts share with a ledger that they cannot.

        Args:
            broker_url: as Celery takes it: one URL, several with ``;`` between them, or a list.

        Raises:
            SingleHostOnly: so it is, and ``agent_single_host`` is not set.
        """
        urls = (broker_url or "amqp").split(";") if not isinstance(broker_url, (list, tuple)) else broker_url
        transports = [url.split("://", 1)[0].split("+", 1)[0] for url in urls]
        shared = [transport for transport in transports if transport not in _LOCAL_TRANSPORTS]
        is_sqlite = parse_url(self.database_url).get_backend_name() == "sqlite"
        if is_sqlite and shared and not self.single_host:
            raise SingleHostOnly(
                f"the broker ({shared[0]}) can be reached by other hosts and the ledger (SQLite) cannot. Set "
                "agent_database_url to a PostgreSQL database, or agent_single_host=True if all workers and callers "
                "stay on this host for good."
            )


def setting_names() -> list[str]:
    """Return the names of the settings of this package."""
    return [f"agent_{field.name}" for field in fields(Settings)]


def mode_named(said: str, given: object) -> Mode:
    """Return the mode of this name.

    Args:
        said: who says it, for the message: the setting, or a task.
        given: the name.

    Raises:
        ConfigurationError: there is no such mode.
    """
    known = [str(mode) for mode in Mode]
    if given not in known:
        raise ConfigurationError(
            f"{said} must be one of {', '.join(known)}, got {given!r}.{did_you_mean(str(given), known)}"
        )
    return Mode(given)


def _most(name: str) -> float:
    """Return the largest value of a setting that is a number: a hundred years, or what a column holds."""
    if name.endswith("_seconds"):
        return LONGEST_SECONDS
    return LONGEST_SECONDS / 86_400 if name.endswith("_days") else 2**31 - 1


def _url_in_django(values: dict[str, Any]) -> str:
    """Return the URL of the database that Django's settings name."""
    alias: object = values["django_database"]
    if values.get("database_url"):
        raise ConfigurationError(
            f"agent_database_url and agent_django_database={alias!r} both say where the ledger is. Keep one: with the latter, "
            "the bodies of transactional calls may use Django's ORM."
        )
    if not isinstance(alias, str):
        raise ConfigurationError(f"agent_django_database must be a name in DATABASES, got {alias!r}.")
    try:
        databases = import_module("agent_tasks.integrations.django.databases")
        return str(databases.url_of(alias))
    except ImportError as error:
        raise ConfigurationError(
            f"agent_django_database={alias!r} needs Django, which is missing here ({error}): {install('django')}.",
            install("django"),
        ) from error


def _given(app: Celery) -> list[str]:
    """Names of the settings that the user gave; Celery keeps defaults in another map."""
    app.conf.get("agent_database_url")  # Celery puts off to load its configuration until a value is read
    conf: Any = app.conf
    return [str(name) for changes in conf.maps[:-1] for name in changes]
