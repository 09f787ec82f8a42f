"""Everything that happens without a worker: broker, clock, vendor, and persons who answer."""

from __future__ import annotations

from collections.abc import Iterator

from .rules import Rules, same
from .state import DOUBT, Move, State


class Outside:
    """The moves of the world around the workers."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def moves(self, state: State) -> Iterator[Move]:
        yield from self.broker(state)
        yield from self.lease(state)
        for step, effect in enumerate(self.rules.effects, 1):
            yield from self.horizon(state, step)
            yield from self.requests(state, step, effect)
            if effect == "keyed" and self.rules.keys_expire:
                yield from self.key(state, step)
            if self.rules.view_lags and state.vendor(step).effects and not state.vendor(step).visible:
                yield Move(f"effect {step} becomes visible", state.with_vendor(step, visible=True))
        yield from self.persons(state)

    def broker(self, state: State) -> Iterator[Move]:
        """Doorbells get lost, and delivered again."""
        if state.rung:
            yield Move("the broker loses the doorbell", state._replace(rung=False))
        elif state.run.status == "queued" and state.run.fence:
            yield Move("the broker redelivers a doorbell", state._replace(rung=True), luck=True)

    # ---- clock ---------------------------------------------------------------------------------

    def lease(self, state: State) -> Iterator[Move]:
        run = state.run
        if run.status != "running" or not run.leased:
            return
        renewed_for_ever = any(
            worker.fence == run.fence
            and ((worker.at == "hung" and not self.rules.step_timeout) or worker.at == "claimed unseen")
            for worker in state.workers
        )
        if not renewed_for_ever:
            yield Move("the lease runs out", state.with_run(leased=False))

    def horizon(self, state: State, step: int) -> Iterator[Move]:
        operation = state.operation(step)
        if operation.status not in DOUBT or operation.horizon_passed or self._still_to_land(state, step):
            return
        passed = state.with_operation(step, horizon_passed=True)
        yield Move(f"the horizon of operation {step} passes", self._deadlines_pass(passed, step))

    def key(self, state: State, step: int) -> Iterator[Move]:
        """First we stop trusting the key, then the vendor forgets it."""
        operation = state.operation(step)
        if operation.attempts and not operation.key_dead and operation.status in (*DOUBT, "pending"):
            yield Move(f"key {step} is near its end", state.with_operation(step, key_dead=True))
        if operation.key_dead and state.vendor(step).key == "known" and not self._still_to_land(state, step):
            forgotten = state.with_vendor(step, key="forgotten")
            yield Move(f"the vendor forgets key {step}", self._deadlines_pass(forgotten, step))

    def _still_to_land(self, state: State, step: int) -> bool:
        """Whether our two assumptions about time keep the horizon from passing."""
        waiting = self.rules.requests_land_in_time and state.vendor(step).in_the_air
        sending = self.rules.never_frozen and any(w.at == "checked" and w.step == step for w in state.workers)
        return bool(waiting or sending)

    def _deadlines_pass(self, state: State, step: int) -> State:
        workers = (
            w._replace(late=True) if w.step == step and w.attempt and w.at in ("intended", "claimed") else w
            for w in state.workers
        )
        return state._replace(workers=tuple(workers))

    # ---- vendor --------------------------------------------------------------------------------

    def requests(self, state: State, step: int, effect: str) -> Iterator[Move]:
        """A request is lost, refused or lands; then its answer is lost or reaches who still waits for it."""
        vendor = state.vendor(step)
        for attempt in vendor.in_the_air:
            name = f"request {step}.{attempt}"
            gone = state.with_vendor(step, in_the_air=tuple(a for a in vendor.in_the_air if a != attempt))
            yield Move(f"{name} is lost", gone)
            ends = [("refused", gone)]
            if attempt > vendor.voided or not attempt:
                ends.append(("landed", self._land(gone, step, effect)))
            for answer, after in ends:
                yield Move(f"{name} {answer}, the answer is lost", after)
                for index, worker in enumerate(after.workers):
                    if worker.at == "sent" and (worker.step, worker.attempt) == (step, attempt):
                        answered = worker._replace(at="answered", answer=answer)
                        hears = f"fence {worker.fence}: hears that {name} {answer}"
                        yield Move(hears, after.with_worker(index, answered))

    def _land(self, state: State, step: int, effect: str) -> State:
        vendor = state.vendor(step)
        if effect == "keyed" and vendor.key == "known":
            return state
        happened = state.with_vendor(step, effects=min(2, vendor.effects + 1), visible=not self.rules.view_lags)
        return happened.with_vendor(step, key="known") if effect == "keyed" else happened

    # ---- persons -------------------------------------------------------------------------------

    def persons(self, state: State) -> Iterator[Move]:
        """A look at the world and the answer to it are two moments; two persons may be at it."""
        step, run = state.next_step, state.run
        operation = state.operation(step)
        if run.asks == "crashes":
            yield Move("a person retries the run", state.with_run(status="queued", crashes=0, asks=""))
        if run.asks == "unknown" and operation.status == "unknown" and len(state.answers) < 2:
            happened = state.vendor(step).effects > 0
            seen = tuple(sorted((*state.answers, (step, happened, operation.attempts))))
            looked = state._replace(answers=seen)
            if self.rules.vendor_voids and not happened:
                looked = looked.with_vendor(step, voided=operation.attempts)
            yield Move(f"a person finds that effect {step} {_happened(happened)}", looked)
        for answer in sorted(set(state.answers)):
            yield self._answer(state, answer)

    def _answer(self, state: State, answer: tuple[int, bool, int]) -> Move:
        step, happened, attempts = answer
        rest = list(state.answers)
        rest.remove(answer)
        after = state._replace(answers=tuple(rest))
        name = f"a person's answer, that effect {step} {_happened(happened)},"
        current = state.operation(step)
        stands = same(self.rules.answer_compares, current.version, ("unknown", attempts))
        if state.run.status not in ("waiting", "needs_attention") or not stands:
            return Move(f"{name} comes too late", after)
        after = after.with_operation(step, status="succeeded" if happened else "pending")
        return Move(f"{name} is written", after.with_run(status="queued", asks=""))


def _happened(happened: bool) -> str:
    return "happened" if happened else "did not happen"
