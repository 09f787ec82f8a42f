"""Deleting old runs: by the sweeper, where ``agent_retention_days`` is set, or when a person says so."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_tasks.declarations import in_seconds
from agent_tasks.errors import ConfigurationError, LedgerUnavailable
from agent_tasks.limits import LONGEST
from agent_tasks.retention import Deletion, Place
from agent_tasks.retries import said_of

if TYPE_CHECKING:
    from celery import Celery

    from agent_tasks.runtime import Runtime

logger = logging.getLogger(__name__)

#: Runs that are looked up at once, and that one sweep deletes at the most.
BATCH = 100

#: Looks at runs whose rows are held, and the pause between two of them in seconds; another cleanup deletes a run in less.
_LOOKS, _PAUSE_SECONDS = 10, 0.1

_HELD = "somebody holds its row"

_DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class NotDeleted:
    """An old run that nobody needs any more, and that could not be deleted.

    Attributes:
        run_id: of the run.
        why: in words.
    """

    run_id: str
    why: str


@dataclass(frozen=True)
class Kept:
    """Old runs that stay, since somebody needs them.

    Attributes:
        runs: how many.
        why: in words.
    """

    runs: int
    why: str


@dataclass(frozen=True)
class Cleaned:
    """What a cleanup did.

    Attributes:
        deleted: how many runs were deleted; with ``dry_run``, how many would be.
        left: the runs that it had to leave, in the order of their ends; the next cleanup tries them again.
        kept: how many other runs ended long enough ago and stay, and why; each is counted once.
    """

    deleted: int = 0
    left: tuple[NotDeleted, ...] = ()
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True)
class Batch(Cleaned):
    """A part of a cleanup; what follows stands behind ``last``, which is None at the end."""

    last: Place | None = None


def cleanup(app: Celery, *, older_than: timedelta | None = None, dry_run: bool = False) -> Cleaned:
    """Delete the runs that ended long ago, each with its operations, questions, audit trail and checkpoints.

    A run stays for as long as a vendor honours one of its keys, ``agent_dedupe_days`` have not passed since its end, one of
    its operations is in doubt, a question about it is open, Celery has still to be told its result, or a later call with the
    same ``dedupe_on`` has not ended. A run that cannot be deleted is passed over, and keeps no other.

    Args:
        app: whose ledger is meant.
        older_than: since the runs' end; ``agent_retention_days`` if not given.
        dry_run: delete nothing.

    Returns:
        How many runs were deleted, which were left because something failed or somebody held their rows, and how many
        are kept, such as for the life of a key.

    Raises:
        ConfigurationError: neither ``older_than`` nor ``agent_retention_days`` says what is old.
        LedgerUnavailable: the database did not answer; what was deleted by then stays deleted.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="memory://")
        >>> app.conf.agent_database_url = f"sqlite:///{directory}/agent.db"
        >>> cleanup(app, older_than=timedelta(days=30))
        Cleaned(deleted=0, left=(), kept=())
    """
    from agent_tasks.integration import AppState

    return clean_up(AppState.of(app).runtime, older_than=older_than, dry_run=dry_run)


def clean_up(runtime: Runtime, *, older_than: timedelta | None, dry_run: bool) -> Cleaned:
    """See :func:`cleanup`."""
    seconds = _seconds_of(runtime, older_than)
    if dry_run:
        count = partial(runtime.retention.count, older_than_seconds=seconds)
        return Cleaned(runtime.boundary.read(runtime.engine, count), kept=_kept(runtime, seconds))
    batch = _delete_some(runtime, seconds, None)
    deleted, left = batch.deleted, batch.left
    while batch.last is not None:
        batch = _delete_some(runtime, seconds, batch.last)
        deleted, left = deleted + batch.deleted, left + batch.left
    return Cleaned(deleted, left, _kept(runtime, seconds))


def _kept(runtime: Runtime, seconds: float) -> tuple[Kept, ...]:
    look = partial(runtime.retention.kept, older_than_seconds=seconds)
    return tuple(Kept(runs, why) for runs, why in runtime.boundary.read(runtime.engine, look))


def clean_some(runtime: Runtime, after: Place | None = None) -> Batch:
    """Delete a batch of the runs that the settings call old, of those behind ``after`` if it is given."""
    return (
        Batch() if runtime.settings.retention_days is None else _delete_some(runtime, _seconds_of(runtime, None), after)
    )


def _seconds_of(runtime: Runtime, older_than: Any) -> float:
    settings = runtime.settings
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than < timedelta(0)):
        raise ConfigurationError(
            f"older_than must be a timedelta of 0 or more, got {older_than!r}; nothing was deleted.{in_seconds(older_than)}"
        )
    if older_than is not None and older_than > LONGEST:
        raise ConfigurationError(
            f"older_than must be a hundred years at most, got {older_than!r}; nothing was deleted."
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


def _delete_some(runtime: Runtime, seconds: float, after: Place | None) -> Batch:
    find = partial(runtime.retention.find, older_than_seconds=seconds, limit=BATCH, after=after)
    found = runtime.boundary.read(runtime.engine, find)
    last, why = found[-1] if len(found) == BATCH else None, dict[Place, str]()
    deleted, stopped_at = _delete_each(runtime, seconds, found, why)
    for _ in range(_LOOKS - 1):
        # Who holds a row may be another cleanup, and what that has deleted was not left.
        held = [place for place in found if why.get(place) == _HELD]
        if not held:
            break
        time.sleep(_PAUSE_SECONDS)
        more, gave_up = _delete_each(runtime, seconds, held, why)
        deleted += more
        if gave_up is not None:
            break
    if deleted:
        logger.info("%d old runs were deleted", deleted, extra={"action": "runs_deleted", "count": deleted})
    left = tuple(_not_deleted(place.run_id, why[place]) for place in found if place in why)
    return Batch(deleted, left, last=stopped_at or last)


def _delete_each(
    runtime: Runtime, seconds: float, places: list[Place], why: dict[Place, str]
) -> tuple[int, Place | None]:
    """Delete runs and note ``why`` one could not be; return how many were, and where the ledger gave no answer."""
    deleted = 0
    for place in places:
        why.pop(place, None)
        try:
            deletion = _delete(runtime, place.run_id, seconds)
        except LedgerUnavailable as error:  # of this row's locks or of everything: the next look at the ledger tells
            why[place] = str(error)
            return deleted, place
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this row must not keep the others
            why[place] = said_of(error)
            continue
        deleted += deletion is Deletion.DONE
        if deletion is Deletion.HELD:
            why[place] = _HELD
    return deleted, None


def _delete(runtime: Runtime, run_id: str, seconds: float) -> Deletion:
    delete = partial(runtime.retention.delete, run_id=run_id, older_than_seconds=seconds)
    return runtime.boundary.commit("cleanup", runtime.engine, delete)


def _not_deleted(run_id: str, why: str) -> NotDeleted:
    logger.warning("run %s was not deleted: %s", run_id, why, extra={"action": "cleanup_failed", "run_id": run_id})
    return NotDeleted(run_id, why)
