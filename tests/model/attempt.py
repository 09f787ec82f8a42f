"""A worker and its attempt: claim, the call of the tool, the step's commit; and how it ends without one."""

from __future__ import annotations

from collections.abc import Iterator

from .actor import IDLE
from .call import Call
from .kinds import CANCEL_IGNORED
from .state import DOUBT, SETTLED, Move, State, Worker


class Attempt(Call):
    """The moves of one worker in one state."""

    def moves(self) -> Iterator[Move]:
        at = self.worker.at
        if at in ("hung", "dead", "renewed unseen"):
            yield from self._without_its_child()
            return
        if at != "idle":
            yield self.goes(f"is killed ({at})", IDLE)
            if self.rules.children_die:
                yield self.goes(
                    f"its child dies ({at})", IDLE._replace(at="dead", step=self.step, fence=self.worker.fence)
                )
        yield from getattr(self, at)()

    def _without_its_child(self) -> Iterator[Move]:
        """What the parent does about a child that hangs or died, or that forgot its lease."""
        run, worker = self.state.run, self.worker
        if worker.at == "dead":
            yield self.goes("the parent dies too", IDLE)
            given_back = run.status == "running" and (run.fence == worker.fence or not self.rules.given_back_by_token)
            after = lease_ended(self.state, self.rules.max_crashes) if given_back else self.state
            gives = self.goes("the parent gives the lease back and rings", IDLE, after)
            # By its token, whatever step the owner has got to.
            yield gives._replace(writer=worker._replace(step=run.seq + 1) if given_back else None)
            return
        in_time = self.rules.step_timeout or (worker.told == "call" and self.rules.deadline_kill)
        if worker.at == "hung" and in_time:
            yield self.goes("the parent kills the child", self.at("dead", told=""))
        if not run.leased_by(worker.fence):
            yield self.goes("is restarted", IDLE)

    # ---- the claim -------------------------------------------------------------------------------

    def idle(self) -> Iterator[Move]:
        run = self.state.run
        if not self.state.rung or run.status != "queued" or run.fence >= self.rules.max_fence:
            return
        step, fence = run.seq + 1, run.fence + 1
        after = self.state.with_run(status="running", fence=fence, due=False)
        known = self.state.operation(step).version
        claimed = IDLE._replace(at="claimed", step=step, fence=fence, known=known)
        does = f"claims step {step} with fence {fence}"
        yield self.goes(does, claimed, after)
        if self.rules.answers_get_lost:
            yield self.goes(f"{does}, the answer is lost", claimed._replace(at="claiming"), after)
            if not self.rules.renewed_by_fence:
                unseen = claimed._replace(at="renewed unseen")
                yield self.goes(f"{does}, the answer is lost and it gives up", unseen, after)

    def claiming(self) -> Iterator[Move]:
        """The claim is sent again, and finds its lease by its token."""
        run = self.state.run
        if run.status == "running" and run.fence == self.worker.fence:
            yield self.goes("finds its lease by its token", self.read_again())
        else:
            yield self.loses_its_lease()

    # ---- the end of the step ---------------------------------------------------------------------

    def ending(self) -> Iterator[Move]:
        """Nothing may be in doubt, and no effect without a line that asks for it (I13, I14)."""
        cancelled = self.worker.answer == "cancelled"
        asked = self.worker.answer != "left out"
        later = range(self.step, len(self.rules.effects) + 1)
        doubtful = next((step for step in later if self.state.operation(step).status in DOUBT), None)
        if doubtful and self.rules.doubts_settled_first:
            yield from self.settles(doubtful)
        elif not cancelled and (orphans := self.orphans(asked=asked)):
            yield self.dooms(f"finds effects that nobody asks for: {orphans}", "orphan", 0, self.worker.known)
        else:
            yield self.goes("ends its step", self.at("committing"))
        if self.rules.children_die and not cancelled:
            yield self.goes("hangs in the step's code", self.at("hung", told=""))

    def committing(self) -> Iterator[Move]:
        run, worker = self.state.run, self.worker
        if not self.owns("commit"):
            keeps = self.rules.coalesces and (run.status, run.fence, run.seq) == ("running", worker.fence, self.step)
            yield self.goes("finds that it has kept its lease", self._next()) if keeps else self.loses_its_lease()
            return
        if self.has_news:
            yield self.goes("finds news, looks again", self.read_again())
            return
        for does, after in self._ends():
            wrong = CANCEL_IGNORED if run.cancel and after.run.status == "succeeded" else None
            yield self.goes(does, IDLE, after._replace(rung=True), writes=True, wrong=wrong)
            if self.rules.answers_get_lost:
                yield self.goes(f"{does}, the answer is lost", worker, after, writes=True, wrong=wrong)
            if self.rules.coalesces and after.run.status == "queued":
                keeps, kept = f"{does} and keeps its lease", after.with_run(status="running")
                yield self.goes(keeps, self._next(), kept, writes=True)
                if self.rules.answers_get_lost:
                    yield self.goes(f"{keeps}, the answer is lost", worker, kept, writes=True)

    def _next(self) -> Worker:
        """The attempt of the next step under the same lease; on the first line nobody has begun that step before."""
        known = self.state.operation(self.step + 1).version if self.state.run.line else ("", 0)
        return IDLE._replace(at="claimed", step=self.step + 1, fence=self.worker.fence, known=known)

    def _ends(self) -> Iterator[tuple[str, State]]:
        """The ways in which this step may end, and what each commits."""
        run, answer, free = self.state.run, self.worker.answer, self.state.with_run(due=False)
        retry = run.retries < self.rules.retries and answer in ("landed", "refused") and not run.cancel
        if retry:
            yield f"step {self.step} fails and is to be tried again", self._tried_again(free)
        if answer == "cancelled" or self.honours_cancel("commit"):
            yield "ends the run as cancelled", free.with_run(status="cancelled")
        elif answer != "refused":
            yield from self._advances(free)
        elif not retry:
            yield "fails the run", free.with_run(status="failed")

    def _advances(self, free: State) -> Iterator[tuple[str, State]]:
        run, last = self.state.run, len(self.rules.effects)
        if self.worker.answer != "left out":
            free = free.with_operation(self.step, line=run.line, asked_by=run.line)
        seq = self.step if self.rules.commit_names_seq else run.seq + 1
        after = free.with_run(status="succeeded" if seq >= last else "queued", seq=min(seq, last), crashes=0)
        yield f"commits step {run.seq + 1}", after
        if run.line and seq < last:
            yield f"ends the run with step {self.step} this time", after.with_run(status="succeeded")

    def _tried_again(self, free: State) -> State:
        """Only what the step ended on, and only if it failed, is set back (I5)."""
        run = self.state.run
        waiting = free.with_run(status="waiting", waits_for=0, retries=run.retries + 1)
        if self.operation.status == "failed" or (self.operation.status in SETTLED and not self.rules.retry_compares):
            return waiting.with_operation(self.step, status="pending", horizon_passed=False)
        return waiting

    # ---- the end without a checkpoint ------------------------------------------------------------

    def doomed(self) -> Iterator[Move]:
        """Give the run back, with what it waits for; whatever came in meanwhile makes it look again (I9)."""
        worker, free = self.worker, self.state.with_run(due=False)
        if not self.owns("commit"):
            yield self.loses_its_lease()
        elif self.has_news:
            yield self.goes(
                "gives the run back, since there is news",
                IDLE,
                free.with_run(status="queued")._replace(rung=True),
                writes=True,
            )
        elif worker.told in ("horizon", "back-off"):
            waits_for = worker.target if worker.told == "horizon" else 0
            waiting = free.with_run(status="waiting", waits_for=waits_for)
            yield self.goes(f"waits ({worker.told})", IDLE, waiting, writes=True)
        else:
            yield self.goes(f"asks a person ({worker.told})", IDLE, self._asked(free), writes=True)

    def _asked(self, free: State) -> State:
        asked = free.with_run(status="needs_attention")
        if self.worker.told == "unknown":
            target = self.worker.target
            if asked.operation(target).version == ("executing", self.worker.known[1]):
                asked = asked.with_operation(target, status="unknown")
            return asked.with_operation(target, question="unknown")
        for step in self.orphans(asked=self.worker.answer != "left out"):
            asked = asked.with_operation(step, question="orphan")
        return asked


def lease_ended(state: State, max_crashes: int) -> State:
    """The lease of the run ended without its owner's word: it is queued, or parked after its last crash."""
    crashes = state.run.crashes + 1
    if crashes < max_crashes:
        return state._replace(rung=True).with_run(status="queued", crashes=crashes, due=False)
    return state.with_run(status="needs_attention", crashes=crashes, asks=True, due=False)
