"""Dedupe keys: one job, one run, however often it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent_tasks import Agent, DedupeConflict, done
from tests.one_process import OneProcess

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    yield here
    here.close()


def greeter(here: OneProcess, name: str = "greeter") -> Agent:
    return here.agent(name=name, greet=lambda state: done(f"hello {state['name']}"))


def test_the_same_key_and_input_is_the_same_run(here: OneProcess) -> None:
    agent = greeter(here)
    first = agent.enqueue({"name": "Kim", "age": 7}, dedupe_key="kim")
    again = agent.enqueue({"age": 7, "name": "Kim"}, dedupe_key="kim")
    assert again.run_id == first.run_id
    assert here.counts()["agent_runs"] == 1


def test_the_key_points_at_the_run_after_it_finished_and_nothing_runs_again(here: OneProcess) -> None:
    agent = greeter(here)
    first = agent.enqueue({"name": "Kim"}, dedupe_key="kim")
    here.work(agent)
    before = here.counts()
    again = agent.enqueue({"name": "Kim"}, dedupe_key="kim")
    here.work(agent)
    assert (again.run_id, again.get(timeout=0)) == (first.run_id, "hello Kim")
    assert here.counts() == before


def test_a_finished_run_still_refuses_other_input_for_its_key(here: OneProcess) -> None:
    agent = greeter(here)
    agent.enqueue({"name": "Kim"}, dedupe_key="kim")
    here.work(agent)
    with pytest.raises(DedupeConflict, match="dedupe key 'kim' belongs to run"):
        agent.enqueue({"name": "Lee"}, dedupe_key="kim")


def test_each_agent_has_its_own_keys(here: OneProcess) -> None:
    first = greeter(here, "first").enqueue({"name": "Kim"}, dedupe_key="kim")
    second = greeter(here, "second").enqueue({"name": "Lee"}, dedupe_key="kim")
    assert first.run_id != second.run_id


def test_the_same_run_id_again_is_the_same_run(here: OneProcess) -> None:
    agent = greeter(here)
    assert agent.enqueue({"name": "Kim"}, run_id="r").run_id == agent.enqueue({"name": "Kim"}, run_id="r").run_id
    assert here.counts()["agent_runs"] == 1


def test_a_run_id_with_another_key_is_a_conflict(here: OneProcess) -> None:
    agent = greeter(here)
    agent.enqueue({"name": "Kim"}, run_id="r", dedupe_key="kim")
    with pytest.raises(DedupeConflict, match="run id 'r' belongs to run 'r'"):
        agent.enqueue({"name": "Kim"}, run_id="r", dedupe_key="lee")


def test_callers_at_the_same_moment_get_one_run(here: OneProcess) -> None:
    agent = greeter(here)
    start, ids = threading.Barrier(4), []

    def call() -> None:
        start.wait(timeout=10)
        ids.append(agent.enqueue({"name": "Kim"}, dedupe_key="kim").run_id)

    callers: list[Any] = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert here.counts()["agent_runs"] == 1
