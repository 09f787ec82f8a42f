"""The ledger that a command works on: an app's, or the one at a URL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_tasks.cli.errors import AmbiguousId, BeginningTooShort, NoSuchLedgerFile
from agent_tasks.config import Settings
from agent_tasks.database import parse_url
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import ConfigurationError, InboxItemNotFound, RunNotFound
from agent_tasks.identity import ITEM_PREFIX
from agent_tasks.integration import AppState
from agent_tasks.listing import MAX_COMPLETIONS, MIN_BEGINNING, Listing
from agent_tasks.runtime import Runtime
from agent_tasks.schema import tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from sqlalchemy import Connection


@dataclass
class Target:
    """What the options of a command name.

    Args:
        app: the Celery app.
        url: of the ledger; the app's setting if not given.
        table_prefix: of the ledger at ``url``.
    """

    app: Celery
    url: str | None
    table_prefix: str | None

    @cached_property
    def settings(self) -> Settings:
        """The settings of the app, or those that the URL stands for.

        Raises:
            ConfigurationError: they cannot be used.
        """
        if self.url is not None:
            return Settings(self.url) if self.table_prefix is None else Settings(self.url, self.table_prefix)
        if self.table_prefix is not None:
            raise ConfigurationError("--table-prefix belongs to --url; an app says it with agent_table_prefix.")
        return Settings.of(self.app)

    @property
    def missing_file(self) -> str | None:
        """The path of an SQLite ledger's file that is not there; a look would make it, and answer that all is well."""
        url = parse_url(self.settings.database_url)
        path = str(url.database)
        if url.get_backend_name() != "sqlite" or path.startswith("file:") or Path(path).exists():
            return None
        return path

    @cached_property
    def runtime(self) -> Runtime:
        """What the command works with.

        Raises:
            NoSuchLedgerFile: there is none.
        """
        if self.missing_file is not None:
            raise NoSuchLedgerFile(f"no such ledger file: {Path(self.missing_file).absolute()}")
        if self.url is None:
            return AppState.of(self.app).runtime
        # No broker is known, so nobody hears this bell: the sweeper of a worker finds the run that is queued.
        return Runtime(self.settings, InlineBell)

    @cached_property
    def listing(self) -> Listing:
        """Reading statements on this ledger."""
        return Listing(tables(self.settings.table_prefix), self.runtime.clock)

    def close(self) -> None:
        """Close the connections of a runtime that was made here; an app's runtime is the app's."""
        if self.url is not None and "runtime" in self.__dict__:
            self.runtime.engine.dispose()

    def read(self, work: Callable[[Connection], Any]) -> Any:
        """Run a transaction that only reads."""
        return self.runtime.boundary.read(self.runtime.engine, work)

    def run_id(self, beginning: str) -> str:
        """Complete a run id.

        Raises:
            RunNotFound, AmbiguousId: not exactly one begins so.
            BeginningTooShort: it is no whole id, and has too few characters to stand for one.
        """
        found: list[str] = self.read(lambda connection: self.listing.run_ids(connection, beginning))
        if not found:
            raise RunNotFound(f"no run id begins with {beginning!r} in this ledger.")
        return _only("run", beginning, found)

    def item_id(self, beginning: str) -> str:
        """Complete the id of an inbox item.

        Raises:
            InboxItemNotFound, AmbiguousId: not exactly one begins so.
            BeginningTooShort: it is no whole id, and has too few characters to stand for one.
        """
        found: list[str] = self.read(lambda connection: self.listing.item_ids(connection, beginning))
        if not found:
            raise InboxItemNotFound(f"no inbox item's id begins with {beginning!r} in this ledger.")
        return _only("inbox item", beginning, found, ITEM_PREFIX)


def _only(noun: str, beginning: str, found: list[str], prefix: str = "") -> str:
    if len(beginning.removeprefix(prefix)) < MIN_BEGINNING and found != [beginning]:
        after = f" after {prefix!r}" if prefix else ""
        raise BeginningTooShort(
            f"{beginning!r} is too short to stand for the id of the {noun} that is meant: give at least {MIN_BEGINNING} of "
            f"its characters{after}, or all of it."
        )
    if len(found) > 1:
        more = " …" if len(found) == MAX_COMPLETIONS else ""
        raise AmbiguousId(f"{beginning!r} is the beginning of more than one {noun} id: {', '.join(found)}{more}")
    return found[0]
