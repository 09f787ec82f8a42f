"""Why an attempt is over although its step is not, and what becomes of its run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_tasks.identity import item_id
from agent_tasks.operations import text_of
from agent_tasks.replying import commands, program_here
from agent_tasks.states import Question

if TYPE_CHECKING:
    from agent_tasks.lines import NewLine
    from agent_tasks.operations import Operation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A question for a person.

    Args:
        question: what is asked.
        subject: the operation id, or the run id where the question is about the run.
        attempts: of the operation when the question was asked; an answer about one try never settles another.
        digest: of the arguments asked for now, in a conflict.
        detail: what a person must see.
    """

    question: Question
    subject: str
    operation_id: str | None = None
    attempts: int = 0
    digest: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def item_id(self) -> str:
        """The same question about the same try is one inbox item."""
        return item_id(self.question, self.subject, self.attempts, self.digest)


def about(question: Question, operation: Operation, **more: Any) -> Asked:
    """Ask about the try at which an operation stands, with what was called and ``more`` before the person's eyes."""
    identifier = operation.operation_id
    named = {} if operation.external_id is None else {"external_id": operation.external_id}
    detail = {"tool": operation.tool, "args": operation.args, **named, **more}
    return Asked(question, identifier, identifier, operation.attempts, detail=detail)


@dataclass(frozen=True)
class Lost:
    """The lease is another's, or cannot be told to be ours: write nothing."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """The run waits for a due time: ``until`` (microseconds on the database's clock), ``seconds`` from now, or the later.

    Args:
        reason: said to people.
        retried: the wait is a retry that the step's own code asked for, and is counted as one.
        questions: that a person may answer before that, and need not.
    """

    reason: str
    until: int | None = None
    seconds: float = 0.0
    retried: bool = False
    questions: tuple[Asked, ...] = ()


@dataclass(frozen=True)
class Ask:
    """The run waits for a person."""

    reason: str
    questions: tuple[Asked, ...]


@dataclass(frozen=True)
class Cancelled:
    """Somebody asked for the run's end, which comes once nothing is in doubt."""

    reason: str = "it was cancelled"


@dataclass(frozen=True)
class FallBack:
    """The checkpoint must not be used: a new line begins at an older one."""

    reason: str
    line: NewLine


Suspension = Lost | Wait | Ask | Cancelled | FallBack


def steps_are_spent(run_id: str, step: str, allowed: int, more: int) -> Ask:
    """Ask whether a run that has taken ``allowed`` steps may take ``more`` of them."""
    detail = {"step": step, "allowed": allowed, "more": more}
    return Ask(
        f"its {allowed} steps are spent, and {step} would be the next",
        (Asked(Question.STEPS, run_id, attempts=allowed, detail=detail),),
    )


class RetryLater(Exception):
    """A body asks to be run again later. What it had done by then is judged as if it had ended with its cause.

    Attributes:
        cause: the exception that it asks for a retry after, if there is one.
        seconds: until then.
    """

    cause: Exception | None = None
    seconds: float = 0.0

    @property
    def judged(self) -> Exception:
        """What says whether the request happened."""
        return self.cause or self

    @property
    def wait(self) -> Wait:
        """The wait that is asked for."""
        because = "" if self.cause is None else f" ({type(self.cause).__name__}: {text_of(self.cause)})"
        return Wait(f"to be tried again{because}", seconds=self.seconds, retried=True)


def log_attention(run_id: str, ask: Ask | Wait, *, is_kept: bool = True) -> None:
    """Say that a person is asked about a run, with the lines that answer each question.

    Args:
        run_id: of the run.
        ask: what it waits for.
        is_kept: False for a ledger that ends with the run, where nobody will ever answer.
    """
    program = program_here()
    lines = [
        f"\n  {asked.question!s}: {command}"
        for asked in ask.questions
        for command in commands(program, asked.item_id, asked.question)
    ]
    if not is_kept:
        lines = [
            f"\n  {asked.question!s}: nobody can answer, since this ledger ends with the run; let the body or its probe "
            "return what the vendor would, or test the answer with explore_crashes or a worker"
            for asked in ask.questions
        ]
    logger.warning(
        "run %s needs attention: %s%s",
        run_id,
        ask.reason,
        "".join(lines),
        extra={"action": "needs_attention", "run_id": run_id, "items": [asked.item_id for asked in ask.questions]},
    )
