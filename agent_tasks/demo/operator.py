"""The person of the demo: asked whether a mail went out, he looks into the mail server's log and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tasks.demo.carts import receipt
from agent_tasks.demo.mail_log import deliveries
from agent_tasks.errors import AnswerTooLate
from agent_tasks.inbox import InboxItem
from agent_tasks.inbox_client import InboxClient
from agent_tasks.states import Question, Reply

__all__ = ["Answered", "Operator"]


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the operator, and what he found in the log."""

    run_id: str
    reply: Reply
    why: str


class Operator:
    """Answers the inbox items that ask whether a mail happened; everything else he leaves alone.

    Args:
        inbox: What he is asked.
        mail_log: Reads the mail server's log.
    """

    def __init__(self, inbox: InboxClient, mail_log: Callable[[], str]) -> None:
        self._inbox, self._mail_log = inbox, mail_log

    def answer_all(self) -> list[Answered]:
        """Answer what is open now.

        Returns:
            The answers, in the order of the questions.
        """
        answers = [self._answer(item) for item in self._inbox.items() if _is_about_a_mail(item)]
        return [answered for answered in answers if answered is not None]

    def _answer(self, item: InboxItem) -> Answered | None:
        asked = item.detail["args"]
        mail = receipt(asked["cart"], asked["order_id"])
        lines = deliveries(self._mail_log(), mail["to"], mail["subject"])
        if lines:
            reply, why, result = Reply.HAPPENED, f"the mail log says: {lines[0]}", {"accepted": True}
        else:
            reply, why, result = Reply.DID_NOT_HAPPEN, f"the mail log has no {mail['subject']!r}", None
        try:
            self._inbox.resolve(item.item_id, reply, who="the demo's operator", why=why, result=result)
        except AnswerTooLate:  # the outcome came in by itself while he read the log
            return None
        return Answered(item.run_id, reply, why)


def _is_about_a_mail(item: InboxItem) -> bool:
    return item.question is Question.UNKNOWN and item.detail.get("tool") == "send_mail"
