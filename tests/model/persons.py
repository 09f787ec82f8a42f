"""Who answers and who asks for something: persons, and a probe that runs beside the workers."""

from __future__ import annotations

from collections.abc import Iterator

from .call import Call
from .rules import Rules
from .state import AT_REST, DOUBT, Answer, Move, State

ANSWERS = 2
"""How many looks at the world may be on their way to the ledger."""


class Persons:
    """Their moves. A look at the world and the answer to it are two moments."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def moves(self, state: State) -> Iterator[Move]:
        if len(state.answers) < ANSWERS:
            for step, operation in enumerate(state.operations, 1):
                if operation.question == "unknown" and operation.status in DOUBT:
                    yield self._looks(state, step)
                if self.rules.reconciler:
                    yield from self._reconciles(state, step)
        for answer in sorted(set(state.answers)):
            yield from self._answers(state, answer)
        for step, operation in enumerate(state.operations, 1):
            if operation.question == "orphan":
                kept = state.with_operation(step, question="", kept=True).woken(parked=True)
                yield Move(f"a person keeps effect {step}", kept)
        if state.run.asks:
            yield from self._crashes(state)
        if self.rules.cancels and not state.run.cancel and not state.ended and state.run.status:
            yield self._cancels(state)
        if self.rules.falls_back and not state.run.line and state.run.seq and state.run.status in ("queued", *AT_REST):
            yield self._falls_back(state)

    def _looks(self, state: State, step: int) -> Move:
        happened, attempts = state.vendor(step).effects > 0, state.operation(step).attempts
        looked = _with_answer(state, Answer("a person", step, happened, attempts))
        if self.rules.vendor == "voids" and not happened:
            looked = looked.with_vendor(step, voided=attempts)
        return Move(f"a person finds that effect {step} {_happened(happened)}", looked)

    def _reconciles(self, state: State, step: int) -> Iterator[Move]:
        """The probe beside the workers touches only runs that do not run, and asks nobody before the horizon."""
        operation = state.operation(step)
        may_ask = operation.horizon_passed or not self.rules.horizon
        probed = self.rules.effects[step - 1] == "probed" and operation.status in DOUBT and may_ask
        if not probed or state.run.status not in AT_REST:
            return
        told, after = Call.look(self.rules, state, step)
        if told != "AskAgain":
            seen = Answer("the probe beside", step, told == "Happened", operation.attempts)
            yield Move(f"the probe beside the workers says about {step}: {told}", _with_answer(after, seen))

    def _answers(self, state: State, answer: Answer) -> Iterator[Move]:
        after = state.without_answer(answer)
        name = f"{answer.who}'s answer, that effect {answer.step} {_happened(answer.happened)},"
        if not self._stands(state, answer):
            yield Move(f"{name} comes too late", after)
            return
        settled = "succeeded" if answer.happened else "pending"
        after = after.with_operation(answer.step, status=settled, question="", earlier_open=False)
        if answer.who == "a person":
            after = after.with_run(crashes=0)
        after = after.woken(parked=True)
        yield Move(f"{name} is written", after)
        if self.rules.answers_get_lost:
            yield Move(f"{name} is written, he is not told", _with_answer(after, answer))

    def _stands(self, state: State, answer: Answer) -> bool:
        """An answer is about one try (I14); a person's is to a question that is open."""
        operation, compared = state.operation(answer.step), self.rules.answer_compares
        if state.run.status not in AT_REST:
            return False
        if compared == "nothing":
            return True
        if operation.status not in DOUBT:
            return False
        if compared == "status":
            return True
        asked = operation.question == "unknown" or answer.who != "a person"
        return asked and operation.attempts == answer.attempts

    def _crashes(self, state: State) -> Iterator[Move]:
        retried = state.with_run(crashes=0, asks=False)
        yield Move("a person retries the run", retried.woken(parked=True))
        if not (state.in_doubt and self.rules.abort_waits):
            yield Move("a person aborts the run", state.with_run(status="failed", asks=False))

    def _cancels(self, state: State) -> Move:
        """A request on the run row; it ends a run at once where nobody works and nothing is in doubt."""
        at_once = state.run.status != "running" and not state.in_doubt
        if at_once or not self.rules.cancel_waits:
            return Move("a person cancels the run, which ends", state.with_run(status="cancelled", asks=False))
        return Move("a person asks for the run's cancel", state.with_news().with_run(cancel=True))

    def _falls_back(self, state: State) -> Move:
        """A new line from checkpoint 0; what was asked on the old line is asked again where it still matters."""
        after = state.with_run(status="queued", seq=0, line=1, asks=False, crashes=0, due=False, waits_for=0)
        for step, operation in enumerate(state.operations, 1):
            if not self.rules.operations_outlive_lines:
                after = after.with_operation(step, status="", attempts=0, question="")
            elif operation.question:
                after = after.with_operation(step, question="")
        return Move("a person falls back to checkpoint 0", after.with_news()._replace(rung=True))


def _with_answer(state: State, answer: Answer) -> State:
    return state._replace(answers=tuple(sorted((*state.answers, answer))))


def _happened(happened: bool) -> str:
    return "happened" if happened else "did not happen"
