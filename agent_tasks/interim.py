"""What the body of a call says while it runs: how far it came, and the vendor's name of the effect (I2, I4).

Each is a commit of its own, which the next attempt, the probe and a person read. Progress is the body's own note, so one
that comes from a lost lease changes nothing. The vendor's name of an effect is a fact: one that comes late is kept as
evidence, as a late outcome is.
"""

from __future__ import annotations

import reprlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_tasks.current import outside_run
from agent_tasks.errors import LeaseLost, NotAwaited, NotKept, NotWritable
from agent_tasks.loops import KeptLoop, in_thread
from agent_tasks.recorder import contradiction
from agent_tasks.refusals import refusal
from agent_tasks.runs import is_cancelled
from agent_tasks.schema import MAX_EXTERNAL_ID_LENGTH
from agent_tasks.states import Effect, OperationStatus
from agent_tasks.suspensions import Lost, Wait, about
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from agent_tasks.attempt import Attempt
    from agent_tasks.operations import Operation


class Interim:
    """The writes of one body while it runs.

    Args:
        attempt: in which it runs.
        operation: that it is handed.

    Attributes:
        given_up: its call has ended before it, so that it works for no attempt any more: it writes as after a lost lease.
    """

    def __init__(self, attempt: Attempt, operation: Operation) -> None:
        self.attempt, self.operation = attempt, operation
        self._named: str | None = None  # by this body
        self.given_up = False

    @property
    def awaited(self) -> Awaited:
        """The same for an async body."""
        return Awaited(self)

    def check_place(self, said: str) -> None:
        """Refuse to stop the loop of all async steps.

        Raises:
            NotAwaited: this is it.
        """
        if KeptLoop.is_running_here():
            raise NotAwaited(
                f"run {self.attempt.run_id!r}: operation.{said}(…) was called on the event loop, which it would stop. "
                f"Nothing was written; write `await operation.aio.{said}(…)`."
            )

    def save_progress(self, value: Any) -> None:
        """See :meth:`agent_tasks.Operation.save_progress`."""
        attempt, operation = self.attempt, self.operation
        self._check_given_up()
        what = f"progress of {operation.tool!r} (operation {operation.operation_id})"
        try:
            with outside_run():
                encoded = codec.dumps(value, "progress")
        except CheckpointError as error:
            raise NotKept(
                f"run {attempt.run_id!r}: {refusal(error, what, ', so what was saved before stays')}"
            ) from error
        runtime = attempt.runtime

        def work(connection: Connection) -> tuple[bool, bool]:
            run = runtime.runs.owned(connection, attempt, share=True)
            if run is None:
                return False, False
            attempt.cancelled = is_cancelled(run)  # the call goes on; the next one does not begin
            executing = (OperationStatus.EXECUTING,)
            return True, runtime.ledger.settle(
                connection, operation, from_=executing, token=attempt.token, progress=encoded
            )

        try:
            owns, stands = runtime.recorder.write(attempt, "progress", work)
        except NotWritable as error:
            raise NotKept(f"{what} was not saved, so what was saved before stays: {error}") from error
        if not owns:
            attempt.suspend(Lost(f"the lease was lost while {operation.tool} ran"))
        if not stands:
            attempt.suspend(Wait(f"since others have written what became of {operation.tool} while it ran"))
        operation.row = {**operation.row, "progress": encoded}
        attempt.raise_if_doomed()  # by a time limit, which struck in the middle of the write

    def record_external_id(self, external_id: str) -> None:
        """See :meth:`agent_tasks.Operation.record_external_id`."""
        attempt, operation = self.attempt, self.operation
        self._check(external_id)

        def work(connection: Connection) -> tuple[bool, str | None]:
            return self._record(connection, external_id)

        if self.given_up:  # in the name of no attempt, which may be over, or go on without it
            said = attempt.runtime.recorder.write_late(
                attempt, "external id", work, f"the vendor's name of {operation.tool}"
            )
            owns, other = said or (False, None)
        else:
            owns, other = attempt.runtime.recorder.write(attempt, "external id", work)
        if other is not None:
            raise NotKept(
                f"run {attempt.run_id!r}: {operation.tool!r} (operation {operation.operation_id}) is known to the vendor as "
                f"{other!r} and was to be recorded as {external_id!r}: that is another effect. Both are kept, the latter as "
                "evidence; record one id for each call, and make a call of its own for each effect."
            )
        if self.given_up:
            return
        if not owns:  # the body goes on to its end, since its outcome is a fact, too; it begins nothing any more
            attempt.doomed = attempt.doomed or Lost(f"the lease was lost while {operation.tool} ran")
            return
        self._named = external_id
        operation.row = {**operation.row, "external_id": external_id}
        attempt.raise_if_doomed()

    def _check_given_up(self) -> None:
        """Let a body note nothing any more that its call has given up.

        Raises:
            LeaseLost: so it has.
        """
        if self.given_up:
            raise LeaseLost(
                f"run {self.attempt.run_id!r}: the body of {self.operation.tool} (operation {self.operation.operation_id}) was given up "
                "at its limit, so its progress is not saved. What it returns, and record_external_id(…), is kept as evidence."
            )

    def _record(self, connection: Connection, external_id: str) -> tuple[bool, str | None]:
        """Write the id; return whether the attempt owns its run, and the other id that stands there instead."""
        attempt, operation = self.attempt, self.operation
        runs, ledger = attempt.runtime.runs, attempt.runtime.ledger
        run = runs.find(connection, attempt.run_id, lock=True)
        owns = run is not None and runs.is_owner(run, attempt)
        if run is not None and owns:
            attempt.cancelled = is_cancelled(run)
        fact = {"attempt": operation.attempts, "fence": attempt.fence, "said": external_id}
        found = ledger.find(connection, operation.operation_id)
        if found is None or not owns or not _is_under_way(found, attempt, operation):
            ledger.add_evidence(connection, operation.operation_id, what="late external id", **fact)
            # The vendor has it: as wrong as a late success where the ledger says otherwise, which this body may not live to say.
            told = None if found is None else contradiction(found, attempt, operation, OperationStatus.SUCCEEDED)
            if told is not None:
                attempt.runtime.inbox.open(connection, attempt.run_id, about(told, operation, external_id=external_id))
            return owns, None
        stands = found.external_id
        if stands not in (None, external_id):
            if found.effect is not Effect.REPEATABLE or self._named is not None:
                ledger.add_evidence(connection, operation.operation_id, what="another external id", **fact)
                return owns, stands
            ledger.add_evidence(connection, operation.operation_id, what="earlier external id", said=stands)
        executing = (OperationStatus.EXECUTING,)
        ledger.settle(connection, operation, from_=executing, token=attempt.token, external_id=external_id)
        return owns, None

    def _check(self, external_id: object) -> None:
        is_text = isinstance(external_id, str) and 0 < len(external_id) <= MAX_EXTERNAL_ID_LENGTH
        if is_text and "\0" not in str(external_id) and str(external_id).isprintable():
            return
        tip = f" Write record_external_id(str({external_id!r}))." if isinstance(external_id, int) else ""
        raise NotKept(
            f"run {self.attempt.run_id!r}: record_external_id of {self.operation.tool!r} takes the vendor's name of the effect, a text "
            f"of 1 to {MAX_EXTERNAL_ID_LENGTH} printable characters, got {reprlib.repr(external_id)}. Nothing was written.{tip}"
        )


class Awaited:
    """What an async body awaits; the statements run in a thread, and never on its loop."""

    def __init__(self, interim: Interim) -> None:
        self._interim = interim

    async def save_progress(self, value: Any) -> None:
        """See :meth:`agent_tasks.Operation.save_progress`."""
        await in_thread(self._interim.save_progress, value)

    async def record_external_id(self, external_id: str) -> None:
        """See :meth:`agent_tasks.Operation.record_external_id`."""
        await in_thread(self._interim.record_external_id, external_id)


@contextmanager
def interim_of(attempt: Attempt, operation: Operation) -> Iterator[None]:
    """While the body of a request runs, let it write about its call."""
    operation.interim = Interim(attempt, operation)
    try:
        yield
    finally:
        if not operation.interim.given_up:  # else the body goes on, and the vendor's name of its effect is a fact
            operation.interim = None


def _is_under_way(found: Operation, attempt: Attempt, operation: Operation) -> bool:
    """Tell whether a row still stands at the request whose body runs."""
    request = (found.attempts, found.row["token"]) == (operation.attempts, attempt.token)
    return request and found.status is OperationStatus.EXECUTING
