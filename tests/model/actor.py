"""What every move of a worker is made of: a place to go to, and the statements of an attempt."""

from __future__ import annotations

from collections.abc import Iterator

from .rules import Rules, Statement, same
from .state import Move, Operation, State, Worker

IDLE = Worker()


class Actor:
    """One worker in one state."""

    def __init__(self, rules: Rules, state: State, index: int, worker: Worker) -> None:
        self.rules = rules
        self.state = state
        self.index = index
        self.worker = worker
        self.step = worker.step
        self.effect = rules.effects[worker.step - 1] if worker.step else ""

    @property
    def operation(self) -> Operation:
        """The operation of this worker's step."""
        return self.state.operations[self.step - 1]

    def goes(
        self, does: str, worker: Worker, state: State | None = None, *, writes: bool = False, wrong: str | None = None
    ) -> Move:
        after = (state or self.state).with_worker(self.index, worker)
        who = f"fence {self.worker.fence or worker.fence}"
        return Move(f"{who}: {does}", after, self.worker if writes else None, wrong=wrong)

    def at(self, place: str, **fields: object) -> Worker:
        """This worker, further on."""
        return self.worker._replace(at=place, **fields)  # type: ignore[arg-type]

    def read_again(self) -> Worker:
        """This attempt, having read the ledger anew; an intent whose answer it lost is a row like any other."""
        worker, known = self.worker, self.operation.version
        if worker.answer and worker.at in ("told", "committing"):
            return worker._replace(at="ending", known=known, told="", target=0, news=False)
        return IDLE._replace(at="claimed", step=worker.step, fence=worker.fence, known=known)

    def dooms(self, does: str, told: str, target: int, known: tuple[str, int]) -> Move:
        """The attempt is over: all it does from now on is to say what its run waits for (I15)."""
        return self.goes(does, self.at("doomed", told=told, target=target, known=known))

    def owns(self, statement: Statement) -> bool:
        """The WHERE of a fenced statement (I2)."""
        run = self.state.run
        if statement not in self.rules.fenced:
            return True
        if run.fence != self.worker.fence:
            return False
        return not self.rules.position_in_where or (run.status == "running" and run.seq == self.step - 1)

    def loses_its_lease(self) -> Move:
        return self.goes("has lost its lease", IDLE)

    def writes(
        self, statement: Statement, does: str, after: State, worker: Worker, lost: Worker | None = None
    ) -> Iterator[Move]:
        """A statement of the owner on its operation: fence and compare-and-set decide, and its answer may be lost."""
        if not self.owns(statement):
            yield self.loses_its_lease()
        elif not same(self.rules.owner_compares, self.operation.version, self.worker.known):
            yield self.goes("finds the operation changed, reads it again", self.read_again())
        else:
            yield self.goes(does, worker, after, writes=True)
            if self.rules.answers_get_lost and lost is not None:
                yield self.goes(f"{does}, the answer is lost", lost, after, writes=True)

    @property
    def has_news(self) -> bool:
        """Whether a statement that looks at `wakeups` finds that they have moved."""
        return self.worker.news and self.rules.wakeups_counted

    def honours_cancel(self, statement: Statement) -> bool:
        return self.state.run.cancel and statement in self.rules.cancel_honoured
