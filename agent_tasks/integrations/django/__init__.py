"""Django: its database as the ledger, its transactions, its migrations, and a base class for its tasks.

``INSTALLED_APPS`` needs ``"agent_tasks.integrations.django"`` for the migrations; :class:`agent_tasks.integrations.django.task.AgentTask`
is the base class of tasks.
"""
