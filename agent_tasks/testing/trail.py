"""What a run waited for on its way, for a reader who wonders why it never ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tasks.cli.output import short
from agent_tasks.states import Question
from agent_tasks.testing.ending import LONGEST_SAID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from agent_tasks.inbox import InboxItem

#: The likely cause of a question that is asked again and again.
_CAUSES = {
    Question.CONFLICT: "is an argument another one each time, such as a random number or the time of day?",
    Question.CRASHES: "does the step end its process, or run out of memory, each time?",
    Question.SENDS: "does the probe find what was sent?",
    Question.STEPS: "do the steps go round in a circle?",
}


class Trail:
    """Where a run stood in each round, and what it gave as the reason.

    Example:
        >>> trail = Trail()
        >>> trail.note({"status": "waiting", "waiting_for": "for the bank"})
        >>> trail.note({"status": "queued", "waiting_for": None})
        >>> trail.why_stuck({"status": "queued", "waiting_for": None}, [], [])
        'stuck after 2 rounds: queued; it was waiting in 1 of them, at last: for the bank'
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._reasons: dict[str, list[str]] = {}

    def note(self, row: Mapping[Any, Any] | None) -> None:
        """Note where the run stands at the end of a round."""
        self._rounds += 1
        if row is not None and row["waiting_for"]:
            self._reasons.setdefault(str(row["status"]), []).append(str(row["waiting_for"]))

    def why_stuck(
        self, row: Mapping[Any, Any] | None, open_now: Iterable[InboxItem], answered: Iterable[InboxItem]
    ) -> str:
        """Return what a run that never ended stands at, and what it waited for until now.

        Args:
            row: of the run now, or None if it is lost.
            open_now: the questions that a person is asked about it.
            answered: the questions that were settled, oldest first.
        """
        said = "lost" if row is None else str(row["status"])
        if row is not None and row["waiting_for"]:
            said += f", it waits: {short(row['waiting_for'], LONGEST_SAID)}"
        parts = [f"stuck after {self._rounds} rounds: {said}"]
        parts += [
            f"it was {status} in {len(reasons)} of them, at last: {short(reasons[-1], LONGEST_SAID)}"
            for status, reasons in self._reasons.items()
        ]
        asked = list(open_now)
        parts += [f"a person is asked: {question_of(item)}" for item in asked]
        before = list(answered)
        if before:
            last = before[-1]
            how = f"{last.reply!s} by {last.replied_by}" if last.reply is not None else f"withdrawn: {last.replied_why}"
            parts.append(f"{len(before)} questions were answered, the last one: {question_of(last)} ({how})")
            asked.append(last)
        causes = dict.fromkeys(_CAUSES[item.question] for item in asked if item.question in _CAUSES)
        return "; ".join([*parts, *causes])


def question_of(item: InboxItem) -> str:
    """Return a question with what a person is shown beside it, in a line."""
    detail = {name: value for name, value in item.detail.items() if name != "tool"}
    about = f" about {item.detail['tool']}" if "tool" in item.detail else ""
    return f"{item.question!s}{about} {short(detail, LONGEST_SAID)}"
