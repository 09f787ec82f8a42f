"""Deleting old runs: by the sweeper, where ``agent_retention_days`` is set, or when a person says so."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from agent_tasks.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

#: Runs that are looked up at once, and that one sweep deletes at the most.
BATCH = 100

_DAY_SECONDS = 86400.0


def cleanup(app: Celery, *, older_than: timedelta | None = None, dry_run: bool = False) -> int:
    """Delete the runs that ended long ago, each with its operations, questions, audit trail and checkpoints.

    A run stays for as long as a vendor honours one of its keys, ``agent_dedupe_days`` have not passed since its end, one of
    its operations is in doubt, a question about it is open, or Celery has still to be told its result.

    Args:
        app: whose ledger is meant.
        older_than: since the runs' end; ``agent_retention_days`` if not given.
        dry_run: delete nothing.

    Returns:
        How many runs were deleted; with ``dry_run``, how many would be.

    Raises:
        ConfigurationError: neither ``older_than`` nor ``agent_retention_days`` says what is old.
        LedgerUnavailable: the database did not answer; what was deleted by then stays deleted.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="memory://")
        >>> app.conf.agent_database_url = f"sqlite:///{directory}/agent.db"
        >>> cleanup(app, older_than=timedelta(days=30), dry_run=True)
        0
    """
    from agent_tasks.integration import AppState

    return clean_up(AppState.of(app).runtime, older_than=older_than, dry_run=dry_run)


def clean_up(runtime: Runtime, *, older_than: timedelta | None, dry_run: bool) -> int:
    """See :func:`cleanup`."""
    seconds = _seconds_of(runtime, older_than)
    if dry_run:
        return runtime.boundary.read(
            runtime.engine, lambda connection: runtime.retention.count(connection, older_than_seconds=seconds)
        )
    deleted = 0
    while batch := _delete_some(runtime, seconds):
        deleted += batch
    return deleted


def clean_some(runtime: Runtime) -> int:
    """Delete a batch of the runs that the settings call old; return how many there were."""
    return 0 if runtime.settings.retention_days is None else _delete_some(runtime, _seconds_of(runtime, None))


def _seconds_of(runtime: Runtime, older_than: Any) -> float:
    settings = runtime.settings
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than < timedelta(0)):
        raise ConfigurationError(
            f"older_than must be a timedelta of 0 or more, got {older_than!r}; nothing was deleted."
        )
    if older_than is not None:
        seconds: float = older_than.total_seconds()
    elif settings.retention_days is not None:
        seconds = settings.retention_days * _DAY_SECONDS
    else:
        raise ConfigurationError(
            "nothing says what is old: give older_than (on the command line --older-than DAYS), or set "
            "agent_retention_days. Nothing was deleted."
        )
    return max(seconds, (settings.dedupe_days or 0.0) * _DAY_SECONDS)


def _delete_some(runtime: Runtime, seconds: float) -> int:
    find = partial(runtime.retention.find, older_than_seconds=seconds, limit=BATCH)
    deleted = 0
    for run_id in runtime.boundary.read(runtime.engine, find):
        delete = partial(runtime.retention.delete, run_id=run_id, older_than_seconds=seconds)
        try:
            deleted += runtime.boundary.commit("cleanup", runtime.engine, delete)
        except SQLAlchemyError as error:  # one bad row must not keep the others
            logger.warning(
                "run %s was not deleted: %s", run_id, error, extra={"action": "cleanup_failed", "run_id": run_id}
            )
    if deleted:
        logger.info("%d old runs were deleted", deleted, extra={"action": "runs_deleted", "count": deleted})
    return deleted
