"""The Django app, whose migrations keep the ledger's tables up to date."""

from __future__ import annotations

from django.apps import AppConfig


class AgentTasksConfig(AppConfig):
    """``INSTALLED_APPS = [..., "agent_tasks.integrations.django"]``."""

    name = "agent_tasks.integrations.django"
    label = "agent_tasks"
    verbose_name = "Agent tasks"
