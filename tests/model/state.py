"""A state of the model: what the database holds, what the broker and the outside world hold, where each worker is.

All of it is tuples, so that a state is its own key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WORKERS = 2
DOUBT = ("executing", "unknown")
SETTLED = ("succeeded", "failed")


class Run(NamedTuple):
    """The row of the run; `seq` is its last checkpoint."""

    status: str = "queued"
    seq: int = 0
    fence: int = 0
    leased: bool = False
    crashes: int = 0
    asks: str = ""
    """What a person is asked while the run needs attention: "unknown" or "crashes"."""


class Operation(NamedTuple):
    """The row of the one operation of a step; `status` "" means that there is no row yet."""

    status: str = ""
    attempts: int = 0
    horizon_passed: bool = False
    key_dead: bool = False
    """We no longer trust the vendor to remember the key."""
    earlier_open: bool = False
    """An earlier request of this operation is not settled."""

    @property
    def version(self) -> tuple[str, int]:
        """What a compare-and-set compares."""
        return self.status, self.attempts

    def canonical(self) -> Operation:
        """Without what no longer matters."""
        if self.status in DOUBT:
            return self
        return Operation(self.status, self.attempts, key_dead=self.key_dead and self.status not in SETTLED)


class Vendor(NamedTuple):
    """The outside world of one operation."""

    effects: int = 0
    key: str = "new"
    """Then "known", then "forgotten"."""
    voided: int = 0
    """Requests of attempts up to this one are refused."""
    visible: bool = False
    in_the_air: tuple[int, ...] = ()
    """Requests under way, by attempt."""


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


class State(NamedTuple):
    """Steps are numbered from 1; step n turns checkpoint n - 1 into checkpoint n."""

    run: Run
    operations: tuple[Operation, ...]
    vendors: tuple[Vendor, ...]
    rung: bool
    """A doorbell for the run's next step is under way. One that meets a run which is not queued, or an older step, is
    left out: it changes nothing, or rings for the next step, which the broker's redelivery does too."""
    workers: tuple[Worker, ...]
    answers: tuple[tuple[int, bool, int], ...]
    """What persons have seen and not yet written: (step, happened, attempts)."""

    def with_run(self, **fields: Any) -> State:
        return self._replace(run=self.run._replace(**fields))

    def with_operation(self, step: int, **fields: Any) -> State:
        return self._replace(operations=_put(self.operations, step - 1, self.operation(step)._replace(**fields)))

    def with_vendor(self, step: int, **fields: Any) -> State:
        return self._replace(vendors=_put(self.vendors, step - 1, self.vendor(step)._replace(**fields)))

    def with_worker(self, index: int, worker: Worker) -> State:
        return self._replace(workers=_put(self.workers, index, worker))

    def operation(self, step: int) -> Operation:
        return self.operations[step - 1]

    def vendor(self, step: int) -> Vendor:
        return self.vendors[step - 1]

    @property
    def ended(self) -> bool:
        return self.run.status in SETTLED

    @property
    def next_step(self) -> int:
        """The step that the run is at; of an ended run, its last one."""
        return min(self.run.seq + 1, len(self.operations))

    def owned_by(self, worker: Worker) -> bool:
        """Whether this attempt is the run's one owner (I2)."""
        run = self.run
        return run.status == "running" and run.fence == worker.fence and run.seq == worker.step - 1

    def canonical(self) -> State:
        """One state for all those that differ in nothing which matters."""
        operations = tuple(operation.canonical() for operation in self.operations)
        rung = self.rung and self.run.status == "queued"
        return self._replace(workers=tuple(sorted(self.workers)), operations=operations, rung=rung)


class Move(NamedTuple):
    """A transition that may happen, before anybody has judged it."""

    label: str
    state: State
    writer: Worker | None = None
    """The attempt that wrote as the owner of the run."""
    luck: bool = False


def initial(steps: int) -> State:
    """A run just enqueued, its doorbell rung."""
    return State(Run(), (Operation(),) * steps, (Vendor(),) * steps, True, (Worker(),) * WORKERS, ())


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
