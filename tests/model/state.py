"""A state of the model: what the database holds, what the broker and the outside world hold, where each worker is.

All of it is tuples, so that a state is its own key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WORKERS = 2
SWEEPERS = 2
DOUBT = ("executing", "unknown")
SETTLED = ("succeeded", "failed")
ENDED = ("succeeded", "failed", "cancelled")
AT_REST = ("waiting", "needs_attention")


class Run(NamedTuple):
    """The row of the run; `seq` is its last checkpoint. Status "" means that there is no row yet."""

    status: str = "queued"
    seq: int = 0
    line: int = 0
    fence: int = 0
    due: bool = False
    """Its `due_at` has passed: the lease of a running run, the next ring of a queued one."""
    waits_for: int = 0
    """The step whose operation's horizon a wait waits for; 0 is a back-off."""
    crashes: int = 0
    asks: bool = False
    """A person is asked what to do about its crashes."""
    cancel: bool = False
    retries: int = 0

    def leased_by(self, fence: int) -> bool:
        return self.status == "running" and self.fence == fence and not self.due


class Operation(NamedTuple):
    """The row of the one operation of a step; `status` "" means that there is no row yet."""

    status: str = ""
    attempts: int = 0
    horizon_passed: bool = False
    key_dead: bool = False
    """We no longer trust the vendor to remember the key."""
    earlier_open: bool = False
    """An earlier request of this operation is not settled."""
    question: str = ""
    """What a person is asked about it: "unknown" or "orphan"."""
    line: int = 0
    kept: bool = False
    """A person said that it stays, although the line that goes on does not ask for it."""
    asked_by: int = -1
    """The newest line that committed a step which asked for it. Only the judge looks at this."""

    @property
    def version(self) -> tuple[str, int]:
        """What a compare-and-set compares."""
        return self.status, self.attempts

    def canonical(self) -> Operation:
        """Without what no longer matters."""
        if self.status in DOUBT or not (self.horizon_passed or self.earlier_open or self.key_dead):
            return self
        if self.status in SETTLED:
            return self._replace(horizon_passed=False, key_dead=False, earlier_open=False)
        return self._replace(earlier_open=False)


class Vendor(NamedTuple):
    """The outside world of one operation."""

    effects: int = 0
    key: str = "new"
    """Then "known", then "forgotten"."""
    voided: int = 0
    """Requests of attempts up to this one are refused."""
    visible: bool = False
    in_the_air: tuple[tuple[int, bool], ...] = ()
    """Requests under way: the attempt, and whether its horizon has passed."""


class Worker(NamedTuple):
    """A worker, the attempt it holds and the place in it. One that does not move for a while is a zombie."""

    at: str = "idle"
    step: int = 0
    fence: int = 0
    known: tuple[str, int] = ("", 0)
    """The version of the operation that this attempt has read."""
    attempt: int = 0
    """The attempt of the operation whose intent it committed."""
    late: bool = False
    """The deadline of that intent has passed."""
    answer: str = ""
    """What the step got from its call: "landed" or "refused"; or what it does without: "left out", "cancelled"."""
    told: str = ""
    """What a probe said; of a doomed attempt, what its run is to wait for."""
    target: int = 0
    """The step whose operation is being settled."""
    news: bool = False
    """The run's `wakeups` moved since this attempt looked."""


class Sweeper(NamedTuple):
    """A sweeper between its look at a run and what it does about it."""

    at: str = "idle"
    fresh: bool = False
    """The `due_at` that it saw still stands."""


class Answer(NamedTuple):
    """What somebody has seen of the world and not written yet."""

    who: str
    step: int
    happened: bool
    attempts: int


class State(NamedTuple):
    """Steps are numbered from 1; step n turns checkpoint n - 1 into checkpoint n."""

    run: Run
    operations: tuple[Operation, ...]
    vendors: tuple[Vendor, ...]
    rung: bool
    """A doorbell for the run's next step is under way. One that meets a run which is not queued, or an older step, is
    left out: it changes nothing, or rings for the next step, which the broker's redelivery does too."""
    workers: tuple[Worker, ...]
    answers: tuple[Answer, ...] = ()
    sweepers: tuple[Sweeper, ...] = ()
    beat: int = 0
    """The fence that a renewal under way names; 0 is none."""
    enqueuing: bool = False
    """Somebody has not heard yet that his run was made."""
    runs: int = 1
    """How many runs were made of the one job."""

    def with_run(self, **fields: Any) -> State:
        return self._replace(run=self.run._replace(**fields))

    def with_operation(self, step: int, **fields: Any) -> State:
        return self._replace(operations=_put(self.operations, step - 1, self.operations[step - 1]._replace(**fields)))

    def with_vendor(self, step: int, **fields: Any) -> State:
        return self._replace(vendors=_put(self.vendors, step - 1, self.vendors[step - 1]._replace(**fields)))

    def with_worker(self, index: int, worker: Worker) -> State:
        return self._replace(workers=_put(self.workers, index, worker))

    def with_news(self) -> State:
        """Count a wake-up, which the run's attempt will notice."""
        fence = self.run.fence
        told = (w._replace(news=True) if w.fence == fence and w.at not in QUIET else w for w in self.workers)
        return self._replace(workers=tuple(told))

    def woken(self, *, parked: bool) -> State:
        """Wake the run (I9): a waiting one goes on, and a parked one where nothing is left to ask."""
        after = self.with_news()
        if self.run.status == "waiting" or (parked and self.run.status == "needs_attention" and not self.blocked):
            after = after.with_run(status="queued", due=False, waits_for=0)
        return after

    def without_answer(self, answer: Answer) -> State:
        rest = list(self.answers)
        rest.remove(answer)
        return self._replace(answers=tuple(rest))

    def operation(self, step: int) -> Operation:
        return self.operations[step - 1]

    def vendor(self, step: int) -> Vendor:
        return self.vendors[step - 1]

    @property
    def ended(self) -> bool:
        return self.run.status in ENDED

    @property
    def blocked(self) -> bool:
        """A question is open that holds the run."""
        return self.run.asks or any(operation.question for operation in self.operations)

    @property
    def in_doubt(self) -> bool:
        return any(operation.status in DOUBT for operation in self.operations)

    def owned_by(self, worker: Worker) -> bool:
        """Whether this attempt is the run's one owner (I2)."""
        run = self.run
        return run.status == "running" and run.fence == worker.fence and run.seq == worker.step - 1

    def canonical(self) -> State:
        """One state for all those that differ in nothing which matters."""
        run, sweepers, workers = self.run, self.sweepers, self.workers
        if run.due and run.status != "running" and not (sweepers and run.status == "queued"):
            run = run._replace(due=False)
        if sweepers:
            fresh = run.status == "queued" and run.due
            sweepers = tuple(sorted(s._replace(fresh=s.fresh and fresh) for s in sweepers))
        if workers[0] > workers[1]:
            workers = workers[::-1]
        operations = tuple(operation.canonical() for operation in self.operations)
        rung = self.rung and run.status == "queued"
        return State(
            run, operations, self.vendors, rung, workers, self.answers, sweepers, self.beat, self.enqueuing, self.runs
        )


QUIET = ("idle", "dead", "hung")
"""Where a worker notices nothing any more."""


class Move(NamedTuple):
    """A transition that may happen, before anybody has judged it."""

    label: str
    state: State
    writer: Worker | None = None
    """The attempt that wrote as the owner of the run."""
    luck: bool = False
    wrong: str | None = None
    """A rule that the move itself breaks, whatever it leaves behind."""


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
