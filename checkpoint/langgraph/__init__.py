"""A LangGraph checkpointer on this package's SQL stores; see `CheckpointSaver`. Needs the extra `langgraph`."""

from __future__ import annotations

try:
    import langgraph.checkpoint.base as _base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "checkpoint.langgraph needs LangGraph's checkpoint package: pip install 'celery-agent-tasks[langgraph]'"
    ) from error

from checkpoint.langgraph.errors import ThreadConflict, ThreadCorrupted
from checkpoint.langgraph.saver import CheckpointSaver

__all__ = ["CheckpointSaver", "ThreadConflict", "ThreadCorrupted"]
