"""What ``manage.py migrate`` does for the ledger: its own migrations, on Django's connection and in its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import current_app
from django.db.migrations.operations.base import Operation

from agent_tasks.config import Settings
from agent_tasks.errors import ConfigurationError
from agent_tasks.integrations.django.transactions import borrowed
from agent_tasks.migrate import upgrade_on

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class UpgradeLedger(Operation):
    """Bring the ledger's tables up to this release; nothing where the database is not the ledger's.

    Args:
        revision: of the ledger's migrations, which came with this one.
    """

    reduces_to_sql = False
    reversible = True  # up only: there is nothing to take back, and data is never deleted

    def __init__(self, revision: str) -> None:
        self.revision = revision

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the ledger's tables are no models."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        """Upgrade the ledger, if it is here."""
        connection = schema_editor.connection
        settings = ledger_settings()
        if settings.django_database == connection.alias:
            with borrowed(connection) as own:
                upgrade_on(own, settings.table_prefix)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        """Leave the tables as they are."""

    def describe(self) -> str:
        """Return what ``migrate --plan`` shows."""
        return f"Bring the tables of the agents' ledger up to revision {self.revision}"


def ledger_settings() -> Settings:
    """Return the settings of the project's Celery app.

    Raises:
        ConfigurationError: there is no app yet, or its ledger is in none of Django's databases.
    """
    settings = Settings.of(current_app._get_current_object())
    if settings.django_database is None:
        raise ConfigurationError(
            "agent_tasks.integrations.django is in INSTALLED_APPS, and agent_django_database is not set: set "
            "CELERY_AGENT_DJANGO_DATABASE to a name of DATABASES, or take the app out and run `celery -A … agent db upgrade`. "
            "Celery's app must be imported by the project's __init__.py."
        )
    return settings
