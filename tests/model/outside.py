"""What happens without a worker: broker, clock, vendor, and who enqueues."""

from __future__ import annotations

from collections.abc import Iterator

from .kinds import OVERWRITTEN
from .rules import Rules
from .state import DOUBT, Move, State, Worker


class Outside:
    """The moves of the world around the workers."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def moves(self, state: State) -> Iterator[Move]:
        if state.enqueuing:
            yield from self.enqueue(state)
        yield from self.broker(state)
        yield from self.lease(state)
        for step, effect in enumerate(self.rules.effects, 1):
            yield from self.horizon(state, step)
            yield from self.requests(state, step, effect)
            if effect == "keyed" and self.rules.keys_expire:
                yield from self.key(state, step)
            if self.rules.view_lags and state.vendor(step).effects and not state.vendor(step).visible:
                yield Move(f"effect {step} becomes visible", state.with_vendor(step, visible=True))

    def enqueue(self, state: State) -> Iterator[Move]:
        """The run's id is the caller's: asking again after a lost answer finds the run."""
        heard = state._replace(enqueuing=False)
        if not state.run.status:
            made = state.with_run(status="queued")
            yield Move("the run is made, its doorbell rung", made._replace(enqueuing=False, rung=True))
            yield Move("the run is made, the answer is lost", made)
        elif self.rules.enqueued_by_id:
            yield Move("who enqueues asks again, finds his run and rings", heard._replace(rung=True))
        else:
            yield Move("who enqueues asks again", heard._replace(runs=2))

    def broker(self, state: State) -> Iterator[Move]:
        """Doorbells get lost, and delivered again."""
        if state.rung:
            yield Move("the broker loses the doorbell", state._replace(rung=False))
        elif state.run.status == "queued" and state.run.fence:
            yield Move("the broker redelivers a doorbell", state._replace(rung=True), luck=True)

    # ---- clock -----------------------------------------------------------------------------------

    def lease(self, state: State) -> Iterator[Move]:
        """A date passes: of a lease, or of a queued run that is to be rung for again."""
        run = state.run
        if run.due:
            return
        if run.status == "queued" and self.rules.two_sweepers:
            yield Move("it is time to ring again", state.with_run(due=True))
        elif run.status == "running" and not any(self._renews_for_ever(state, worker) for worker in state.workers):
            yield Move("the lease runs out", state.with_run(due=True))

    def _renews_for_ever(self, state: State, worker: Worker) -> bool:
        if worker.fence != state.run.fence:
            return False
        killed = self.rules.step_timeout or (worker.told == "call" and self.rules.deadline_kill)
        return worker.at == "renewed unseen" or (worker.at == "hung" and not killed)

    def horizon(self, state: State, step: int) -> Iterator[Move]:
        operation = state.operation(step)
        counts = operation.status in DOUBT or (operation.status == "pending" and self.rules.repeated_waits)
        if not counts or operation.horizon_passed or self._still_to_land(state, step):
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
        if self.rules.requests_land_in_time and state.vendor(step).in_the_air:
            return True
        frozen = self.rules.frozen
        if frozen == "a host" or (frozen == "a child" and not self.rules.deadline_kill):
            return False
        return any(w.at == "checked" and w.step == step for w in state.workers)

    def _deadlines_pass(self, state: State, step: int) -> State:
        late = ("intended", "unheard", "checked") if self.rules.vendor == "refuses late" else ("intended", "unheard")
        workers = tuple(
            w._replace(late=True) if w.step == step and w.attempt and w.at in late else w for w in state.workers
        )
        if self.rules.vendor == "refuses late":
            air = tuple((attempt, True) for attempt, _ in state.vendor(step).in_the_air)
            state = state.with_vendor(step, in_the_air=air)
        return state._replace(workers=workers)

    # ---- vendor ----------------------------------------------------------------------------------

    def requests(self, state: State, step: int, effect: str) -> Iterator[Move]:
        """A request is lost, refused or lands; then its answer is lost or reaches who still waits for it."""
        vendor = state.vendor(step)
        for request in vendor.in_the_air:
            attempt, late = request
            name = f"request {step}.{attempt}"
            gone = state.with_vendor(step, in_the_air=tuple(r for r in vendor.in_the_air if r != request))
            yield Move(f"{name} is lost", gone)
            # Who keeps references unique says of a second request that there is one, which is no refusal.
            unique = vendor.effects and self.rules.vendor == "keeps references unique"
            ends = [] if unique else [("refused", gone)]
            if (attempt > vendor.voided or not attempt) and not (late and self.rules.vendor == "refuses late"):
                ends.append(("landed", self._land(gone, step, effect)))
            for answer, after in ends:
                wrong = OVERWRITTEN if answer == "landed" and self._is_old(state, step) else None
                yield Move(f"{name} {answer}, the answer is lost", after, wrong=wrong)
                for index, worker in enumerate(after.workers):
                    if worker.at == "sent" and (worker.step, worker.attempt) == (step, attempt):
                        answered = worker._replace(at="answered", answer=answer)
                        hears = f"fence {worker.fence}: hears that {name} {answer}"
                        yield Move(hears, after.with_worker(index, answered), wrong=wrong)

    def _is_old(self, state: State, step: int) -> bool:
        return self.rules.one_resource and any(vendor.effects for vendor in state.vendors[step:])

    def _land(self, state: State, step: int, effect: str) -> State:
        vendor = state.vendor(step)
        if effect == "keyed" and vendor.key == "known":
            return state
        if vendor.effects and self.rules.vendor == "keeps references unique":
            return state
        happened = state.with_vendor(step, effects=min(2, vendor.effects + 1), visible=not self.rules.view_lags)
        return happened.with_vendor(step, key="known") if effect == "keyed" else happened
