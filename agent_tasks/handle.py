"""A run as its caller sees it."""

from __future__ import annotations

import time
from math import isnan
from typing import TYPE_CHECKING, Any

from agent_tasks.awaited import waits_for, waits_for_worker
from agent_tasks.cancelling import cancel
from agent_tasks.errors import AgentTasksError, CannotResume, RunCancelled, RunFailed, RunNotFound, RunUnfinished
from agent_tasks.inbox_client import NOT_GIVEN, InboxClient
from agent_tasks.lines import next_place
from agent_tasks.outcomes import error_line
from agent_tasks.resuming import Resume
from agent_tasks.signing import check_signed
from agent_tasks.states import FINISHED, RunStatus
from checkpoint import codec

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

    from agent_tasks.inbox import AuditEntry, InboxItem
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime
    from checkpoint import CheckpointState

#: First and longest pause between two looks of ``get``, in seconds.
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.5


class RunHandle:
    """One run; made by ``agent.enqueue`` and ``agent.run``.

    Attributes:
        run_id: of the run.
    """

    def __init__(self, runtime: Runtime, run_id: str, *, in_transaction: bool = False) -> None:
        self._runtime, self.run_id, self._in_transaction = runtime, run_id, in_transaction

    def __repr__(self) -> str:
        return f"<run {self.run_id}>"

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, RunHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, str, str]:
        """The run and its ledger: two handles of one run are equal."""
        settings = self._runtime.settings
        return self.run_id, settings.database_url, settings.table_prefix

    @property
    def status(self) -> RunStatus:
        """Where the run stands now."""
        return RunStatus(self._row()["status"])

    @property
    def waiting_for(self) -> str | None:
        """What an unfinished run waits for, in the words of ``agent-tasks runs show``; None of one that has ended."""
        return waits_for(self._row(), self._runtime.settings.lease_seconds)

    def cancel(self, *, who: str, why: str) -> bool:
        """Ask for the run's end. What has happened stays as it is recorded, and nothing of it is undone.

        A run that nobody works on ends at once. One that runs begins no further call: a call under way is not
        disturbed, the step's checkpoint is kept if it comes that far, and a step that ends the run itself first, by
        ``done`` or ``fail``, has the last word. Where an operation is in doubt, its probe or a person says whether
        it happened before the run ends.

        Args:
            who: the person who decides, of at most 200 characters.
            why: the reason, of at most 4,000 characters; kept in the audit trail.

        Returns:
            True if the run has ended because of this or will; False if it had ended already.

        Raises:
            AgentTasksError: ``who`` or ``why`` is missing.
            LedgerUnavailable: the database did not answer; ask again, which asks once.
        """
        return cancel(self._runtime, self.run_id, who=who, why=why)

    def operations(self) -> list[Operation]:
        """Return the run's operations, oldest first."""
        return self._runtime.boundary.read(
            self._runtime.engine, lambda connection: self._runtime.ledger.of_run(connection, self.run_id)
        )

    def inbox(self) -> list[InboxItem]:
        """Return the open questions about the run."""
        return self._runtime.boundary.read(
            self._runtime.engine, lambda connection: self._runtime.inbox.items(connection, self.run_id)
        )

    def resolve(self, item_id: str, reply: str, *, who: str, why: str, result: Any = NOT_GIVEN) -> bool:
        """Answer a question about the run; see :meth:`agent_tasks.InboxClient.resolve`."""
        return InboxClient(self._runtime).resolve(item_id, reply, who=who, why=why, result=result, run_id=self.run_id)

    def audit(self) -> list[AuditEntry]:
        """Return who decided what about the run, oldest first."""
        return self._runtime.boundary.read(
            self._runtime.engine, lambda connection: self._runtime.inbox.audit_trail(connection, self.run_id)
        )

    def state(self) -> CheckpointState:
        """Return the checkpoint that the run stands at.

        Raises:
            CheckpointError: it is damaged, or cannot be read in this process; never is an older one returned for it.
        """
        place, store = next_place(self._row()), self._runtime.store
        return self._runtime.boundary.read(self._runtime.engine, lambda c: store.load_parent_of(place, connection=c))

    def resume(self, from_seq: int | None = None, *, who: str, why: str, fresh_reads: bool = False) -> None:
        """Let the run go on from a step: that one and all after it are done again, on a new line.

        For a run that waits, needs attention, failed, or is queued. No effect that happened is repeated, since its
        record is met again. The line that is left stays as it is, and open questions are closed: whatever is still in
        doubt is asked again.

        Args:
            from_seq: number of the step; its checkpoint is the one before. None for the next step.
            who: the person who decides, of at most 200 characters.
            why: the reason, of at most 4,000 characters; kept in the audit trail.
            fresh_reads: buy the reads of these steps again instead of returning what was recorded.

        Raises:
            CannotResume: the run is running or ended otherwise, it has no such step, or the checkpoint before that step
                cannot be used. Nothing was changed.
            LedgerUnavailable: the database did not answer; resume again with the same words, which counts once.

        Example:
            >>> from celery import Celery
            >>> from agent_tasks import Agent, done
            >>> app = Celery("shop", broker="memory://")
            >>> app.conf.agent_database_url = f"sqlite:///{directory}/resumed.db"
            >>> order = Agent("order", app=app)
            >>> @order.step(start=True)
            ... def pay(state):
            ...     return done("paid")
            >>> run = order.enqueue({})
            >>> run.resume(from_seq=1, who="kim", why="the cart was changed")
            >>> [(entry.who, entry.what) for entry in run.audit()]
            [('kim', 'resume from step 1 as line 1')]
        """
        check_signed(who, why, CannotResume)
        Resume(
            self._runtime, self.run_id, from_seq=from_seq, who=who, why=why, fresh_reads=bool(fresh_reads)
        ).carry_out()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the run's end and return its output.

        Args:
            timeout: longest wait in seconds; None waits for good.

        Raises:
            RunCancelled: somebody cancelled the run; says who and why.
            RunFailed: the run ended as failed.
            RunUnfinished: it had not ended in time; says what it waits for.
            AgentTasksError: ``timeout`` is no number.
        """
        given: object = timeout
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or isnan(given)):
            raise AgentTasksError(
                f"timeout= of get() of run {self.run_id!r} must be a number of seconds, or None to wait for good, got {given!r}."
            )
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        while True:
            row = self._row()
            if row["status"] in FINISHED:
                return _output(row)
            if end is not None and time.monotonic() >= end:
                raise RunUnfinished(self._unfinished(row, timeout))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)

    def _unfinished(self, row: RowMapping, timeout: float | None) -> str:
        said = f"run {self.run_id!r} is {row['status']}" + (f" after {timeout:g} s" if timeout else "")
        if row["status"] == RunStatus.QUEUED:
            said += f", it waits for {waits_for_worker(row)}. {_who_works(row)}"
        elif row["waiting_for"]:
            said += f", it waits: {row['waiting_for']}"
        for item in self.inbox():
            about = f" about {item.detail['tool']}" if "tool" in item.detail else ""
            said += f"; a person is asked: {item.question!s}{about} ({' or '.join(item.replies)}, item {item.item_id})"
        return said if said.endswith("?") else f"{said}."

    def _row(self) -> RowMapping:
        row = self._runtime.boundary.read(
            self._runtime.engine, lambda connection: self._runtime.runs.find(connection, self.run_id)
        )
        if row is None:
            if self._in_transaction:
                raise not_committed(self.run_id)
            raise RunNotFound(f"no run {self.run_id!r} in this ledger. Was it deleted, or is this another database?")
        return row


def not_committed(run_id: str) -> RunNotFound:
    """Return what is said about a run that its caller has written in a transaction, and that nobody sees."""
    return RunNotFound(
        f"run {run_id!r} is not in the ledger: it was written in a transaction of its caller, who has not committed it "
        "yet, or has rolled it back. Ask again after the commit."
    )


def _who_works(row: RowMapping) -> str:
    """Ask whether there is anybody who would take a queued run."""
    declared = (
        f"step {row['next_step']!r} of agent {row['agent']!r}" if row["task"] is None else f"task {row['agent']!r}"
    )
    return (
        f"Is one running (celery -A yourapp worker -Q {row['queue']}), with the same agent_database_url and the same broker as this "
        f"process, and does it import the module that declares {declared}?"
    )


def _output(row: RowMapping) -> Any:
    if row["status"] == RunStatus.SUCCEEDED:
        return None if row["output"] is None else codec.loads(row["output"])
    error = {} if row["error"] is None else codec.loads(row["error"])
    if row["status"] == RunStatus.CANCELLED:
        raise RunCancelled(f"run {row['run_id']!r} was {error_line(error)}")
    raise RunFailed(f"run {row['run_id']!r} {row['status']}: {error_line(error)}")
