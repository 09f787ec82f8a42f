"""The operator, who believes the mail server's log and nothing else."""

import pytest

from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.mail_log import MailLog
from agent_tasks.demo.operator import Operator
from agent_tasks.errors import AnswerTooLate
from agent_tasks.inbox import InboxItem
from agent_tasks.states import Question, Reply

CART = load_carts()[0]


class Inbox:
    """Holds one question and remembers the answers."""

    def __init__(self, question: Question = Question.UNKNOWN, tool: str = "send_mail") -> None:
        args = {"cart": CART, "order_id": "order-1"}
        detail = {"tool": tool, "args": args}
        self.item = InboxItem("q_1", "run-1", question, "op_1", detail, 0, None, None, None)
        self.answers: list[tuple[str, str, object]] = []

    def items(self) -> list[InboxItem]:
        return [self.item]

    def resolve(self, item_id: str, reply: str, *, who: str, why: str, result: object) -> bool:
        self.answers.append((item_id, reply, result))
        return True


@pytest.fixture
def log(tmp_path) -> MailLog:
    return MailLog(tmp_path / "mail.log")


def test_a_mail_that_the_log_names_happened(log):
    log.delivered(CART["email"], "Your order order-1", 0)
    inbox = Inbox()
    (answered,) = Operator(inbox, log.text).answer_all()
    assert inbox.answers == [("q_1", Reply.HAPPENED, {"accepted": True})]
    assert 'subject="Your order order-1"' in answered.why


def test_a_mail_that_the_log_does_not_name_did_not_happen(log):
    log.delivered(CART["email"], "Your order order-11", 0)
    log.delivered("somebody@example.com", "Your order order-1", 0)
    inbox = Inbox()
    Operator(inbox, log.text).answer_all()
    assert inbox.answers == [("q_1", Reply.DID_NOT_HAPPEN, None)]


def test_a_question_that_answers_itself_meanwhile_is_passed_over(log):
    inbox = Inbox()

    def resolve(*_args: object, **_said: object) -> bool:
        raise AnswerTooLate("a late outcome settled it")

    inbox.resolve = resolve
    assert Operator(inbox, log.text).answer_all() == []


@pytest.mark.parametrize(
    "inbox",
    [Inbox(tool="charge"), Inbox(Question.CRASHES), Inbox(Question.ORPHAN)],
    ids=["charge", "crashes", "orphan"],
)
def test_other_questions_are_left_alone(inbox, log):
    assert Operator(inbox, log.text).answer_all() == []
    assert inbox.answers == []
