"""The protocol as a model: one run, one tool call a step, two workers.

Every transaction is one move. Between two moves a worker may be killed, or be overtaken for as long as it likes.
Time is abstract: the lease runs out, the horizon passes and the key dies whenever the assumptions allow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .actor import IDLE
from .attempt import Attempt
from .checker import Step
from .kinds import (
    DENIED,
    DOUBLED,
    INVENTED,
    LEFT_IN_DOUBT,
    ORPHANED,
    RETURNED,
    REWRITTEN,
    SKIPPED,
    TWO_RUNS,
    ZOMBIE,
)
from .outside import Outside
from .persons import Persons
from .rules import REPEATED, Rules
from .state import DOUBT, SETTLED, SWEEPERS, WORKERS, Move, Operation, Run, State, Sweeper, Vendor, Worker
from .upkeep import Upkeep


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
        self.around = (Outside(rules), Persons(rules), Upkeep(rules))

    def initial(self) -> State:
        """A run just enqueued, its doorbell rung; or about to be enqueued."""
        rules, steps = self.rules, len(self.rules.effects)
        return State(
            Run("" if rules.from_enqueue else "queued"),
            (Operation(),) * steps,
            (Vendor(),) * steps,
            not rules.from_enqueue,
            (Worker(),) * WORKERS,
            sweepers=(Sweeper(),) * SWEEPERS if rules.two_sweepers else (),
            enqueuing=rules.from_enqueue,
        )

    def ended(self, state: State) -> bool:
        """A run that has used up its claims counts as ended: the search is bounded there."""
        return state.ended or state.run.fence >= self.rules.max_fence

    def steps(self, state: State) -> Iterator[Step[State]]:
        for move in self._moves(state):
            violation = next((kind for kind in self._violations(state, move) if kind not in self.forgiven), None)
            yield Step(move.label, self._without_ghosts(move.state).canonical(), violation, move.luck)

    def _without_ghosts(self, state: State) -> State:
        """Forget the zombies that every WHERE turns away, so that each does not multiply what the others may do."""
        if not self.rules.turns_zombies_away:
            return state
        workers = tuple(IDLE if self._is_ghost(state, worker) else worker for worker in state.workers)
        return state if workers == state.workers else state._replace(workers=workers)

    def _is_ghost(self, state: State, worker: Worker) -> bool:
        run = state.run
        if worker.at == "idle" or (run.status == "running" and run.fence == worker.fence):
            return False
        if worker.at in ("sent", "answered"):
            operation = state.operation(worker.step)
            settles = operation.attempts == worker.attempt and operation.status in (*DOUBT, "pending")
            return not settles or worker.answer == "ambiguous"
        if worker.at in ("claimed", "told"):  # its probe may still void a reference, its read may still be sent
            return self.rules.vendor != "voids"
        return worker.at in ("claiming", "unheard", "ending", "committing", "doomed")

    def _moves(self, state: State) -> Iterator[Move]:
        for others in self.around:
            yield from others.moves(state)
        for index, worker in enumerate(state.workers):
            if worker not in state.workers[:index]:
                yield from Attempt(self.rules, state, index, worker).moves()

    def _violations(self, before: State, move: Move) -> Iterator[str]:
        after = move.state
        if move.wrong:
            yield move.wrong
        if move.writer and not before.owned_by(move.writer):
            yield ZOMBIE
        if before.ended and after.run != before.run:
            yield RETURNED
        if after.runs > 1:
            yield TWO_RUNS
        if before.operations is not after.operations:
            for old, new in zip(before.operations, after.operations, strict=True):
                if old.status in SETTLED and new.status != old.status and not _is_set_back(before, after, old):
                    yield REWRITTEN
        if before.operations is not after.operations or before.vendors is not after.vendors:
            yield from self._against_the_truth(after)
        if after.ended and not before.ended:
            yield from self._at_the_end(after)

    def _against_the_truth(self, after: State) -> Iterator[str]:
        for effect, operation, vendor in zip(self.rules.effects, after.operations, after.vendors, strict=True):
            if operation.status == "succeeded" and not vendor.effects:
                yield INVENTED
            if effect in REPEATED:
                continue
            if operation.status == "failed" and vendor.effects:
                yield DENIED
            if vendor.effects > 1:
                yield DOUBLED

    def _at_the_end(self, after: State) -> Iterator[str]:
        if after.in_doubt:
            yield LEFT_IN_DOUBT
        if after.run.status != "succeeded":
            return
        straight = not self.rules.bodies_vary and not after.run.line
        for effect, operation in zip(self.rules.effects, after.operations, strict=True):
            if straight and operation.status not in (*DOUBT, "succeeded"):
                yield SKIPPED
            happened = effect != "read" and operation.status == "succeeded" and not operation.kept
            if happened and operation.asked_by != after.run.line:
                yield ORPHANED


def _is_set_back(before: State, after: State, old: Operation) -> bool:
    """What a step's retry may do to its failure, and a new line that forgets the old one's rows to all."""
    retried = old.status == "failed" and after.run.retries > before.run.retries
    return retried or after.run.line > before.run.line
