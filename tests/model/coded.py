"""A ledger under the code of a step, by the rules about code: the second model.

The other model has one call a step and knows nothing of code. Here a schedule fixes each coin of a body, each answer of
the vendor and each crash; attempts run the body from the top, with the ledger that they find. An operation in doubt is
settled by an honest probe after its horizon, so that whatever goes wrong here is the code's doing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Rule = str
I5, I13, I14, I15 = "I5", "I13", "I14", "I15"
RULES: tuple[Rule, ...] = (I5, I13, I14, I15)

#: What one might build in place of a rule.
EVERY_FAILURE_AGAIN = "I5 for failures that the step went on after, too"
ROWLESS_ONLY = "I13 before calls that have no row yet, only"
AT_THE_COMMIT_ONLY = "I13 and I14 at the commit, only"
KEYS_OF_A_STEP = "keys count within their step"

OpId = tuple[int, str, object]


class Crashed(BaseException):
    """The process died."""


class Parked(BaseException):
    """A person is asked: always acceptable."""


class Suspended(BaseException):
    """The step ends and comes back after the horizon; no ``except Exception`` catches it (I15)."""


class Refused(Exception):
    """The vendor said no."""


class TimedOut(Exception):
    """What code sees of a doubt where I15 is missing."""


@dataclass
class Operation:
    """A row of the ledger, and whether its effect is in the world."""

    status: str
    seq: int
    args: tuple[object, ...]
    born: int
    ended: int = 0
    landed: bool = False


class Schedule:
    """The choices of one run: given ones first, then the first of each."""

    def __init__(self, given: tuple[int, ...]) -> None:
        self.given = given
        self.taken: list[tuple[int, int]] = []

    def choose(self, options: int) -> int:
        place = len(self.taken)
        choice = self.given[place] if place < len(self.given) else 0
        self.taken.append((choice, options))
        return choice

    def next(self) -> tuple[int, ...] | None:
        """The choices of the next schedule, depth first."""
        for place in reversed(range(len(self.taken))):
            choice, options = self.taken[place]
            if choice + 1 < options:
                return (*(choice for choice, _ in self.taken[:place]), choice + 1)
        return None


@dataclass
class Ledger:
    """The operations of one run and the world outside, under a choice of rules."""

    schedule: Schedule
    rules: frozenset[Rule]
    crashes: int
    attempts: int
    operations: dict[OpId, Operation] = field(default_factory=dict)
    world: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    seq: int = 0
    ordinals: dict[str, int] = field(default_factory=dict)
    asked: set[OpId] = field(default_factory=set)
    asked_by_line: set[OpId] = field(default_factory=set)
    before: set[OpId] = field(default_factory=set)
    doomed: bool = False
    moment: int = 0

    # ---- the step ----------------------------------------------------------------------------------

    def step(self, seq: int, body: Callable[[Ledger], None]) -> None:
        """Try a step until it commits; a failure of its own is retried, a crash or a doubt begins anew."""
        for attempt in range(1, self.attempts + 1):
            self.seq, self.ordinals, self.asked, self.doomed = seq, {}, set(), False
            self.before = {key for key, operation in self.operations.items() if operation.seq >= seq}
            self.said.append(f"step {seq}, attempt {attempt}")
            try:
                body(self)
                self._commit()
            except (Crashed, Suspended):
                continue
            except Exception as error:  # noqa: BLE001 - whatever the body raised, its policy tries it again
                self.said.append(f"the step raised {type(error).__name__}")
                continue
            self.asked_by_line |= self.asked
            return
        raise Parked

    def new_line(self) -> None:
        """Fall back to the input."""
        self.asked_by_line = set()
        self.said.append("falls back to checkpoint 0")

    def end(self) -> None:
        """The run ends: no effect without its line (I13)."""
        if I13 in self.rules and self._orphans():
            raise Parked

    def _commit(self) -> None:
        if self.doomed:
            raise Suspended
        self._look_for_unasked({key for key in self.before if self.operations[key].seq == self.seq})
        if I14 in self.rules:
            for operation in self.operations.values():
                if operation.seq == self.seq:
                    self._settle(operation)

    def _orphans(self) -> list[OpId]:
        done = ((key, operation) for key, operation in self.operations.items() if operation.status == "succeeded")
        return [key for key, _ in done if key not in self.asked_by_line]

    # ---- the call ----------------------------------------------------------------------------------

    def call(self, tool: str, *args: object, key: str | None = None) -> None:
        """One call of a tool with an effect."""
        if self.doomed:
            raise Suspended
        self.ordinals[tool] = self.ordinals.get(tool, 0) + 1
        scope = self.seq if key is None or KEYS_OF_A_STEP in self.rules else 0
        identity: OpId = (scope, tool, key or self.ordinals[tool])
        self.asked.add(identity)
        operation = self.operations.get(identity)
        if operation is not None and operation.args != args:
            raise Parked  # I4: a conflict
        if operation is not None and self._is_recorded(operation):
            return
        ordered = key is None and AT_THE_COMMIT_ONLY not in self.rules
        if ordered and (operation is None or ROWLESS_ONLY not in self.rules):
            self._look_for_unasked(self.before)
        if operation is None:
            operation = self.operations[identity] = Operation("pending", self.seq, args, self._now())
        self._send(operation, f"{tool}{args}")

    def coin(self, name: str) -> bool:
        """Anything that code reads and nobody records: time, chance, a new release."""
        got = bool(self.schedule.choose(2))
        self.said.append(f"{name}: {'yes' if got else 'no'}")
        return got

    def _is_recorded(self, operation: Operation) -> bool:
        self._settle(operation)
        if operation.status == "failed" and not self._runs_again(operation):
            raise Refused
        return operation.status == "succeeded"

    def _runs_again(self, failure: Operation) -> bool:
        """A failure is final once its step went on after it; else the step's retry runs it again (I5)."""
        if EVERY_FAILURE_AGAIN in self.rules:
            return True
        later = (o for o in self.operations.values() if o.seq == self.seq and o.born > failure.ended)
        return I5 in self.rules and not any(later)

    def _look_for_unasked(self, recorded: set[OpId]) -> None:
        """What is recorded from here on and not asked for is settled (I14), and asked about if it happened (I13)."""
        for key in sorted(recorded - self.asked, key=str):
            if I14 in self.rules:
                self._settle(self.operations[key])
            if I13 in self.rules and self.operations[key].status == "succeeded":
                raise Parked

    def _settle(self, operation: Operation) -> None:
        """An honest probe, after the horizon."""
        if operation.status in ("executing", "unknown"):
            operation.status = "succeeded" if operation.landed else "pending"

    def _send(self, operation: Operation, what: str) -> None:
        operation.status = "executing"
        self.said.append(f"sends {what}")
        self._may_crash("after the intent")
        landed, heard = ((True, True), (False, True), (True, False), (False, False))[self.schedule.choose(4)]
        if landed:
            operation.landed = True
            self.world.append(what)
        self.said.append(f"{'landed' if landed else 'refused'}{'' if heard else ', and nobody hears of it'}")
        self._may_crash("before the outcome")
        if not heard:
            operation.status = "unknown"
            if I15 in self.rules:
                self.doomed = True
                raise Suspended
            raise TimedOut
        operation.status, operation.ended = ("succeeded" if landed else "failed"), self._now()
        if not landed:
            raise Refused
        self._may_crash("after the outcome")

    def _now(self) -> int:
        self.moment += 1
        return self.moment

    def _may_crash(self, where: str) -> None:
        if self.crashes and self.schedule.choose(2):
            self.crashes -= 1
            self.said.append(f"crashes {where}")
            raise Crashed
