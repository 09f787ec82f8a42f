"""What the workers wrote, as the demo reads it while they go on writing."""

import json
import logging
import subprocess
import sys

from celery import Celery

from agent_tasks import Agent, done
from agent_tasks.demo.journal import JOURNAL_VARIABLE, Journal

_LOGS = """
import logging, os
from agent_tasks.demo.journal import keep_journal
keep_journal(os.environ)
log = logging.getLogger("agent_tasks.coordinator")
log.info("not about a run")
log.info("begins", extra={"action": "step_begun", "run_id": "run-1", "seq": 1, "step": "pay", "attempt": 2})
"""


def test_the_engines_log_lines_about_runs_are_kept_in_every_process(tmp_path):
    path = tmp_path / "journal.jsonl"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", _LOGS], env={JOURNAL_VARIABLE: str(path)}, check=True, timeout=60)
    entries = Journal(path).new_entries()
    assert [(e.action, e.run_id, e.step, e.attempt) for e in entries] == [("step_begun", "run-1", "pay", 2)] * 2


def test_the_engine_logs_each_attempt_at_a_step(caplog):
    greeter = Agent("greeter", app=Celery("greeter", broker="memory://"))

    @greeter.step
    def greet(_state):
        return done("hello")

    with caplog.at_level(logging.INFO, "agent_tasks"):
        greeter.run_inline({})
    begun = [record for record in caplog.records if getattr(record, "action", None) == "step_begun"]
    assert [(record.step, record.seq, record.attempt) for record in begun] == [("greet", 1, 1)]


def write(path, *lines: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(lines))


def line(run_id: str, at: int, action: str = "step_begun") -> str:
    return json.dumps({"action": action, "run_id": run_id, "at": at}) + "\n"


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    assert journal.new_entries() == []
    whole = line("run-2", 20)
    write(path, line("run-1", 10), whole[:9])
    assert [entry.run_id for entry in journal.new_entries()] == ["run-1"]
    write(path, whole[9:])
    assert [entry.run_id for entry in journal.new_entries()] == ["run-2"]
    assert journal.new_entries() == []


def test_a_run_is_resumed_by_the_first_attempt_that_begins_after_the_kill(tmp_path):
    path = tmp_path / "journal.jsonl"
    write(
        path,
        line("run-1", 10),
        line("run-1", 25, "child_died"),
        line("run-2", 26),
        line("run-1", 40),
        line("run-1", 30),
    )
    journal = Journal(path)
    journal.new_entries()
    assert journal.resumed_at("run-1", 20) == 30
    assert journal.resumed_at("run-1", 40) is None
