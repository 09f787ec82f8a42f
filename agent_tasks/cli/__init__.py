"""The command line: ``celery -A app agent …`` and ``agent-tasks -A app …`` are the same commands."""

from agent_tasks.cli import checkpoints, cleanup, db, demo, inbox, observed, runs
from agent_tasks.cli.group import agent, main

__all__ = ["agent", "checkpoints", "cleanup", "db", "demo", "inbox", "main", "observed", "runs"]
