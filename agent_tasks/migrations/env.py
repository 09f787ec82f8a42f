"""Alembic's environment: migrates on the connection that ``agent_tasks.migrate`` hands over, in its transaction."""

from alembic import context

connection = context.config.attributes["connection"]
prefix = context.config.attributes["prefix"]
context.configure(connection=connection, version_table=f"{prefix}version", transactional_ddl=False)
context.run_migrations()
