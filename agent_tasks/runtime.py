"""Everything that one worker process holds: one object, so that a test can let it die as a whole."""

from __future__ import annotations

import os
import secrets
import threading
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_tasks.boundary import Boundary
from agent_tasks.clock import Clock
from agent_tasks.database import open_engine, parse_url
from agent_tasks.decisions import Decisions
from agent_tasks.doorbell import Bell, CeleryBell, Ring
from agent_tasks.due import Due
from agent_tasks.folded import Folded
from agent_tasks.inbox import Inbox
from agent_tasks.ledger import Ledger
from agent_tasks.meeting import warn_if_missed
from agent_tasks.migrate import OPENING, upgrade
from agent_tasks.recorder import Recorder
from agent_tasks.retention import Retention
from agent_tasks.runs import Runs
from agent_tasks.schema import tables
from agent_tasks.slots import Slots
from agent_tasks.states import FINISHED, RunStatus
from checkpoint.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery
    from sqlalchemy import Engine

    from agent_tasks.boundary import Transactions
    from agent_tasks.config import Settings


class Runtime:
    """What a worker process works with: the ledger's engine, its statements, the clock, the bell, the slots.

    Args:
        settings: of the Celery app.
        boundary: every commit, publish, ack and effect passes it.
        bell: makes the carrier of doorbells; Celery's is made for an app by :meth:`of`.
        engine: of the ledger; one is made of ``settings.database_url`` if not given.
        clock: tests move it.
        slots: what the heartbeat reads; a table of this process's own if not given.
    """

    #: False where the ledger ends with the run: nobody will look into it, or answer.
    is_kept: bool = True

    def __init__(
        self,
        settings: Settings,
        bell: Callable[[Boundary], Bell],
        *,
        boundary: Boundary | None = None,
        engine: Engine | None = None,
        clock: Clock | None = None,
        slots: Slots | None = None,
    ) -> None:
        self.settings = settings
        self.boundary = boundary or Boundary()
        self.clock = clock or Clock()
        self.engine = engine or open_engine(settings.database_url)
        #: Django's way to the ledger's database, where the ledger is one of Django's: the bodies of transactional calls use it.
        self.transactions: Transactions | None = None
        if settings.django_database is not None:  # by name, since Django is an extra
            django = import_module("agent_tasks.integrations.django.transactions")
            self.transactions = django.DjangoLedger(settings.django_database, settings.table_prefix)
        self.bell = bell(self.boundary)
        self.tables = tables(settings.table_prefix)
        self.runs = Runs(self.tables, self.clock, settings)
        self.decisions, self.due = Decisions(self.runs), Due(self.runs)
        self.ledger = Ledger(self.tables, self.clock)
        self.inbox = Inbox(self.tables, self.clock, self.decisions, self.ledger)
        self.store = SqlStore(self.engine, prefix=f"{settings.table_prefix}checkpoint_")
        #: What is done in one statement where it goes as usual; None where the database has no such statements.
        self.folded = Folded.of(self.tables, self.store, self.clock, self.engine)
        self.retention = Retention(self.tables, self.clock, self.store)
        self.recorder = Recorder(self)
        #: Threads that a batch of calls may use, whatever it says; the explorer's plays take one way with 1.
        self.most_threads: int | None = None
        self._slots, self._slots_lock = slots, threading.Lock()
        #: Random for each start: containers share host names and boot ids.
        self.owner = f"{uuid.getnode():x}-{os.getpid()}-{secrets.token_hex(6)}"

    @classmethod
    def of(cls, app: Celery, settings: Settings) -> Runtime:
        """Make the runtime of a Celery app in this process.

        An SQLite ledger is brought up to date on the way; that of a fleet is its operator's.
        """
        if parse_url(settings.database_url).get_backend_name() == "sqlite":
            upgrade(settings.database_url, settings.table_prefix, OPENING)
        warn_if_missed(settings, app.conf.broker_url or app.conf.broker_write_url)
        boundary = Boundary()
        return cls(settings, lambda b: CeleryBell(app, b, settings), boundary=boundary)

    @property
    def slots(self) -> Slots:
        """What the heartbeat reads; made with the first attempt, so that callers and commands leave no file behind."""
        with self._slots_lock:  # threads of one process must share one table
            if self._slots is None:
                self._slots = Slots.of_this_process()
            return self._slots

    @slots.setter
    def slots(self, slots: Slots) -> None:
        self._slots = slots

    def new_token(self) -> str:
        """Return the random part of a lease, made before the claim is sent so that the claim can be found by it."""
        return secrets.token_hex(16)

    def ring(self, run_id: str) -> None:
        """Ring for a run if it is queued, or if it ended and Celery has not heard of it."""
        row = self.boundary.read(self.engine, lambda connection: self.runs.find(connection, run_id))
        if row is not None:
            self.ring_as(row)

    def ring_as(self, row: Mapping[Any, Any]) -> None:
        """Do so by the run's row, as it was read or written just now."""
        if row["status"] == RunStatus.QUEUED or (row["status"] in FINISHED and row["due_at"] is not None):
            self.bell.ring(Ring.of(row))
