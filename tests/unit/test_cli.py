"""The command line, as a person and as a script use it."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from sqlalchemy import update

from agent_tasks import Agent, InboxItem, Operation, RunHandle, done, fail, run_calls, sleep, tool
from agent_tasks.cli import agent, db, exit_codes, inbox, runs
from agent_tasks.cli.output import print_table
from agent_tasks.clock import moment
from agent_tasks.promises import PROMISES
from agent_tasks.states import Effect
from tests import questions
from tests.one_process import OneProcess
from tests.questions import STOPS, Stopped
from tests.rows import Rows


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    yield here
    here.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[OneProcess]:
    """On SQLite only, for what no database can make different."""
    here = OneProcess(f"sqlite:///{tmp_path / 'agent.db'}")
    yield here
    here.close()


def run(here: OneProcess, *arguments: str) -> Result:
    """Run a command as ``celery -A app agent`` does."""
    context = CLIContext(app=here.app, no_color=True, workdir=None)
    return CliRunner().invoke(agent, arguments, obj=context, prog_name="agent-tasks")


def run_by_url(here: OneProcess, *arguments: str) -> Result:
    """Run a command that knows the ledger's URL and no app."""
    return CliRunner().invoke(agent, [*arguments, "--url", here.url], prog_name="agent-tasks")


def answered(stopped: Stopped, *arguments: str) -> Result:
    return run(stopped.here, "inbox", "resolve", stopped.item.item_id, *arguments)


# -- the inbox ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", STOPS)
def test_the_list_shows_each_question_with_its_replies(here: OneProcess, question: str) -> None:
    item = STOPS[question](here).item
    shown = run(here, "inbox", "list")
    assert shown.exit_code == exit_codes.OK
    (line,) = shown.stdout.splitlines()
    cells = line.split("\t")
    assert cells[:2] == [item.item_id, "run-1"]
    assert cells[2].startswith(f"{question}: ")
    assert cells[3] == "|".join(item.replies)
    assert len(cells) == 10
    assert [command.split()[4] for command in cells[9].split(" | ")] == list(item.replies)


def test_a_question_says_what_was_called_when_what_was_said_and_how_to_answer(here: OneProcess) -> None:
    item = questions.unknown(here).item
    cells = run(here, "inbox", "list").stdout.rstrip("\n").split("\t")
    assert cells[5:7] == ["mail", '{"to": "kim@example.com"}']
    assert cells[4] > cells[7] > "20"  # asked after it was called
    assert "TimeoutError: no answer" in cells[8]
    assert cells[9] == (
        f"agent-tasks inbox resolve {item.item_id} happened --result JSON --why WHY | "
        f"agent-tasks inbox resolve {item.item_id} did-not-happen --why WHY"
    )


def test_a_question_about_other_arguments_shows_both_and_the_recorded_result(small: OneProcess) -> None:
    questions.conflict(small)
    cells = run(small, "inbox", "list").stdout.split("\t")
    assert cells[6] == '{"recorded": {"cents": 100}, "asked": {"cents": 200}}'
    assert cells[8] == "it succeeded, with the result 100"


def test_a_question_about_crashes_says_how_often(small: OneProcess) -> None:
    questions.crashes(small)
    assert "\tstep pay lost its worker 3 times\t" in run(small, "inbox", "list").stdout


def test_a_question_about_the_first_crash_of_a_run_that_is_recovered_by_hand_counts_nothing(small: OneProcess) -> None:
    def pay(_state: Any) -> Any:
        raise MemoryError

    order = small.agent(pay=pay)
    order.enqueue({}, recovery="manual")
    small.work(order)
    listed = run(small, "inbox", "list").stdout
    assert "\tstep pay lost its worker; its checkpoints: 0 (the input)\t" in listed
    assert "crashes: the step lost its worker: try again?" in listed


def test_a_question_after_a_crash_says_that_nothing_was_recorded(small: OneProcess) -> None:
    questions.unknown(small)
    with small.runtime.engine.connect() as connection, connection.begin():
        connection.execute(small.runtime.tables.operations.update().values(evidence=None))
    assert "no outcome was recorded since the call began" in run(small, "inbox", "list").stdout


