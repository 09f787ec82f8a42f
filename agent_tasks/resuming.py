"""Resuming a run by hand: a step and all after it once more, on a new line (I12)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent_tasks.errors import CannotResume, LedgerUnavailable, RunNotFound
from agent_tasks.lines import RESUMED, NewLine, step_after
from agent_tasks.states import RunStatus
from checkpoint.errors import CheckpointError, UnreadableValue

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from agent_tasks.runtime import Runtime
    from checkpoint import CheckpointSummary

#: Sends of a resume whose answer was lost, and the pause between them in seconds.
_TRIES, _PAUSE_SECONDS = 3, 0.2

#: Steps that an error names, from the newest on.
_STEPS_NAMED = 10

_RESUMABLE = (RunStatus.NEEDS_ATTENTION, RunStatus.FAILED, RunStatus.WAITING, RunStatus.QUEUED)


class Resume:
    """One person's word that a run goes on from a step; carried out once, however often it is sent.

    Args:
        runtime: of this process.
        run_id: of the run.
        from_seq: the step to begin with; None for the next one.
        who, why: of the audit trail.
        fresh_reads: also set recorded reads from that step on back, so that they are bought again.
    """

    def __init__(
        self, runtime: Runtime, run_id: str, *, from_seq: int | None, who: str, why: str, fresh_reads: bool
    ) -> None:
        self.runtime, self.run_id = runtime, run_id
        self.from_seq, self.who, self.why, self.fresh_reads = from_seq, who, why, fresh_reads
        self._sent: NewLine | None = None  # as it was sent, when no answer came

    def carry_out(self) -> None:
        """Commit, ask again where the answer was lost, and ring.

        Raises:
            CannotResume: nothing was written.
            LedgerUnavailable: the database did not answer; resume again with the same words.
        """
        runtime = self.runtime
        for tried in range(_TRIES):
            try:
                runtime.boundary.commit("resume", runtime.engine, self._work)
                break
            except LedgerUnavailable as error:
                if not error.ambiguous or tried == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_SECONDS)
        runtime.ring(self.run_id)

    def _work(self, connection: Connection) -> None:
        runtime = self.runtime
        row = runtime.runs.find(connection, self.run_id, lock=True)
        if row is None:
            raise RunNotFound(f"no run {self.run_id!r} in this ledger.")
        if self._was_carried_out(connection, row):
            return
        self._check_status(row)
        line = self._sent = self._line(connection, row)
        runtime.inbox.close_all(connection, self.run_id, self.who, self._what(line), self.why)
        runtime.inbox.audit(connection, self.run_id, None, self.who, self._what(line), self.why)
        if self.fresh_reads:
            runtime.ledger.forget_reads(connection, self.run_id, from_seq=line.seq + 1)
        runtime.decisions.resume_on(connection, self.run_id, line)

    def _was_carried_out(self, connection: Connection, row: RowMapping) -> bool:
        """Tell whether these very words have begun the line already: sent before, or given twice and not yet acted on."""
        stands = NewLine(row["line"], row["parent_line"], row["line_start_seq"], "", "")
        untouched = (
            row["line"] > 0
            and row["status"] == RunStatus.QUEUED
            and row["attempts"] == 0
            and row["seq"] == row["line_start_seq"]
            and self.from_seq in (None, row["seq"] + 1)
        )
        candidates = [self._sent] if self._sent is not None else [stands] if untouched else []
        return any(
            self.runtime.inbox.said(connection, self.run_id, self.who, self._what(line), self.why)
            for line in candidates
        )

    def _check_status(self, row: RowMapping) -> None:
        status = RunStatus(row["status"])
        if status in _RESUMABLE:
            return
        if status is RunStatus.RUNNING:
            raise CannotResume(
                f"run {self.run_id!r} is running step {row['next_step']!r}. Nothing was changed; cancel it first, or wait "
                "until it waits, fails or needs attention."
            )
        ended = "was cancelled" if status is RunStatus.CANCELLED else f"has {status!s}"
        raise CannotResume(
            f"run {self.run_id!r} {ended}, and a run that ended so is not taken up again. Nothing was changed; "
            "start a new run."
        )

    def _line(self, connection: Connection, row: RowMapping) -> NewLine:
        runtime, last = self.runtime, int(row["seq"]) + 1
        first = last if self.from_seq is None else self.from_seq
        if type(first) is not int or not 1 <= first <= last:
            raise CannotResume(
                f"from_seq must be a step of run {self.run_id!r} from 1 to {last}, got {first!r}. Nothing was changed. "
                f"Its steps: {self._steps(connection, row)}."
            )
        around = {summary.seq: summary for summary in self._ancestors(connection, first, 2)}
        parent = around.get(first - 1)
        step = self._step(connection, row, first, around.get(first))
        if parent is None or step is None:
            missing = "is missing" if parent is None else "does not say which step follows it"
            raise CannotResume(
                f"run {self.run_id!r} cannot resume from step {first}: checkpoint {first - 1} {missing}. Nothing was "
                f"changed; resume from another step. Its steps: {self._steps(connection, row)}."
            )
        plain = row["task"] is not None  # its queue is that of the call
        queue = row["queue"] if plain else runtime.bell.queue_for(f"{row['agent']}.{step}")
        return NewLine(int(row["line"]) + 1, parent.line, first - 1, step, queue)

    def _step(self, connection: Connection, row: RowMapping, first: int, made: CheckpointSummary | None) -> str | None:
        """Return the step that follows checkpoint ``first - 1``, which must verify."""
        noted = None
        try:
            noted = step_after(self.runtime.store.load(self.run_id, first - 1, connection=connection))
        except UnreadableValue:
            pass  # this process need not know the types of the state; the worker does
        except CheckpointError as error:
            raise CannotResume(
                f"run {self.run_id!r} cannot resume from step {first}: {error}. Nothing was changed; resume from an "
                "earlier step."
            ) from error
        if noted is None and first == row["seq"] + 1 and row["next_step"] is not None:
            return str(row["next_step"])
        return noted if noted is not None or made is None else made.step

    def _steps(self, connection: Connection, row: RowMapping) -> str:
        named = [
            f"{made.seq} {made.step}" for made in self._ancestors(connection, row["seq"], _STEPS_NAMED) if made.seq > 0
        ]
        left_out = ["…"] if len(named) == _STEPS_NAMED and row["seq"] > _STEPS_NAMED else []
        return ", ".join([*left_out, *reversed(named), f"{row['seq'] + 1} {row['next_step'] or 'the next one'}"])

    def _ancestors(self, connection: Connection, seq: int, limit: int) -> list[CheckpointSummary]:
        try:
            return self.runtime.store.ancestors(self.run_id, seq, limit, connection=connection)
        except CheckpointError as error:
            raise CannotResume(f"run {self.run_id!r} cannot resume: {error}. Nothing was changed.") from error

    def _what(self, line: NewLine) -> str:
        return f"{RESUMED} {line.seq + 1} as line {line.number}" + (", reads anew" if self.fresh_reads else "")
