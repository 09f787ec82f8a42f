"""The protocol as a model: one run, one tool call a step, two workers.

Every transaction is one move. Between two moves a worker may be killed, or be overtaken for as long as it likes.
Time is abstract: the lease runs out, the horizon passes and the key dies whenever the assumptions allow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .attempt import Attempt
from .checker import Step
from .outside import Outside
from .rules import Rules
from .state import DOUBT, SETTLED, Move, State, initial

DOUBLED = "an effect happened twice"
DENIED = "an operation failed, but its effect happened"
INVENTED = "an operation succeeded, but nothing happened"
SKIPPED = "a run succeeded without one of its effects"
LEFT_IN_DOUBT = "a run ended with an operation in doubt"
REWRITTEN = "a settled operation changed"
ZOMBIE = "an attempt that does not own the run wrote as its owner"


class Protocol:
    """The model that the checker walks through."""

    def __init__(self, rules: Rules, forgiven: frozenset[str] = frozenset()) -> None:
        """Build the model of a variation.

        Args:
            rules: which protections stand and what the world does.
            forgiven: kinds of violations to look past, to see what comes of them.
        """
        self.rules = rules
        self.forgiven = forgiven
        self.outside = Outside(rules)

    def initial(self) -> State:
        return initial(len(self.rules.effects))

    def ended(self, state: State) -> bool:
        """A run that has used up its claims counts as ended: the search is bounded there."""
        return state.ended or state.run.fence >= self.rules.max_fence

    def steps(self, state: State) -> Iterator[Step[State]]:
        for move in self._moves(state):
            violation = next((kind for kind in self._violations(state, move) if kind not in self.forgiven), None)
            yield Step(move.label, move.state.canonical(), violation, move.luck)

    def _moves(self, state: State) -> Iterator[Move]:
        yield from self.outside.moves(state)
        if self.rules.sweeper:
            yield from self.sweep(state)
        for index, worker in enumerate(state.workers):
            if worker not in state.workers[:index]:
                yield from Attempt(self.rules, state, index, worker).moves()

    def sweep(self, state: State) -> Iterator[Move]:
        """The sweeper alone turns what is due into `queued`; that ends the fence of an expired lease. Then it rings."""
        run = state.run
        ring = state._replace(rung=True)
        if run.status == "running" and not run.leased:
            crashes = run.crashes + 1
            if crashes < self.rules.max_crashes:
                taken = ring.with_run(status="queued", crashes=crashes)
                yield Move("the sweeper takes the expired lease and rings", taken)
            else:
                parked = state.with_run(status="needs_attention", crashes=crashes, asks="crashes")
                yield Move("the sweeper parks the run after its last crash", parked)
        elif run.status == "waiting" and self._due(state):
            yield Move("the sweeper ends the wait and rings", ring.with_run(status="queued"))
        elif run.status == "queued" and not state.rung:
            yield Move("the sweeper rings", ring)

    def _due(self, state: State) -> bool:
        operation = state.operation(state.next_step)
        back_off = self.rules.effects[state.next_step - 1] == "keyed" and not operation.key_dead
        return operation.status not in DOUBT or operation.horizon_passed or back_off or not self.rules.horizon

    def _violations(self, before: State, move: Move) -> Iterator[str]:
        after = move.state
        if move.writer and not before.owned_by(move.writer):
            yield ZOMBIE
        for old, new in zip(before.operations, after.operations, strict=True):
            if old.status in SETTLED and new.status != old.status:
                yield REWRITTEN
        for effect, operation, vendor in zip(self.rules.effects, after.operations, after.vendors, strict=True):
            if operation.status == "succeeded" and not vendor.effects:
                yield INVENTED
            if operation.status == "failed" and vendor.effects and effect != "read":
                yield DENIED
            if vendor.effects > 1 and effect != "read":
                yield DOUBLED
        if after.run.status == "succeeded" and any(o.status not in (*DOUBT, "succeeded") for o in after.operations):
            yield SKIPPED
        if after.ended and any(o.status in DOUBT for o in after.operations):
            yield LEFT_IN_DOUBT
