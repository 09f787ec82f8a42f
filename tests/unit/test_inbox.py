"""Questions for a person: each with each answer, and every way in which an answer can be wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from agent_tasks import AnswerNotAllowed, AnswerTooLate, InboxItemNotFound, RunFailed, open_inbox
from agent_tasks.clock import MICROSECONDS
from agent_tasks.errors import AgentTasksError, ArgumentsNotStorable
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.states import REPLIES, Question, Reply
from agent_tasks.suspensions import Asked
from tests import questions
from tests.one_process import OneProcess
from tests.questions import STOPS, Stopped


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    yield here
    here.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[OneProcess]:
    """On SQLite only, for what is refused before the database is asked."""
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


# question, reply, result given, output of the run (None: it failed), requests that the outside world got
ANSWERS = [
    ("unknown", "happened", "sent by hand", "sent by hand", ["kim@example.com"]),
    ("unknown", "did-not-happen", None, "sent", ["kim@example.com", "kim@example.com"]),
    ("orphan", "keep", None, "free of charge", [100]),
    ("orphan", "ignore", None, "free of charge", [100]),
    ("conflict", "recorded", None, 100, [100]),
    ("conflict", "new", None, 200, [100, 200]),
    ("conflict", "abort", None, None, [100]),
    ("result", "happened", {"id": "ch_1"}, {"id": "ch_1"}, [100]),
    ("doubled", "keep", None, "charged", [100, 100]),
    ("crashes", "retry", None, "at last", [1, 2, 3, 4]),
    ("crashes", "abort", None, None, [1, 2, 3]),
    ("checkpoint", "retry", None, 7, []),
    ("checkpoint", "abort", None, None, []),
    ("steps", "go-on", None, 3, []),
    ("steps", "abort", None, None, []),
    ("refused", "keep", None, "ch_1", [100]),
    ("sends", "retry", None, "charged", [100] * (MAX_SENDS + 1)),
    ("sends", "abort", None, None, [100] * MAX_SENDS),
]


def test_the_table_of_answers_has_every_question_and_reply() -> None:
    tested = {(question, reply) for question, reply, *_ in ANSWERS}
    assert tested == {(str(question), str(reply)) for question, replies in REPLIES.items() for reply in replies}


@pytest.mark.mariadb
@pytest.mark.parametrize(("question", "reply", "result", "output", "requests"), ANSWERS)
def test_an_answer_lets_the_run_go_on_or_ends_it(
    here: OneProcess, question: str, reply: str, result: Any, output: Any, requests: list[Any]
) -> None:
    stopped = STOPS[question](here)
    assert stopped.item.question is Question(question)
    assert stopped.item.replies == REPLIES[Question(question)]
    if question == "checkpoint":
        questions.heal(here)
    stopped.answer(reply, result)
    assert stopped.run.inbox() == []
    if output is None:
        with pytest.raises(RunFailed, match=rf"{question} answered with abort by kim: looked it up"):
            stopped.run.get(timeout=0)
    else:
        assert stopped.run.get(timeout=0) == output
    assert here.requests == requests


@pytest.mark.parametrize("question", STOPS)
def test_an_answer_is_kept_with_who_when_and_why(here: OneProcess, question: str) -> None:
    stopped = STOPS[question](here)
    item, before = stopped.item, len(stopped.run.audit())
    reply = item.replies[0]
    stopped.answer(reply)
    entry = stopped.run.audit()[before]
    assert (entry.run_id, entry.operation_id) == (item.run_id, item.operation_id)
    assert (entry.who, entry.what, entry.why) == ("kim", f"{question}: {reply}", "looked it up")
    assert entry.at >= item.opened_at


def test_an_answered_item_says_who_answered_what(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item = stopped.item
    stopped.answer("happened")
    answered = open_inbox(here.app).item(item.item_id)
    assert (answered.reply, answered.replied_by, answered.replied_why) == (Reply.HAPPENED, "kim", "looked it up")


@pytest.mark.mariadb
def test_a_question_that_is_asked_again_is_open_since_then_and_an_open_one_since_it_was_asked(here: OneProcess) -> None:
    runtime, asked = here.runtime, Asked(Question.UNKNOWN, "q_1", detail={"tool": "mail"})

    def ask() -> int:
        def work(connection: Connection) -> int:
            runtime.inbox.open(connection, "run-1", asked)
            (item,) = runtime.inbox.items(connection)
            return item.opened_at

        runtime.clock.advance(60)
        return runtime.boundary.commit("ask", runtime.engine, work)

    first = ask()
    assert ask() == first
    runtime.boundary.commit(
        "close", runtime.engine, lambda own: runtime.inbox.close_all(own, "run-1", "kim", "hand", "looked it up")
    )
    assert ask() >= first + 120 * MICROSECONDS


def test_the_operation_says_who_settled_it(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    stopped.answer("happened", "sent by hand")
    (operation,) = stopped.run.operations()
    assert (operation.row["resolved_by"], operation.row["resolved_why"]) == ("kim", "looked it up")
    assert operation.result == "sent by hand"


def test_an_answer_that_queues_the_run_rings_for_it(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    assert not here.runtime.bell.rings
    assert stopped.run.resolve(stopped.item.item_id, "happened", who="kim", why="it is in the log", result=None)
    assert [ring.run_id for ring in here.runtime.bell.rings] == ["run-1"]


def test_an_answer_that_it_happened_has_to_say_what_was_returned(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    with pytest.raises(
        AnswerNotAllowed, match=r"needs result=, which the step gets as what mail returned: .* or result=None"
    ):
        stopped.run.resolve(stopped.item.item_id, "happened", who="kim", why="it is in the log")
    assert stopped.run.inbox() == [stopped.item]
    assert stopped.run.resolve(stopped.item.item_id, "happened", who="kim", why="it is in the log", result=None)


def test_the_replies_are_shown_as_they_are_written(small: OneProcess) -> None:
    assert repr(questions.unknown(small).item.replies) == "('happened', 'did-not-happen')"


def test_a_question_without_a_run_to_wait_for_it_rings_for_nothing(here: OneProcess) -> None:
    stopped = questions.doubled(here)
    assert not stopped.answer("keep")
    assert not here.runtime.bell.rings


def test_the_answer_crosses_a_boundary_of_its_own(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    seen: list[str] = []
    small.runtime.boundary.observer = lambda point: seen.append(str(point))
    stopped.run.resolve(stopped.item.item_id, "happened", who="kim", why="it is in the log", result=None)
    assert seen[:2] == ["before commit resolve", "after commit resolve"]


def test_damage_that_is_still_there_asks_a_new_question(here: OneProcess) -> None:
    stopped = questions.checkpoint(here)
    first = stopped.item
    stopped.answer("retry")
    again = stopped.item
    assert again.item_id != first.item_id  # the answer to the first one stays as it was given
    assert (again.reply, again.replied_by, again.replied_why) == (None, None, None)


def test_the_open_inbox_of_an_app_shows_the_questions_of_all_runs(here: OneProcess) -> None:
    questions.unknown(here)
    here.requests.clear()
    questions.unknown(here, "run-2", "invoice")
    inbox = open_inbox(here.app)
    assert [item.run_id for item in inbox.items()] == ["run-1", "run-2"]
    assert [item.run_id for item in inbox.items("run-2")] == ["run-2"]


# -- answers that change nothing --------------------------------------------------------------------------------------


def refused(
    stopped: Stopped, item_id: str, reply: str, error: type[AgentTasksError], message: str, **given: Any
) -> None:
    """Check that an answer is refused with a message and that nothing at all was written."""
    here, item = stopped.here, stopped.item
    before, operations = here.counts(), [dict(o.row, now=None) for o in stopped.run.operations()]
    with pytest.raises(error, match=message):
        stopped.run.resolve(item_id, reply, **{"who": "kim", "why": "looked it up", **given})
    assert here.counts() == before
    assert [dict(o.row, now=None) for o in stopped.run.operations()] == operations
    assert stopped.item == item
    assert not here.runtime.bell.rings


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("hapened", r"must be one of happened, did-not-happen, got 'hapened'\. Did you mean 'happened'\?"),
        ("did not happen", r"got 'did not happen'\. Did you mean 'did-not-happen'\?"),
        ("keep", r"an answer to the question 'unknown' must be one of happened, did-not-happen, got 'keep'\."),
        ("", r"must be one of happened, did-not-happen, got ''\."),
    ],
)
def test_a_reply_that_does_not_fit_is_refused_with_those_that_do(small: OneProcess, reply: str, message: str) -> None:
    stopped = questions.unknown(small)
    refused(stopped, stopped.item.item_id, reply, AnswerNotAllowed, message)


def test_an_unknown_item_is_refused(small: OneProcess) -> None:
    refused(
        questions.unknown(small),
        "q_nothing",
        "happened",
        InboxItemNotFound,
        r"no inbox item 'q_nothing' of run 'run-1'",
    )


def test_a_run_does_not_answer_the_question_of_another(small: OneProcess) -> None:
    first = questions.unknown(small)
    small.requests.clear()
    second = questions.unknown(small, "run-2", "invoice")
    refused(first, second.item.item_id, "happened", InboxItemNotFound, r"no inbox item 'q_\w+' of run 'run-1'")


@pytest.mark.parametrize("name", ["who", "why"])
@pytest.mark.parametrize("value", ["", "  \n", "a\0b", "\ud800", "x" * 4_001, None, 7], ids=repr)
def test_an_answer_without_a_name_and_a_reason_is_refused(small: OneProcess, name: str, value: Any) -> None:
    stopped = questions.unknown(small)
    message = rf"{name} must be a text of 1 to \d+ characters without NUL, got "
    refused(stopped, stopped.item.item_id, "happened", AnswerNotAllowed, message, **{name: value})


def test_a_result_belongs_to_happened(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    message = "result= belongs to the answer 'happened', got it with 'did-not-happen'"
    refused(stopped, stopped.item.item_id, "did-not-happen", AnswerNotAllowed, message, result="sent")


def test_a_result_that_cannot_be_stored_is_refused(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    message = "cannot be recorded, nothing was changed: result"
    refused(stopped, stopped.item.item_id, "happened", ArgumentsNotStorable, message, result=object())


def test_the_second_answer_hears_who_was_first(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item = stopped.item
    stopped.answer("did-not-happen")
    with pytest.raises(AnswerTooLate, match=r"was answered already: did-not-happen by kim \(looked it up\)"):
        stopped.run.resolve(item.item_id, "happened", who="lee", why="I saw it", result=None)
    assert [entry.who for entry in stopped.run.audit()] == ["kim"]


def test_an_answer_after_evidence_came_in_is_too_late(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item = stopped.item
    here.runtime.boundary.commit(
        "outcome",
        here.runtime.engine,
        lambda connection: here.runtime.inbox.withdraw(connection, item.operation_id, "a late outcome settled it"),
    )
    with pytest.raises(
        AnswerTooLate, match=r"was answered already: withdrawn by evidence \(a late outcome settled it\)"
    ):
        stopped.run.resolve(item.item_id, "happened", who="kim", why="I saw it", result=None)
    assert stopped.run.audit() == []


def test_an_answer_about_an_earlier_try_does_not_settle_a_later_one(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item, table = stopped.item, here.runtime.tables.operations
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(table.update().values(attempts=2))
    with pytest.raises(AnswerTooLate, match=rf"operation '{item.operation_id}' was begun again after"):
        stopped.run.resolve(item.item_id, "happened", who="kim", why="I saw it", result=None)
    assert stopped.item == item


def test_no_run_is_aborted_on_a_doubt(here: OneProcess) -> None:
    stopped = questions.conflict(here)
    item, table = stopped.item, here.runtime.tables.operations
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(table.update().values(status="unknown"))
    refused(stopped, item.item_id, "abort", AnswerNotAllowed, "has an operation in doubt and cannot be ended")


def test_of_two_people_at_once_one_is_heard(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item, start = stopped.item, threading.Barrier(2)
    heard: list[str] = []
    late: list[str] = []

    def answer(who: str, reply: str) -> None:
        start.wait(timeout=10)
        try:
            stopped.run.resolve(item.item_id, reply, who=who, why="at the same moment", result=None)
            heard.append(who)
        except AnswerTooLate as error:
            late.append(str(error))

    people = [threading.Thread(target=answer, args=who) for who in (("kim", "happened"), ("lee", "did-not-happen"))]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len(heard) == len(late) == 1
    assert f"by {heard[0]} (at the same moment)" in late[0]
    assert [entry.who for entry in stopped.run.audit()] == heard


@pytest.mark.parametrize(
    "why",
    [
        "'); DROP TABLE agent_runs; --",
        "\x1b[2Jgone",
        "line\nbreak\tand tab",
        "%s %(x)s {0} :x",
        "\u202eright to left",
        "日本 🎉",
    ],
)
def test_hostile_text_in_a_reason_is_kept_as_it_is(here: OneProcess, why: str) -> None:
    stopped = questions.unknown(here)
    stopped.run.resolve(stopped.item.item_id, "happened", who="kim", why=why, result=None)
    assert [entry.why for entry in stopped.run.audit()] == [why]


def test_a_detail_that_this_process_cannot_read_hides_no_question(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(here.runtime.tables.inbox.update().values(detail=b"damaged"))
    assert "unreadable" in stopped.item.detail
    assert stopped.answer("happened", "sent by hand")
    assert stopped.run.get(timeout=0) == "sent by hand"
