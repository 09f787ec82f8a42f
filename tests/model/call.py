"""The call of a tool: what the record says, intent, body, outcome; and what is done about a doubt."""

from __future__ import annotations

from collections.abc import Iterator

from .actor import IDLE, Actor
from .kinds import BEGAN_LATE, CANCEL_IGNORED
from .rules import REPEATED, same
from .state import DOUBT, SETTLED, Move, State, Worker


class Call(Actor):
    """The moves of an attempt in the call of its step's tool."""

    def claimed(self) -> Iterator[Move]:
        """What to do about the operation, by what this attempt knows of it."""
        status = self.worker.known[0]
        if self.rules.bodies_vary:
            yield self.goes("leaves the call out", self.at("ending", answer="left out"))
        if status in SETTLED:
            answer = "landed" if status == "succeeded" else "refused"
            yield self.goes(f"meets the record: {status}", self.at("ending", answer=answer))
        elif status in DOUBT and not self._may_send_again():
            yield from self.settles(self.step)
        elif status == "pending" and self._may_still_land():
            yield self.dooms("waits until an old copy cannot land any more", "horizon", self.step, self.worker.known)
        elif (orphans := self.orphans(asked=True)) and status not in DOUBT and self.effect != "read":
            yield self.dooms(f"finds effects that nobody asks for: {orphans}", "orphan", 0, self.worker.known)
        elif self.effect == "transactional":
            yield from self._effect_in_the_ledger()
        elif self.effect == "read" or not self.rules.intent_first:
            yield self.goes("needs no intent", self.at("checked"))
        else:
            yield from self._intent()

    def orphans(self, *, asked: bool) -> list[int]:
        """The steps, from this one on, whose effects this line has not asked for (I13)."""
        if not self.rules.orphans_asked_about:
            return []
        later = enumerate(self.state.operations[self.step - 1 :], self.step)
        return [
            step
            for step, operation in later
            if operation.status == "succeeded"
            and not operation.kept
            and self.rules.effects[step - 1] != "read"
            and not (asked and step == self.step)
        ]

    # ---- a doubt ---------------------------------------------------------------------------------

    def _may_send_again(self) -> bool:
        operation = self.operation
        if self.effect == "repeatable":
            return operation.horizon_passed or not self.rules.repeated_waits
        return self.effect == "keyed" and not (self.rules.key_lifetime and operation.key_dead)

    def _may_still_land(self) -> bool:
        """Whether a call that is to be done again may still land from its last try."""
        waits = self.effect == "repeatable" and self.rules.repeated_waits and self.rules.retry_waits
        return waits and not self.operation.horizon_passed

    def settles(self, step: int) -> Iterator[Move]:
        """Wait until nobody can be in the middle of it any more, ask the world, or let a person be asked (I6, I14)."""
        operation = self.state.operation(step)
        seen = self.worker.known if self.worker.at == "claimed" else operation.version
        if self.rules.horizon and not operation.horizon_passed:
            yield self.dooms(f"may not ask about {step} before its horizon", "horizon", step, seen)
        elif self.rules.effects[step - 1] == "probed":
            yield self._probe(step, seen)
        else:
            yield self.dooms(f"needs a person for {step}", "unknown", step, seen)

    def _probe(self, step: int, known: tuple[str, int]) -> Move:
        """Asks the world now; the answer is written later."""
        told, state = self.look(self.rules, self.state, step)
        return self.goes(f"probes {step}: {told}", self.at("told", told=told, target=step, known=known), state)

    @staticmethod
    def look(rules: object, state: State, step: int) -> tuple[str, State]:
        """What a probe of this vendor says now, and the world after it was asked."""
        vendor = state.vendor(step)
        if vendor.effects and vendor.visible:
            return "Happened", state
        if vendor.effects and rules.visible_after:  # type: ignore[attr-defined]
            return "AskAgain", state
        if rules.vendor == "voids":  # type: ignore[attr-defined]
            state = state.with_vendor(step, voided=state.operation(step).attempts)
        return "NotHappened", state

    def told(self) -> Iterator[Move]:
        """The probe's answer is recorded, if the operation still stands at the try that was asked about."""
        worker, current = self.worker, self.state.operation(self.worker.target)
        if worker.told == "AskAgain":
            yield self.dooms("is told to ask again", "back-off", worker.target, worker.known)
        elif not self.owns("outcome"):
            yield self.loses_its_lease()
        elif not same(self.rules.owner_compares, current.version, worker.known):
            yield self.goes("finds that it was settled meanwhile", self.read_again())
        else:
            status = "succeeded" if worker.told == "Happened" else "pending"
            after = self.state.with_operation(worker.target, status=status, earlier_open=False)
            again = Actor(self.rules, after, self.index, worker).read_again()
            yield self.goes(f"records that {worker.target} is {status}", again, after, writes=True)

    # ---- the intent ------------------------------------------------------------------------------

    def _effect_in_the_ledger(self) -> Iterator[Move]:
        """Body, fenced look at the run and record are one transaction."""
        after = self.state.with_operation(self.step, status="succeeded", attempts=self.operation.attempts + 1)
        after = after.with_vendor(self.step, effects=self.state.vendor(self.step).effects + 1, visible=True)
        done = self.at("ending", answer="landed")
        if not (refusal := self._refusal()):
            yield from self.writes("outcome", "commits effect and outcome", after, done, self.read_again())
        else:
            yield refusal

    def _refusal(self) -> Move | None:
        """Why the statement that begins a call changes nothing, apart from its compare-and-set."""
        if not self.owns("intent"):
            return self.loses_its_lease()
        if self.has_news:
            return self.goes("finds news, reads again", self.read_again())
        if self.honours_cancel("intent"):
            return self.goes("is told to begin nothing more", self.at("ending", answer="cancelled", attempt=0))
        return None

    def _executing(self) -> tuple[State, Worker]:
        """The operation as the intent leaves it, and the worker that may start the body."""
        operation = self.operation
        attempt = operation.attempts + 1
        written = operation._replace(
            status="executing",
            attempts=attempt,
            horizon_passed=False,
            earlier_open=operation.status in DOUBT or operation.earlier_open,
            line=self.state.run.line,
        )
        after = self.state.with_operation(self.step, **written._asdict())
        return after, self.at("intended", known=written.version, attempt=attempt, late=False)

    def _intent(self) -> Iterator[Move]:
        if not self.rules.intent_locks_run:
            yield (
                self.goes("sees that it owns the run", self.at("looked"))
                if self.owns("intent")
                else self.loses_its_lease()
            )
            return
        if refusal := self._refusal():
            yield refusal
            return
        after, intended = self._executing()
        does = f"commits intent {self.step}.{intended.attempt}"
        for move in self.writes("intent", does, after, intended, intended._replace(at="unheard")):
            ignored = self.state.run.cancel and move.state.operations != self.state.operations
            yield move._replace(wrong=CANCEL_IGNORED if ignored else None)

    def looked(self) -> Iterator[Move]:
        """The run row was read and not locked: only the operation's own row decides now."""
        if self.worker.known != self.operation.version:
            yield self.goes("finds the operation changed, reads it again", self.read_again())
            return
        after, intended = self._executing()
        yield self.goes(f"commits intent {self.step}.{intended.attempt}", intended, after, writes=True)

    def unheard(self) -> Iterator[Move]:
        """The intent's answer was lost: the same statement is sent again, and finds its own row."""
        if refusal := self._refusal():
            yield refusal
        else:
            late = self.worker.late and self.rules.first_deadline_kept
            yield self.goes("finds the intent it made", self.at("intended", late=late))

    # ---- the body --------------------------------------------------------------------------------

    def intended(self) -> Iterator[Move]:
        look = self.rules.last_look
        if look in ("deadline", "with the send") and self.worker.late:
            yield self.goes("is past its deadline, starts no body", self.at("answered", answer="never sent"))
        elif look == "lease" and not self.owns("intent"):
            yield self.goes("reads that its lease is lost, starts no body", IDLE)
        elif look == "with the send":
            yield from self.checked()
        else:
            yield self.goes("looks a last time before the body", self.at("checked"))

    def checked(self) -> Iterator[Move]:
        worker = self.worker
        requests = {*self.state.vendor(self.step).in_the_air, (worker.attempt, worker.late)}
        sent = self.state.with_vendor(self.step, in_the_air=tuple(sorted(requests)))
        late = self.rules.literal_once and self.operation.status == "succeeded"
        does = f"sends request {self.step}.{worker.attempt}"
        yield self.goes(does, self.at("sent", late=False), sent, wrong=BEGAN_LATE if late else None)

    def sent(self) -> Iterator[Move]:
        yield self.goes("gives up waiting", self.at("answered", answer="ambiguous"))
        if self.rules.children_die:
            yield self.goes("hangs in the call", self.at("hung", told="call"))

    # ---- the outcome -----------------------------------------------------------------------------

    def answered(self) -> Iterator[Move]:
        answer = self.worker.answer
        if answer == "never sent":
            yield from self._outcome("unknown" if self.operation.earlier_open else "pending", answer)
        elif self.effect in REPEATED:
            yield from self._outcome("succeeded" if answer == "landed" else "failed", answer)
        elif answer == "refused" and self.operation.earlier_open and self.rules.refused_with_care:
            yield from self._outcome("unknown", "ambiguous")
        elif answer == "ambiguous":
            status = {"success": "succeeded", "failure": "failed"}.get(self.rules.ambiguous_end, "unknown")
            yield from self._outcome(status, answer)
        else:
            yield from self._outcome("succeeded" if answer == "landed" else "failed", answer)

    def _outcome(self, status: str, answer: str) -> Iterator[Move]:
        worker = self.worker
        if not worker.attempt:  # recorded without an intent
            after = self.state.with_operation(self.step, status=status, attempts=self.operation.attempts + 1)
            yield from self.writes(
                "outcome", f"records {status}", after, self._after(status, answer), self.read_again()
            )
        elif not self.owns("outcome"):
            yield self._late_outcome(status)
        elif self.operation.version == (status, worker.attempt):
            yield self.goes("finds its outcome written", self._after(status, answer))
        else:
            after = self.state.with_operation(self.step, status=status)
            yield from self.writes("outcome", f"records {status}", after, self._after(status, answer), worker)

    def _after(self, status: str, answer: str) -> Worker:
        """Where the attempt goes from its outcome: on, or nowhere any more (I15)."""
        if status in SETTLED:
            return self.at("ending", answer="landed" if status == "succeeded" else "refused", attempt=0)
        if not self.rules.doomed:
            return self.at("ending", answer="landed", attempt=0)  # its code takes the doubt for what it likes
        told = "back-off" if self.effect == "keyed" or answer == "never sent" else "horizon"
        return self.at("doomed", told=told, target=self.step, attempt=0, answer="")

    def _late_outcome(self, status: str) -> Move:
        """A fenced-out attempt settles its own operation, if that still stands at this attempt (I2)."""
        worker, operation = self.worker, self.operation
        # A row set back to pending at this very request was not sent again yet: its success still counts.
        open_to_it = (*DOUBT, "pending") if status == "succeeded" else DOUBT
        if status in DOUBT or operation.status not in open_to_it:
            return self.goes("brings its outcome too late", IDLE)
        if not same(self.rules.late_outcome_compares, operation.version, (operation.status, worker.attempt)):
            return self.goes("brings the outcome of an older attempt", IDLE)
        after = self.state.with_operation(self.step, status=status, question="")
        if self.rules.late_outcome_requeues:
            after = after.woken(parked=True)
        return self.goes(f"has lost its lease, but settles its operation: {status}", IDLE, after)
