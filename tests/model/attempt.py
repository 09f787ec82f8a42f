"""A worker and its attempt: claim, intent, body, outcome, commit.

A claim whose answer is lost is a claim whose worker finds its lease by its token or is killed; a worker killed between
its commit and its ring is a broker that loses the doorbell. Neither is a move of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from .rules import Rules, Statement, same
from .state import DOUBT, SETTLED, Move, Operation, State, Worker

IDLE = Worker()


class Attempt:
    """The moves of one worker in one state."""

    def __init__(self, rules: Rules, state: State, index: int, worker: Worker) -> None:
        self.rules = rules
        self.state = state
        self.index = index
        self.worker = worker
        self.step = worker.step
        self.effect = rules.effects[worker.step - 1] if worker.step else ""

    def moves(self) -> Iterator[Move]:
        at = self.worker.at
        if at in ("hung", "claimed unseen"):
            if not self.state.run.leased or self.state.run.fence != self.worker.fence:
                yield self._goes("is restarted", IDLE)
            return
        if at != "idle":
            yield self._goes(f"is killed ({at})", IDLE)
        yield from getattr(self, at)()

    # ---- how a worker goes on --------------------------------------------------------------------

    def _goes(self, does: str, worker: Worker, state: State | None = None, *, writes: bool = False) -> Move:
        after = (state or self.state).with_worker(self.index, worker)
        who = f"fence {self.worker.fence or worker.fence}"
        return Move(f"{who}: {does}", after, self.worker if writes else None)

    def _claimed(self) -> Worker:
        """This attempt, having read its operation anew."""
        return Worker("claimed", self.step, self.worker.fence, self.state.operation(self.step).version)

    def _done(self, answer: str) -> Worker:
        return Worker("done", self.step, self.worker.fence, answer=answer)

    def _owns(self, statement: Statement) -> bool:
        """The WHERE of a fenced statement (I2)."""
        run = self.state.run
        if statement in self.rules.fenced and run.fence != self.worker.fence:
            return False
        return not self.rules.position_in_where or (run.status == "running" and run.seq == self.step - 1)

    def _write(self, statement: Statement, does: str, after: State, worker: Worker, lost: Worker) -> Iterator[Move]:
        """A statement of the owner: fence and compare-and-set decide, and its answer may be lost."""
        current = self.state.operation(self.step).version
        if not self._owns(statement):
            yield self._goes("has lost its lease", IDLE)
        elif not same(self.rules.owner_compares, current, self.worker.known):
            yield self._goes("finds the operation changed, reads it again", self._claimed())
        else:
            yield self._goes(does, worker, after, writes=True)
            if self.rules.answers_get_lost:
                yield self._goes(f"{does}, the answer is lost", lost, after, writes=True)

    # ---- the claim -------------------------------------------------------------------------------

    def idle(self) -> Iterator[Move]:
        run = self.state.run
        if not self.state.rung or run.status != "queued" or run.fence >= self.rules.max_fence:
            return
        step, fence = run.seq + 1, run.fence + 1
        after = self.state.with_run(status="running", fence=fence, leased=True)
        claimed = Worker("claimed", step, fence, self.state.operation(step).version)
        yield self._goes(f"claims step {step} with fence {fence}", claimed, after)
        if self.rules.answers_get_lost and not self.rules.renewed_by_fence:
            unseen = Worker("claimed unseen", step, fence)
            yield self._goes(f"claims step {step} with fence {fence}, the answer is lost", unseen, after)

    # ---- the call of the tool --------------------------------------------------------------------

    def claimed(self) -> Iterator[Move]:
        """What to do about the operation, by what this attempt knows of it."""
        status = self.worker.known[0]
        if status in SETTLED:
            answer = "landed" if status == "succeeded" else "refused"
            yield self._goes(f"meets the record: {status}", self._done(answer))
        elif self.effect == "transactional":
            yield from self._effect_in_the_ledger()
        elif self.effect == "read" or not self.rules.intent_first:
            yield self._goes("needs no intent", self.worker._replace(at="checked"))
        elif status not in DOUBT:
            yield from self._intent()
        else:
            yield from self._doubt()

    def _doubt(self) -> Iterator[Move]:
        operation, worker = self.state.operation(self.step), self.worker
        if worker.attempt:
            late = worker.late and self.rules.first_deadline_kept
            yield self._goes("finds the intent it made", worker._replace(at="intended", late=late))
        elif self.effect == "keyed" and not (self.rules.key_lifetime and operation.key_dead):
            yield from self._intent()
        elif self.rules.horizon and not operation.horizon_passed:
            yield from self._wait("waits for the horizon")
        elif self.effect == "probed":
            yield self._probe()
        else:
            asked = self.state.with_operation(self.step, status="unknown")
            asked = asked.with_run(status="needs_attention", leased=False, asks="unknown")
            yield from self._write("commit", "asks a person", asked, IDLE, IDLE)

    def _effect_in_the_ledger(self) -> Iterator[Move]:
        effects = self.state.vendor(self.step).effects + 1
        after = self.state.with_operation(self.step, status="succeeded").with_vendor(self.step, effects=effects)
        yield from self._write("outcome", "commits effect and outcome", after, self._done("landed"), self._claimed())

    def _executing(self, state: State) -> tuple[State, Worker]:
        """The operation as the intent leaves it, and the worker that may start the body."""
        operation = state.operation(self.step)
        attempt = operation.attempts + 1
        written = Operation("executing", attempt, False, operation.key_dead, operation.status in DOUBT)
        intended = Worker("intended", self.step, self.worker.fence, written.version, attempt)
        return state.with_operation(self.step, **written._asdict()), intended

    def _intent(self) -> Iterator[Move]:
        if not self.rules.intent_locks_run:
            if self._owns("intent"):
                yield self._goes("sees that it owns the run", self.worker._replace(at="looked"))
            else:
                yield self._goes("has lost its lease", IDLE)
            return
        after, intended = self._executing(self.state)
        does = f"commits intent {self.step}.{intended.attempt}"
        yield from self._write("intent", does, after, intended, intended._replace(at="claimed"))

    def looked(self) -> Iterator[Move]:
        """The run row was read and not locked: only the operation's own row decides now."""
        if self.worker.known != self.state.operation(self.step).version:
            yield self._goes("finds the operation changed, reads it again", self._claimed())
            return
        after, intended = self._executing(self.state)
        yield self._goes(f"commits intent {self.step}.{intended.attempt}", intended, after, writes=True)

    def _wait(self, does: str, state: State | None = None) -> Iterator[Move]:
        waiting = (state or self.state).with_run(status="waiting", leased=False)
        yield from self._write("commit", does, waiting, IDLE, IDLE)

    def _probe(self) -> Move:
        """Asks the world now; the answer is written later."""
        state, vendor = self.state, self.state.vendor(self.step)
        if vendor.effects and vendor.visible:
            answer = "Happened"
        elif vendor.effects and self.rules.visible_after:
            answer = "AskAgain"
        else:
            answer = "NotHappened"
            if self.rules.vendor_voids:
                state = state.with_vendor(self.step, voided=state.operation(self.step).attempts)
        return self._goes(f"probes: {answer}", self.worker._replace(at="told", answer=answer), state)

    def told(self) -> Iterator[Move]:
        if self.worker.answer == "Happened":
            after = self.state.with_operation(self.step, status="succeeded")
            yield from self._write("outcome", "records that it happened", after, self._done("landed"), self._claimed())
        elif self.worker.answer == "AskAgain":
            yield from self._wait("waits to ask again")
        else:
            after, intended = self._executing(self.state.with_operation(self.step, status="pending"))
            does = f"records that it did not happen, commits intent {self.step}.{intended.attempt}"
            yield from self._write("intent", does, after, intended, intended._replace(at="claimed"))

    def intended(self) -> Iterator[Move]:
        if self.worker.late and self.rules.deadline_checked:
            yield from self._wait("is past its deadline, starts no body")
        else:
            yield self._goes("checks its deadline", self.worker._replace(at="checked"))

    def checked(self) -> Iterator[Move]:
        requests = {*self.state.vendor(self.step).in_the_air, self.worker.attempt}
        sent = self.state.with_vendor(self.step, in_the_air=tuple(sorted(requests)))
        yield self._goes(f"sends request {self.step}.{self.worker.attempt}", self.worker._replace(at="sent"), sent)

    def sent(self) -> Iterator[Move]:
        yield self._goes("gives up waiting", self.worker._replace(at="answered", answer="ambiguous"))
        if self.rules.children_hang:
            yield self._goes("hangs", self.worker._replace(at="hung"))

    # ---- the outcome and the step's commit -----------------------------------------------------------

    def answered(self) -> Iterator[Move]:
        answer = self.worker.answer
        if answer == "refused" and self.state.operation(self.step).earlier_open and self.rules.refused_with_care:
            answer = "ambiguous"
        if answer == "ambiguous":
            yield from self._ambiguous()
        else:
            yield from self._outcome(answer)

    def _ambiguous(self) -> Iterator[Move]:
        """Nobody here can tell: the step is suspended, its code never sees it (I6, I15)."""
        if self.rules.ambiguous_end == "shown to code":
            yield self._goes("shows the doubt to the step's code, which goes on", self._done("landed"))
        elif self.rules.ambiguous_end != "unknown":
            yield from self._outcome("landed" if self.rules.ambiguous_end == "success" else "refused")
        elif self.worker.attempt:
            unknown = self.state.with_operation(self.step, status="unknown")
            yield from self._wait("does not know the outcome", unknown)
        else:
            yield self._goes("does not know the outcome, tries again", self._claimed())

    def _outcome(self, answer: str) -> Iterator[Move]:
        status = "succeeded" if answer == "landed" else "failed"
        after = self.state.with_operation(self.step, status=status)
        if not self._owns("outcome"):
            yield self._late_outcome(status)
        elif self.state.operation(self.step).version == (status, self.worker.attempt):
            yield self._goes("finds its outcome written", self._done(answer))
        else:
            yield from self._write("outcome", f"records that it {status}", after, self._done(answer), self.worker)

    def _late_outcome(self, status: str) -> Move:
        """A fenced-out attempt settles its own operation, if that still stands at this attempt (I2)."""
        worker, operation, run = self.worker, self.state.operation(self.step), self.state.run
        if not worker.attempt or operation.status not in DOUBT:
            return self._goes("brings its outcome too late", IDLE)
        if not same(self.rules.late_outcome_compares, operation.version, (operation.status, worker.attempt)):
            return self._goes("brings the outcome of an older attempt", IDLE)
        after = self.state.with_operation(self.step, status=status)
        if self.rules.late_outcome_requeues and run.status in ("waiting", "needs_attention"):
            after = after.with_run(status="queued", asks="")
        return self._goes(f"has lost its lease, but settles its operation: {status}", IDLE, after)

    def done(self) -> Iterator[Move]:
        run, worker = self.state.run, self.worker
        if not self._owns("commit"):
            yield self._goes("has lost its lease", IDLE)
            return
        after = self.state.with_run(status="queued", seq=run.seq + 1, leased=False, crashes=0, asks="")
        if worker.answer == "refused":
            after = self.state.with_run(status="failed", leased=False, asks="")
        elif after.run.seq == len(self.rules.effects):
            after = after.with_run(status="succeeded")
        does = f"commits step {run.seq + 1}"
        yield self._goes(f"{does} and rings", IDLE, after._replace(rung=True), writes=True)
        if self.rules.answers_get_lost:
            yield self._goes(f"{does}, the answer is lost", worker, after, writes=True)
