"""Texts that no database stores: an id of such a text is nobody's, and what would be stored under it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from agent_tasks import Agent, AgentTask, AgentTasksError, RunHandle, done, open_inbox, tool
from agent_tasks.cli import exit_codes
from agent_tasks.cli.group import agent as command
from agent_tasks.errors import AnswerNotAllowed, ArgumentsNotStorable, CannotResume, InboxItemNotFound, RunNotFound
from agent_tasks.inline import answer_all
from tests.one_process import OneProcess

SIGNED = {"who": "kim", "why": "because"}

WRONG = pytest.mark.parametrize("wrong", ["a\0b", "a\ud800b", "x" * 5000], ids=["NUL", "surrogate", "long"])


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    with closing(OneProcess(database_url)) as made:
        yield made


@pytest.fixture
def order(here: OneProcess) -> Agent:
    return here.agent(create=lambda _state: done())


def nothing() -> None: ...


@pytest.fixture
def pay(here: OneProcess) -> Any:
    return here.app.task(base=AgentTask, name="pay", shared=False, tools=[])(nothing)


@WRONG
def test_an_id_that_nothing_can_have_is_not_found(here: OneProcess, order: Agent, pay: Any, wrong: str) -> None:
    run, inbox = RunHandle(here.runtime, wrong), open_inbox(here.app)
    assert (run.operations(), run.inbox(), run.audit(), inbox.items(wrong)) == ([], [], [], [])
    looks: list[Callable[[], object]] = [
        lambda: order.run(wrong),
        lambda: pay.run_handle(wrong),
        lambda: run.status,
        run.state,
        lambda: run.get(timeout=0),
        lambda: run.cancel(**SIGNED),
        lambda: run.resume(**SIGNED),
    ]
    for look in looks:
        with pytest.raises(RunNotFound):
            look()
    answers: list[Callable[[], object]] = [
        lambda: inbox.item(wrong),
        lambda: inbox.resolve(wrong, "happened", **SIGNED),
        lambda: order.enqueue().resolve(wrong, "happened", **SIGNED),
    ]
    for answer in answers:
        with pytest.raises(InboxItemNotFound):
            answer()


@WRONG
def test_a_name_or_a_reason_that_cannot_be_stored_signs_nothing(order: Agent, here: OneProcess, wrong: str) -> None:
    run = order.enqueue()
    for signed in ({**SIGNED, "who": wrong}, {**SIGNED, "why": wrong}):
        with pytest.raises(AgentTasksError, match="Nothing was changed"):
            run.cancel(**signed)
        with pytest.raises(CannotResume, match="Nothing was changed"):
            run.resume(**signed)
        with pytest.raises(AnswerNotAllowed, match="Nothing was changed"):
            open_inbox(here.app).resolve("q_1", "happened", **signed)
    assert run.audit() == []


@WRONG
def test_what_would_be_stored_is_refused(here: OneProcess, order: Agent, pay: Any, wrong: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: order.enqueue(run_id=wrong),
        lambda: order.enqueue(dedupe_key=wrong),
        lambda: pay.apply_async(task_id=wrong),
        lambda: pay.apply_async(queue=wrong),
        lambda: here.agent(name=wrong),
        lambda: order.step(lambda _state: done(), name=wrong),
        lambda: here.app.task(base=AgentTask, name=wrong, shared=False, lazy=False, tools=[])(nothing),
    ]
    for call in calls:
        with pytest.raises(AgentTasksError, match=r"must (be|have) a (text|word|name) .*got '"):
            call()
    assert here.counts()["agent_runs"] == 0


@WRONG
def test_the_key_of_a_call_is_refused_before_anything_is_sent(here: OneProcess, wrong: str) -> None:
    @tool(effect="keyed", key_lifetime=timedelta(hours=1), key=lambda: wrong, bind=False)
    def charge() -> None:
        here.requests.append("charge")

    agent = here.agent(charge, create=lambda _state: done(charge()))
    run = agent.enqueue()
    answer_all(here.runtime, agent)
    with pytest.raises(AgentTasksError, match=ArgumentsNotStorable.__name__):
        run.get(timeout=0)
    assert here.requests == []


@WRONG
@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", "{}"),
        ("inbox", "list", "--run", "{}"),
        ("inbox", "resolve", "{}", "happened", "--no-result", "--why", "because"),
    ],
    ids=" ".join,
)
def test_a_command_finds_nothing_under_an_id_that_nothing_can_have(
    here: OneProcess, words: tuple[str, ...], wrong: str
) -> None:
    said = CliRunner().invoke(command, [*(word.format(wrong) for word in words), "--url", here.url])
    assert (said.exit_code, "begins with" in said.stderr) == (exit_codes.NOT_FOUND, True)


@WRONG
def test_a_command_lists_no_runs_of_an_agent_that_cannot_be(here: OneProcess, wrong: str) -> None:
    said = CliRunner().invoke(command, ["runs", "list", "--agent", wrong, "--url", here.url])
    assert (said.exit_code, said.stderr) == (0, "No such runs.\n")