@pytest.mark.parametrize("question", STOPS)
def test_on_a_terminal_a_question_has_labels_and_ready_commands(
    small: OneProcess, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = STOPS[question](small).item
    monkeypatch.setattr(inbox, "is_terminal", lambda: True)
    lines = run(small, "inbox", "list").stdout.splitlines()
    assert lines[0].split(maxsplit=2)[:2] == ["question:", f"{question}:"]
    assert lines[1].split() == ["item:", item.item_id]
    assert any(line.startswith("said:") for line in lines)
    answers = lines[lines.index("answer with one of:") + 1 :]
    assert [line.split()[:5] for line in answers] == [
        ["agent-tasks", "inbox", "resolve", item.item_id, reply] for reply in item.replies
    ]


def test_the_commands_that_answer_name_the_ledger_as_it_was_named(small: OneProcess) -> None:
    item = questions.crashes(small).item
    shown = run_by_url(small, "inbox", "list")
    assert f"\tagent-tasks --url {small.url} inbox resolve {item.item_id} retry --why WHY | " in shown.stdout


def test_a_command_that_was_shown_answers_the_question(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    (item,) = json.loads(run(small, "inbox", "list", "--json").stdout)["items"]
    program, *arguments = item["commands"][1].split()
    assert program == "agent-tasks"
    assert run(small, *arguments).exit_code == 0
    assert stopped.run.inbox() == []


def test_the_list_as_json_is_one_object_and_nothing_else(here: OneProcess) -> None:
    item = questions.unknown(here).item
    shown = run(here, "inbox", "list", "--json")
    assert shown.stderr == ""
    assert json.loads(shown.stdout) == {
        "version": 1,
        "items": [
            {
                "item_id": item.item_id,
                "run_id": "run-1",
                "question": "unknown",
                "operation_id": item.operation_id,
                "replies": ["happened", "did-not-happen"],
                "opened_at": json.loads(shown.stdout)["items"][0]["opened_at"],
                "detail": {"tool": "mail", "args": {"to": "kim@example.com"}},
                "called_at": json.loads(shown.stdout)["items"][0]["called_at"],
                "external_id": None,
                "progress": None,
                "said": "TimeoutError: no answer",
                "commands": [
                    f"agent-tasks inbox resolve {item.item_id} happened --result JSON --why WHY",
                    f"agent-tasks inbox resolve {item.item_id} did-not-happen --why WHY",
                ],
            }
        ],
    }


def test_a_person_sees_how_far_a_body_came_and_what_the_vendor_calls_its_effect(
    small: OneProcess,
) -> None:
    @tool(effect="manual", timeout=timedelta(seconds=10), bind=True)
    def mail(operation: Operation) -> None:
        operation.record_external_id("job-7")
        operation.save_progress({"sent": 300})
        raise TimeoutError("no answer")

    sender = small.agent(mail, send=lambda _state: done(mail()))
    small.run(sender)
    small.later(sender, 11)
    (item,) = json.loads(run(small, "inbox", "list", "--json").stdout)["items"]
    (operation,) = json.loads(run(small, "runs", "show", "run-1", "--json").stdout)["operations"]
    assert item["external_id"] == item["detail"]["external_id"] == operation["external_id"] == "job-7"
    assert item["progress"] == operation["progress"] == {"sent": 300}
    shown = run(small, "runs", "show", "run-1").stdout
    assert len(re.findall(r'progress: +{"sent": 300}', shown)) == 2  # of the operation, and of the question about it
    assert len(re.findall(r"external id: +job-7", shown)) == 2


def test_an_empty_inbox_says_so_beside_the_data(small: OneProcess) -> None:
    shown = run(small, "inbox", "list")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "No open questions.\n")


def test_the_list_of_one_run_takes_the_beginning_of_its_id(small: OneProcess) -> None:
    questions.unknown(small, "first-run")
    small.requests.clear()
    questions.unknown(small, "second-run", "invoice")
    assert [line.split("\t")[1] for line in run(small, "inbox", "list").stdout.splitlines()] == [
        "first-run",
        "second-run",
    ]
    assert [line.split("\t")[1] for line in run(small, "inbox", "list", "--run", "seco").stdout.splitlines()] == [
        "second-run"
    ]


def test_an_answer_lets_the_run_go_on(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    item = stopped.item
    shown = answered(stopped, "happened", "--who", "kim", "--why", "it is in the log", "--result", '"by hand"')
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == f"{item.item_id}: happened; run run-1 is queued\n"
    here.work(stopped.agent)
    assert stopped.run.get(timeout=0) == "by hand"
    assert [(e.who, e.what, e.why) for e in stopped.run.audit()] == [("kim", "unknown: happened", "it is in the log")]


def test_an_answer_as_json_is_one_object(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    item = stopped.item
    shown = answered(stopped, "did-not-happen", "--who", "kim", "--why", "no trace of it", "--json")
    assert json.loads(shown.stdout) == {
        "version": 1,
        "item_id": item.item_id,
        "run_id": "run-1",
        "reply": "did-not-happen",
        "queued": True,
        "status": "queued",
    }


def test_an_answer_by_url_says_that_no_doorbell_was_rung(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    shown = run_by_url(here, "inbox", "resolve", stopped.item.item_id, "did-not-happen", "--why", "no trace")
    assert shown.exit_code == 0
    assert shown.stdout.endswith("run run-1 is queued\n")
    assert "No doorbell was rung" in shown.stderr
    here.later(stopped.agent, here.runtime.settings.ring_again_seconds + 1)
    assert stopped.run.get(timeout=0) == "sent"


@pytest.mark.parametrize("question", ["unknown", "result"])
def test_happened_insists_on_a_result_or_on_none(here: OneProcess, question: str) -> None:
    stopped = STOPS[question](here)
    before = here.counts()
    shown = answered(stopped, "happened", "--why", "it is in the log")
    assert (shown.exit_code, shown.stdout) == (exit_codes.USAGE, "")
    assert "null if you give nothing: say --result JSON" in " ".join(shown.stderr.split())
    assert here.counts() == before
    shown = answered(stopped, "happened", "--why", "it is in the log", "--no-result")
    assert (shown.exit_code, shown.stderr) == (0, "The step gets null as the call's result.\n")
    here.work(stopped.agent)
    assert stopped.run.get(timeout=0) is None


def test_a_result_and_no_result_contradict_each_other(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    shown = answered(stopped, "happened", "--why", "x", "--result", "1", "--no-result")
    assert shown.exit_code == exit_codes.USAGE
    assert "contradict each other" in shown.stderr
    assert len(stopped.run.inbox()) == 1


def test_you_decide_unless_you_say_who(small: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "robin")
    stopped = questions.unknown(small)
    answered(stopped, "happened", "--why", "it is in the log", "--no-result")
    assert [entry.who for entry in stopped.run.audit()] == ["robin"]


def test_a_user_without_a_name_has_to_say_who(small: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    shown = answered(questions.unknown(small), "did-not-happen", "--why", "no trace of it")
    assert shown.exit_code == exit_codes.USAGE
    assert "say who decides with --who" in shown.stderr


def test_the_beginning_of_an_item_id_is_enough(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    shown = run(small, "inbox", "resolve", stopped.item.item_id[:6], "did-not-happen", "--why", "no trace")
    assert shown.exit_code == 0


@pytest.mark.parametrize("characters", range(6))
def test_too_little_of_an_item_id_answers_nothing_although_only_one_begins_so(
    small: OneProcess, characters: int
) -> None:
    stopped = questions.unknown(small)
    beginning = stopped.item.item_id[:characters]
    shown = run(small, "inbox", "resolve", beginning, "did-not-happen", "--why", "no trace")
    assert (shown.exit_code, shown.stdout) == (exit_codes.USAGE if beginning else exit_codes.NOT_FOUND, "")
    if beginning:
        assert "give at least 4 of its characters after 'q_', or all of it" in shown.stderr
    assert [item.replied_by for item in stopped.run.inbox()] == [None]


@pytest.mark.parametrize("command", [("runs", "show"), ("inbox", "list", "--run")], ids=" ".join)
def test_too_little_of_a_run_id_names_no_run_and_a_short_id_names_its_own(
    small: OneProcess, command: tuple[str, ...]
) -> None:
    stopped = questions.unknown(small)
    stopped.agent.enqueue({"to": "x"}, run_id="a")
    shown = run(small, *command, "run")
    assert (shown.exit_code, shown.stdout) == (exit_codes.USAGE, "")
    assert "'run' is too short to stand for the id of the run that is meant: give at least 4 of its" in shown.stderr
    assert run(small, *command, "run-").exit_code == run(small, *command, "a").exit_code == exit_codes.OK


# -- refusals -----------------------------------------------------------------------------------------------------------


def ambiguous(here: OneProcess) -> tuple[str, ...]:
    here.requests.clear()
    questions.unknown(here, "run-2", "invoice")
    first, second = (item.item_id for item in here.runtime.boundary.read(here.runtime.engine, here.runtime.inbox.items))
    table = here.runtime.tables.inbox
    with here.runtime.engine.connect() as connection, connection.begin():
        for item_id, rest in ((first, "1"), (second, "2")):
            connection.execute(update(table).where(table.c.item_id == item_id).values(item_id=f"q_abcd{rest}"))
    return ("inbox", "resolve", "q_abcd", "happened", "--why", "x")


def answered_before(here: OneProcess) -> tuple[str, ...]:
    item = item_of(here)
    here.runtime.boundary.commit(
        "outcome",
        here.runtime.engine,
        lambda connection: here.runtime.inbox.withdraw(connection, item.operation_id, "a late outcome settled it"),
    )
    return ("inbox", "resolve", item.item_id, "happened", "--why", "x")


def item_of(here: OneProcess) -> InboxItem:
    return here.runtime.boundary.read(here.runtime.engine, here.runtime.inbox.items)[0]


REFUSED: dict[str, tuple[Any, int, str]] = {
    "no such item": (
        ("inbox", "resolve", "q_nothing", "happened", "--why", "x"),
        exit_codes.NOT_FOUND,
        r"""Error: the answer was not recorded.
  why:  no inbox item's id begins with 'q_nothing' in this ledger.
  next: agent-tasks inbox list
""",
    ),
    "an empty id": (
        ("inbox", "resolve", "", "happened", "--why", "x"),
        exit_codes.NOT_FOUND,
        "no inbox item's id begins with ''",
    ),
    "a beginning of two ids": (
        ambiguous,
        exit_codes.USAGE,
        "'q_abcd' is the beginning of more than one inbox item id: q_abcd1, q_abcd2",
    ),
    "a reply that does not fit": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "hapened", "--why", "x"),
        exit_codes.STATE,
        "must be one of happened, did-not-happen, got 'hapened'. Did you mean 'happened'?",
    ),
    "a reply that does not fit, with a result": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "hapened", "--why", "x", "--result", "1"),
        exit_codes.STATE,
        "must be one of happened, did-not-happen, got 'hapened'. Did you mean 'happened'?",
    ),
    "answered before": (answered_before, exit_codes.STATE, "was answered already: withdrawn by evidence"),
    "no reason": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "happened"),
        exit_codes.USAGE,
        "Missing option '--why'",
    ),
    "an empty reason": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "did-not-happen", "--why", " "),
        exit_codes.STATE,
        "why must be a text of 1 to 4000 characters",
    ),
    "a result that is no JSON": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "happened", "--why", "x", "--result", "ch_1"),
        exit_codes.USAGE,
        "'ch_1' is no JSON",
    ),
    "a result that did not happen": (
        lambda here: ("inbox", "resolve", item_of(here).item_id, "did-not-happen", "--why", "x", "--result", "1"),
        exit_codes.STATE,
        "result= belongs to the answer 'happened'",
    ),
    "no such run": (("runs", "show", "nothing"), exit_codes.NOT_FOUND, "no run id begins with 'nothing'"),
    "no such run in the inbox": (("inbox", "list", "--run", "no"), exit_codes.NOT_FOUND, "no run id begins with 'no'"),
    "no such status": (("runs", "list", "--status", "stuck"), exit_codes.USAGE, "'stuck' is not one of 'queued'"),
    "no such command": (("inbox", "lits"), exit_codes.USAGE, "Did you mean"),
    "a prefix without a URL": (
        ("runs", "list", "--table-prefix", "x_"),
        exit_codes.USAGE,
        "--table-prefix belongs to --url",
    ),
    "a URL of another database": (
        ("runs", "list", "--url", "mongodb://host/agents"),
        exit_codes.USAGE,
        "agent_database_url must name one of mariadb, mysql, postgresql, sqlite, got 'mongodb'",
    ),
    "a server that does not answer": (
        ("runs", "list", "--url", "postgresql+psycopg://127.0.0.1:1/agents"),
        exit_codes.UNREACHABLE,
        "the ledger's database did not answer at 'read'",
    ),
    "an upgrade of a server that does not answer": (
        ("db", "upgrade", "--url", "postgresql+psycopg://127.0.0.1:1/agents"),
        exit_codes.UNREACHABLE,
        "the ledger's database did not answer at 'db upgrade'",
    ),
    "tables with another prefix": (
        lambda here: ("runs", "list", "--url", here.url, "--table-prefix", "other_"),
        exit_codes.STATE,
        "--table-prefix other_ db upgrade",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_says_what_why_and_what_next_and_writes_nothing(small: OneProcess, case: str) -> None:
    questions.unknown(small)
    arguments, code, message = REFUSED[case]
    arguments = arguments(small) if callable(arguments) else arguments
    before = small.counts()
    shown = run(small, *arguments)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
    assert small.counts() == before


def test_verbose_shows_the_traceback(small: OneProcess) -> None:
    shown = run(small, "runs", "show", "nothing", "--verbose")
    assert shown.exit_code == exit_codes.NOT_FOUND
    assert "Traceback (most recent call last)" in shown.stderr


def test_a_fault_of_ours_is_three_lines_too(small: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(type(small.runtime.inbox), "items", fail)
    shown = run(small, "inbox", "list")
    assert shown.exit_code == exit_codes.FAILED
    assert shown.stderr == (
        "Error: the inbox was not read.\n  why:  ZeroDivisionError: by hand\n  next: the same command with --verbose\n"
    )


# -- runs ---------------------------------------------------------------------------------------------------------------


def test_a_run_shows_what_it_waits_for_its_operations_and_its_questions(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    shown = run(here, "runs", "show", "run-1")
    assert shown.exit_code == 0
    (operation,) = stopped.run.operations()
    for words in (
        "status:      needs_attention",
        "waits for:   a person: did mail happen?",
        "step:        send",
        f"  operation:      {operation.operation_id}",
        "  tool:           mail (manual)",
        "  status:         unknown",
        '  args:           {"to": "kim@example.com"}',
        "  promise:        at most once, within the limits",
        "  after a crash:  a person decides",
        "  question:   unknown: did it happen?",
        f"  item:       {stopped.item.item_id}",
        f"inbox resolve {stopped.item.item_id} did-not-happen --why WHY",
    ):
        assert words in shown.stdout
    assert "decisions" not in shown.stdout


def test_a_run_shows_who_decided_what(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    (operation,) = stopped.run.operations()
    stopped.answer("happened", "by hand")
    shown = run(here, "runs", "show", "run-")
    assert re.search("kim +unknown: happened +looked it up", shown.stdout)
    assert shown.stdout.splitlines()[-1].split("  ")[-1].strip() == operation.operation_id
    assert "output:       by hand" in shown.stdout
    assert "  result:     by hand" in shown.stdout
    assert "  said:       TimeoutError: no answer" in shown.stdout
    assert "after a crash" not in shown.stdout


def test_a_run_that_returned_nothing_says_so(small: OneProcess) -> None:
    small.run(small.agent(send=lambda _state: done()))
    assert "output:       null" in run(small, "runs", "show", "run-1").stdout


def test_long_values_are_cut_and_json_has_all_of_them(small: OneProcess) -> None:
    long = "x" * 5_000
    small.run(small.agent(send=lambda state: done(state["text"])), text=long)
    shown = run(small, "runs", "show", "run-1").stdout
    assert max(map(len, shown.splitlines())) < 1_100
    assert "x…" in shown
    assert json.loads(run(small, "runs", "show", "run-1", "--json").stdout)["run"]["output"] == long


def test_a_failed_run_shows_its_traceback_as_lines(small: OneProcess) -> None:
    def look(_state: Any) -> Any:
        raise KeyError("cart") from ValueError("gone\x1b[2J")

    small.run(small.agent(look=look))
    lines = run(small, "runs", "show", "run-1").stdout.splitlines()
    assert "error:        KeyError: 'cart'" in lines
    after = lines[lines.index("traceback") :]
    assert after[1] == r"  ValueError: gone\x1b[2J"
    assert after[after.index("next, in Python") - 2] == "  KeyError: 'cart'"
    assert any(line.strip().startswith("raise KeyError") for line in after)


def test_a_run_that_its_step_failed_shows_the_reason_alone(small: OneProcess) -> None:
    small.run(small.agent(look=lambda _state: fail("no such cart")))
    shown = run(small, "runs", "show", "run-1").stdout
    assert "error:        no such cart\n" in shown
    assert "traceback" not in shown


def test_a_result_that_could_not_be_stored_is_not_shown_as_null(small: OneProcess) -> None:
    questions.result(small)
    shown = run(small, "runs", "show", "run-1").stdout
    assert "\n  result: " not in shown
    assert "  error:      " in shown


def test_a_run_as_json_has_all_of_it(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    stopped.answer("happened", {"id": 7})
    shown = json.loads(run(here, "runs", "show", "run-1", "--json").stdout)
    assert shown["version"] == 1
    assert shown["run"]["status"] == "succeeded"
    assert shown["run"]["output"] == {"id": 7}
    (operation,) = shown["operations"]
    assert (operation["args"], operation["result"]) == ({"to": "kim@example.com"}, {"id": 7})
    assert (operation["promise"], operation["after_crash"]) == PROMISES[Effect.MANUAL]
    assert [(entry["who"], entry["why"]) for entry in shown["audit"]] == [("kim", "looked it up")]
    assert shown["inbox"] == []


def test_a_failed_run_shows_its_error(small: OneProcess) -> None:
    stopped = questions.crashes(small)
    stopped.answer("abort")
    assert "crashes answered with abort by kim: looked it up" in run(small, "runs", "show", "run-1").stdout


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("queued", "\ta worker on queue 'inline'\n"),
        ("running", "\tthe end of step 'send'; the lease of worker host-7 ends at 20"),
        ("waiting", "\tits time, 20"),
        ("needs_attention", "\ta person: did mail happen?\n"),
    ],
)
def test_every_unfinished_run_names_what_it_waits_for(small: OneProcess, status: str, words: str) -> None:
    questions.unknown(small)
    values = {"status": status, "lease_owner": "host-7", "due_at": small.runtime.clock.in_(60)}
    if status == "queued":
        values["waiting_for"] = None
    with small.runtime.engine.connect() as connection, connection.begin():
        connection.execute(small.runtime.tables.runs.update().values(**values))
    assert words in run(small, "runs", "list").stdout


def test_runs_are_listed_newest_first_by_status_and_up_to_a_limit(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    for number in (2, 3):
        stopped.agent.enqueue({"to": "x"}, run_id=f"run-{number}")

    def ids(*options: str) -> list[str]:
        return [row["run_id"] for row in json.loads(run(here, "runs", "list", "--json", *options).stdout)["runs"]]

    assert ids() == ["run-3", "run-2", "run-1"]
    assert ids("--limit", "2") == ["run-3", "run-2"]
    assert ids("--status", "needs_attention") == ["run-1"]
    assert run(here, "runs", "list", "--status", "cancelled").stderr == "No such runs.\n"


def test_runs_are_listed_by_agent(here: OneProcess) -> None:
    here.run(here.agent(name="order", create=lambda _state: done()), "run-1")
    here.run(here.agent(name="refund", pay=lambda _state: done()), "run-2")
    shown = run(here, "runs", "list", "--agent", "refund")
    assert [line.split("\t")[:2] for line in shown.stdout.splitlines()] == [["run-2", "refund"]]


def test_runs_have_heads_on_a_terminal_only(small: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    small.run(small.agent(create=lambda _state: done()))
    assert "WAITS FOR" not in run(small, "runs", "list").stdout
    monkeypatch.setattr(runs, "is_terminal", lambda: True)
    heads, row = run(small, "runs", "list").stdout.splitlines()
    assert heads.split("  ")[0] == "RUN"
    assert heads.endswith("WAITS FOR")
    assert row.startswith("run-1  order  succeeded")


def test_a_run_id_that_begins_another_one_is_not_ambiguous(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    stopped.agent.enqueue({"to": "x"}, run_id="run-10")
    assert run(small, "runs", "show", "run-1").exit_code == 0
    shown = run(small, "runs", "show", "run-")
    assert shown.exit_code == exit_codes.USAGE
    assert "'run-' is the beginning of more than one run id: run-1, run-10" in shown.stderr


def test_a_beginning_minds_the_case_and_knows_no_wildcards(here: OneProcess) -> None:
    questions.unknown(here)
    for beginning in ("RUN", "run_", "%"):
        assert run(here, "runs", "show", beginning).exit_code == exit_codes.NOT_FOUND


def test_a_value_that_cannot_be_read_hides_no_run(small: OneProcess) -> None:
    questions.unknown(small)
    with small.runtime.engine.connect() as connection, connection.begin():
        connection.execute(small.runtime.tables.operations.update().values(args=b"damaged"))
    shown = run(small, "runs", "show", "run-1", "--json")
    assert "unreadable" in json.loads(shown.stdout)["operations"][0]["args"]


def test_hostile_text_does_nothing_to_a_terminal(here: OneProcess) -> None:
    stopped = questions.unknown(here)
    why = "\x1b[2J\u202egone\nrun-9\tfailed"
    answered(stopped, "did-not-happen", "--who", "kim", "--why", why)
    shown = run(here, "runs", "show", "run-1").stdout
    assert r"\x1b[2J\u202egone\nrun-9\tfailed" in shown
    assert why not in shown
    assert [entry.why for entry in stopped.run.audit()] == [why]


def test_a_table_has_heads_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("RUN", "STATUS"), [("run-1", "queued"), ("r", None)])
    assert capsys.readouterr().out == "RUN    STATUS\nrun-1  queued\nr\n"


def test_every_effect_has_its_promise_in_words() -> None:
    assert set(PROMISES) == set(Effect)
    assert not any(words.promise == "exactly once" for words in PROMISES.values())


# -- the ledger's tables ------------------------------------------------------------------------------------------------


def test_an_upgrade_makes_the_tables_and_says_so_once(database_url: str) -> None:
    here = OneProcess(database_url, migrated=False)
    status = run(here, "db", "status", "--json")
    assert status.exit_code == exit_codes.STATE
    assert json.loads(status.stdout)["up_to_date"] is False
    assert here.counts() == {}
    assert "now (before: no tables)" in run(here, "db", "upgrade").stdout
    assert "already" in run(here, "db", "upgrade").stdout
    status = run(here, "db", "status", "--json")
    assert status.exit_code == exit_codes.OK
    assert json.loads(status.stdout)["up_to_date"] is True
    here.close()


def test_an_upgrade_by_url_takes_a_prefix(database_url: str) -> None:
    here = OneProcess(database_url, migrated=False)
    shown = run_by_url(here, "db", "upgrade", "--table-prefix", "shop_", "--json")
    assert json.loads(shown.stdout) == {"version": 1, "before": None, "after": "0004"}
    assert run_by_url(here, "runs", "list", "--table-prefix", "shop_").exit_code == 0
    assert run_by_url(here, "runs", "list").exit_code == exit_codes.STATE
    here.close()


ON_NO_FILE: dict[str, tuple[str, ...]] = {
    "runs list": ("runs", "list"),
    "runs show": ("runs", "show", "r"),
    "inbox list": ("inbox", "list", "--json"),
    "inbox resolve": ("inbox", "resolve", "q_1", "keep", "--why", "x"),
}


@pytest.mark.parametrize("command", ON_NO_FILE)
def test_a_look_at_a_file_that_is_not_there_makes_none(tmp_path: Path, command: str) -> None:
    path = tmp_path / "agnet.db"
    shown = CliRunner().invoke(agent, [*ON_NO_FILE[command], "--url", f"sqlite:///{path}"], prog_name="agent-tasks")
    assert (shown.exit_code, shown.stdout) == (exit_codes.STATE, "")
    assert f"why:  no such ledger file: {path}\n" in shown.stderr
    assert f"next: agent-tasks --url sqlite:///{path} db upgrade, if" in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_status_of_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    shown = CliRunner().invoke(agent, ["db", "status", "--url", url], prog_name="agent-tasks")
    assert shown.exit_code == exit_codes.STATE
    assert "revision:         no such ledger file" in shown.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_a_url_stands_before_the_command_or_behind_it(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    for arguments in (
        ["--url", small.url, "runs", "list"],
        ["runs", "list", "--url", small.url],
        ["--url", "sqlite:////nowhere/agent.db", "runs", "list", "--url", small.url],
    ):
        shown = CliRunner().invoke(agent, arguments, prog_name="agent-tasks")
        assert shown.exit_code == 0
        assert shown.stdout.startswith(f"{stopped.run.run_id}\t")


def test_the_next_command_names_the_ledger_as_it_was_named_and_no_password() -> None:
    url = "postgresql+psycopg://kim:secret@127.0.0.1:1/agents"
    arguments = ["--url", url, "runs", "list", "--table-prefix", "shop_"]
    shown = CliRunner().invoke(agent, arguments, prog_name="agent-tasks")
    named = "'postgresql+psycopg://kim:***@127.0.0.1:1/agents'"
    assert f"next: agent-tasks --url {named} --table-prefix shop_ db status\n" in shown.stderr
    assert "secret" not in shown.stderr


def test_missing_tables_name_the_command_as_it_was_called(small: OneProcess) -> None:
    shown = run(small, "runs", "list", "--url", small.url, "--table-prefix", "other_")
    assert "yourapp" not in shown.stderr
    assert f"Run `agent-tasks --url {small.url} --table-prefix other_ db upgrade`" in shown.stderr


def test_status_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "revision", lambda _engine, _prefix: "0001")
    url = "postgresql+psycopg://kim:secret@127.0.0.1/agents"
    shown = CliRunner().invoke(agent, ["db", "status", "--url", url], prog_name="agent-tasks")
    assert "kim:***@127.0.0.1/agents" in shown.stdout
    assert "secret" not in shown.stdout


# -- as programs --------------------------------------------------------------------------------------------------------

APP = """
from celery import Celery
app = Celery("shop", broker="memory://")
app.conf.agent_database_url = "sqlite:///agent.db"
"""


@pytest.mark.parametrize("program", ["celery -A shop agent", "agent-tasks -A shop"])
def test_both_programs_have_the_same_commands(tmp_path: Path, program: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    name, *arguments = program.split()

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name(name)), *arguments, *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    absent = call("runs", "list")
    assert absent.returncode == exit_codes.STATE
    assert f"next: {program} db upgrade, if" in absent.stderr
    assert not (tmp_path / "agent.db").exists()
    assert "revision 0004 now" in call("db", "upgrade").stdout
    listed = call("runs", "list", "--json")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, {"version": 1, "runs": []})
    missing = call("runs", "show", "r")
    assert missing.returncode == exit_codes.NOT_FOUND
    assert f"next: {program} runs list" in missing.stderr


@pytest.mark.parametrize("command", ["status", "upgrade"])
def test_a_database_that_does_not_answer_advises_no_command_that_needs_it(command: str) -> None:
    shown = CliRunner().invoke(agent, ["db", command, "--url", "postgresql+psycopg://127.0.0.1:1/agents"])
    assert shown.exit_code == exit_codes.UNREACHABLE
    assert "check agent_database_url and the server, then try again" in shown.stderr
    assert shown.stderr.endswith("next: the same command, once what is said above is mended\n")


def test_a_reader_that_has_seen_enough_is_no_error(small: OneProcess) -> None:
    small.agent(create=lambda _state: done()).enqueue({}, run_id="run-1")
    reads, writes = os.pipe()
    os.close(reads)  # `head` has gone
    try:
        for command in (["runs", "list"], ["runs", "show", "run-1"], ["runs", "list", "--json"], ["db", "status"]):
            words = [str(Path(sys.executable).with_name("agent-tasks")), *command, "--url", small.url]
            ended = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
            assert (ended.returncode, ended.stderr) == (1, "")
    finally:
        os.close(writes)


@pytest.mark.parametrize("stop", ["unknown", "crashes"])
def test_a_run_waits_for_the_same_in_python_as_at_the_command_line(small: OneProcess, stop: str) -> None:
    stopped = STOPS[stop](small)
    shown = json.loads(run(small, "runs", "show", "run-1", "--json").stdout)
    assert stopped.run.waiting_for == shown["run"]["waits_for"]


def test_a_lease_that_has_ended_is_not_said_to_end(small: OneProcess) -> None:
    here, handle = small, RunHandle(small.runtime, "run-1")
    Rows(here).queue("run-1")
    Rows(here).claim("run-1", "token-1")
    assert "; the lease of worker " in str(handle.waiting_for)
    assert " ends at 20" in str(handle.waiting_for)
    here.runtime.clock.advance(here.runtime.settings.lease_seconds + 1)
    said = str(handle.waiting_for)
    assert said.startswith("another worker for step 'pay'; the lease of worker ")
    assert said.endswith(
        " and a worker takes it over once it has been in contact with the ledger for 15 s. Is one running?"
    )


def test_a_run_ends_with_what_a_person_may_do_about_it(small: OneProcess) -> None:
    order = small.agent(send=lambda _state: fail("no such cart"))
    small.run(order, run_id="run-1")
    order.enqueue({}, run_id="run-2")
    failed, queued = (run(small, "runs", "show", run_id).stdout for run_id in ("run-1", "run-2"))
    assert failed.endswith(
        "\nnext, in Python\n  once the cause is mended, to do its last step again:  "
        "order.run('run-1').resume(who=…, why=…)\n"
    )
    assert queued.endswith("\nnext, in Python\n  to end it:  order.run('run-2').cancel(who=…, why=…)\n")
    order.run("run-1").resume(who="kim", why="the cart is back")
    assert order.run("run-1").status == "queued"


def test_a_run_that_waits_for_a_horizon_is_not_told_to_resume_which_would_not_shorten_it(small: OneProcess) -> None:
    @tool(effect="manual", timeout=questions.TIMEOUT)
    def mail(to: str) -> str:
        raise TimeoutError("no answer")

    order = small.agent(mail, send=lambda state: done(mail(state["to"])))
    handle = small.run(order, to="kim@example.com")
    before = Rows(small).find("run-1")
    shown = run(small, "runs", "show", "run-1").stdout
    date = moment(before["due_at"])
    assert shown.endswith(
        "\nnext, in Python\n  to end it:  order.run('run-1').cancel(who=…, why=…)\n"
        f"  resume does not shorten this wait: mail is asked about or sent again at {date} at the earliest\n"
    )
    handle.resume(who="kim", why="to see it")
    small.work(order)
    after = Rows(small).find("run-1")
    assert (after["status"], after["due_at"]) == ("waiting", before["due_at"])


def test_a_run_whose_vendor_named_a_date_is_not_told_to_resume_either(small: OneProcess) -> None:
    class Busy(Exception):
        retry_after_seconds = 60

    @tool(effect="manual", timeout=questions.TIMEOUT, refused=(Busy,))
    def mail(to: str) -> str:
        small.requests.append(to)
        raise Busy

    order = small.agent(mail, send=lambda state: done(mail(state["to"])))
    handle = small.run(order, to="kim@example.com")
    assert "resume does not shorten this wait: mail is" in run(small, "runs", "show", "run-1").stdout
    handle.resume(who="kim", why="to see it")
    small.work(order)
    assert (str(handle.status), small.requests) == ("waiting", ["kim@example.com"])


@pytest.mark.parametrize("wait", ["the back-off of a key", "a retry of its step", "a sleep"])
def test_a_run_whose_wait_a_resume_ends_is_told_so(small: OneProcess, wait: str) -> None:
    @tool(effect="keyed", key_lifetime=timedelta(days=1), bind=True)
    def charge(_operation: Operation) -> str:
        small.requests.append("charge")
        raise TimeoutError("no answer")

    def begin(_state: Any) -> Any:
        if wait == "a sleep":
            return sleep(60, then=end)
        if wait == "the back-off of a key":
            return done(charge())
        small.requests.append("begin")
        raise ConnectionError

    def end(_state: Any) -> Any:
        small.requests.append("end")
        return done()

    order = Agent("order", app=small.app, tools=[charge])
    order.step(begin, name="begin", start=True, autoretry_for=(ConnectionError,), retry_backoff=60)
    order.step(end, name="end")
    handle = small.run(order)
    asked = len(small.requests)
    shown = run(small, "runs", "show", "run-1").stdout
    assert "  not to wait any longer:  order.run('run-1').resume(who=…, why=…)\n" in shown
    assert "resume does not" not in shown
    handle.resume(who="kim", why="it is mended")
    small.work(order)
    assert len(small.requests) == asked + 1


def test_the_calls_of_a_batch_are_shown_as_the_step_asked_for_them(small: OneProcess) -> None:
    @tool(effect="manual", timeout=questions.TIMEOUT)
    def mail(to: str) -> str:
        return to

    readers = ["kim", "lee", "ada", "bob"]
    send = small.agent(mail, send=lambda _state: done(run_calls([mail.call(reader) for reader in readers])))
    small.run(send)
    table = small.runtime.tables.operations
    with small.runtime.engine.connect() as connection, connection.begin():  # as threads may have begun them
        connection.execute(update(table).values(first_started_at=1_000_000 - table.c.ordinal))
    shown = json.loads(run(small, "runs", "show", "run-1", "--json").stdout)
    assert [operation["args"]["to"] for operation in shown["operations"]] == readers


def test_the_crashes_of_a_run_are_named_for_what_they_count(small: OneProcess) -> None:
    stopped = questions.crashes(small)
    assert "  3 since the last checkpoint or answer\n" in run(small, "runs", "show", "run-1").stdout
    stopped.answer("retry")
    assert "  0 since the last checkpoint or answer\n" in run(small, "runs", "show", "run-1").stdout
    assert json.loads(run(small, "runs", "show", "run-1", "--json").stdout)["run"]["crashes"] == 0


def test_an_app_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    shown = CliRunner().invoke(agent, ["-A", "no_such_shop", "runs", "list"], prog_name="agent-tasks")
    assert shown.exit_code == exit_codes.USAGE
    assert "the app 'no_such_shop' cannot be imported" in shown.stderr


def test_an_app_whose_module_raises_is_a_usage_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shop.py").write_text("raise ValueError('AGENT_LEASE_SECONDS must be a number of seconds')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = CliRunner().invoke(agent, ["-A", "broken_shop", "runs", "list"], prog_name="agent-tasks")
    assert (shown.exit_code, shown.stdout) == (exit_codes.USAGE, "")
    said = "the app 'broken_shop' cannot be imported: ValueError: AGENT_LEASE_SECONDS must be a number of seconds\n"
    assert said in shown.stderr
    assert "python -c 'import broken_shop'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_setting_of_no_use_is_named_with_where_it_is_set(tmp_path: Path) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(agent_database_url=f"sqlite:///{tmp_path / 'agent.db'}", agent_lease_seconds=-3.0)
    context = CLIContext(app=app, no_color=True, workdir=None)
    shown = CliRunner().invoke(agent, ["runs", "list"], obj=context, prog_name="agent-tasks")
    assert shown.exit_code == exit_codes.USAGE
    assert "why:  agent_lease_seconds must be a number above 0, got -3.0." in shown.stderr
    assert "next: set agent_lease_seconds right where the app reads its settings" in shown.stderr
    assert "AGENT_LEASE_SECONDS in the environment" in shown.stderr


def listed_with(tmp_path: Path, **settings: Any) -> Result:
    """List the runs of an app with these settings."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(**{"agent_database_url": f"sqlite:///{tmp_path / 'agent.db'}", **settings})
    context = CLIContext(app=app, no_color=True, workdir=None)
    return CliRunner().invoke(agent, ["runs", "list"], obj=context, prog_name="agent-tasks")


def test_a_misspelt_setting_is_told_its_right_name_and_no_variable_that_is_not_there(tmp_path: Path) -> None:
    shown = listed_with(tmp_path, agent_lease_secnds=5)
    assert shown.exit_code == exit_codes.USAGE
    assert shown.stderr.endswith(
        "next: write agent_lease_seconds in the place of agent_lease_secnds where the app reads its settings\n"
    )


def test_a_misspelt_variable_is_refused_by_the_commands_with_its_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATABASE_URI", "postgresql+psycopg://host/agents")
    shown = listed_with(tmp_path)
    assert shown.exit_code == exit_codes.USAGE
    assert "why:  AGENT_DATABASE_URI in the environment is not read. Did you mean AGENT_DATABASE_URL?\n" in shown.stderr
    assert "next: rename AGENT_DATABASE_URI to AGENT_DATABASE_URL in the environment" in shown.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("postgresql+psycopg://host/agents", "psycopg", "postgres"), ("mysql+pymysql://host/agents", "pymysql", "mysql")],
)
def test_a_missing_driver_is_to_be_installed_and_the_url_is_left_as_it_is(
    url: str, driver: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    shown = listed_with(tmp_path, agent_database_url=url)
    assert shown.exit_code == exit_codes.USAGE
    assert "its driver is missing here" in shown.stderr
    assert shown.stderr.endswith(
        f"next: pip install 'celery-agent-tasks[{extra}]', or in a clone of it: pip install '.[{extra}]'\n"
    )


def test_a_pending_operation_of_a_run_that_ended_does_not_read_as_still_to_be_done(small: OneProcess) -> None:
    stopped = questions.unknown(small)
    stopped.run.cancel(who="kim", why="not needed")
    stopped.run.resolve(stopped.item.item_id, "did-not-happen", who="kim", why="not in the log")
    small.work(stopped.agent)
    assert str(stopped.run.status) == "cancelled"
    shown = run(small, "runs", "show", "run-1").stdout
    assert re.search(r"status: +pending, and not to be done: its run has ended", shown)
    assert "after a crash" not in shown
