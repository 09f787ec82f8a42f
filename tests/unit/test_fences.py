"""Each word in the WHERE of a statement holds by itself: a row that differs in that one word is left as it is (I2, I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, RowMapping, update

from agent_tasks import StepSuspended, tool
from agent_tasks.attempt import Attempt
from agent_tasks.ledger import Request
from agent_tasks.operations import Operation
from agent_tasks.retries import Retry
from agent_tasks.states import IN_DOUBT, OperationStatus, RunStatus
from agent_tasks.suspensions import Wait
from checkpoint import CheckpointState
from tests.one_process import OneProcess
from tests.rows import Rows

RUN = "run-1"

Write = Callable[[OneProcess, Connection, Attempt], Any]

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    here = OneProcess(database_url)
    yield here
    here.close()


@tool(effect="repeatable", why="a test counts nothing")
def note(text: str) -> str:
    return text


def attempt_of(here: OneProcess) -> Attempt:
    """An attempt that owns its run."""
    agent = here.agent(note, name="shop", pay=lambda _state: None)
    row = Rows(here).run(RUN)
    return Attempt(here.runtime, agent, row, CheckpointState(run_id=RUN, seq=0), [], None)


def changes(here: OneProcess, write: Callable[[Connection], Any]) -> tuple[Any, RowMapping, RowMapping]:
    """What a statement returns, and the run's row before and after it."""
    rows = Rows(here)
    before = rows.find(RUN)
    with here.runtime.engine.connect() as connection, connection.begin():
        said = write(connection)
    return said, without_clock(before), without_clock(rows.find(RUN))


def without_clock(row: RowMapping) -> Any:
    return {name: value for name, value in row.items() if name != "now"}


# -- the fence of an attempt -------------------------------------------------------------------------------------------

#: A run's row that is not the attempt's any more, by the one word that says so.
OVERTAKEN: dict[str, dict[str, Any]] = {
    "another fence": {"fence": 2},
    "another token": {"lease_token": "another"},
    "another seq": {"seq": 1},
    **{f"it is {status}": {"status": status} for status in RunStatus if status is not RunStatus.RUNNING},
}

WRITES: dict[str, Write] = {
    "its commit": lambda here, c, a: here.runtime.runs.advance(c, a, step="mail", queue="inline"),
    "its end": lambda here, c, a: here.runtime.runs.finish(c, a, RunStatus.SUCCEEDED, output=b"1", advance=True),
    "its suspension": lambda here, c, a: here.runtime.runs.suspend(c, a, Wait("for a while", seconds=5)),
    "its retry": lambda here, c, a: here.runtime.runs.retry(c, a, Retry(5, "for a while", spends=True)),
    "its giving back": lambda here, c, a: here.runtime.runs.give_back(c, a),
    "its intent": lambda here, c, a: here.runtime.runs.owned(c, a, share=True),
}


@pytest.mark.parametrize("word", OVERTAKEN)
@pytest.mark.parametrize("write", WRITES)
def test_an_attempt_whose_fence_differs_in_one_word_writes_nothing(here: OneProcess, write: str, word: str) -> None:
    attempt = attempt_of(here)
    Rows(here).write(RUN, **OVERTAKEN[word])
    said, before, after = changes(here, lambda connection: WRITES[write](here, connection, attempt))
    assert not said
    assert after == before


@pytest.mark.parametrize("write", WRITES)
def test_an_attempt_that_owns_its_run_writes(here: OneProcess, write: str) -> None:
    attempt = attempt_of(here)
    said, _, _ = changes(here, lambda connection: WRITES[write](here, connection, attempt))
    assert said


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("share", [True, False], ids=["its intent", "its commit"])
def test_the_row_that_an_attempt_looks_at_is_its_own_until_it_commits(here: OneProcess, share: bool) -> None:
    attempt, runs = attempt_of(here), here.runtime.runs
    with here.runtime.engine.connect() as mine, mine.begin():
        assert runs.owned(mine, attempt, share=share) is not None
        with here.runtime.engine.connect() as other, other.begin():
            assert runs.find(other, RUN, lock=True, wait=False) is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_intents_of_one_step_do_not_wait_for_each_other(here: OneProcess) -> None:
    attempt, runs = attempt_of(here), here.runtime.runs
    with here.runtime.engine.connect() as mine, mine.begin():
        assert runs.owned(mine, attempt, share=True) is not None
        with here.runtime.engine.connect() as other, other.begin():
            other.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
            assert runs.owned(other, attempt, share=True) is not None


# -- what is written from outside an attempt ---------------------------------------------------------------------------

FOREIGN: dict[str, tuple[dict[str, Any], Callable[[OneProcess, Connection], Any]]] = {
    "a heartbeat for another fence": ({"fence": 2}, lambda here, c: here.runtime.runs.renew(c, [(RUN, 1)]) == []),
    "an end of a run that is running": (
        {},
        lambda here, c: here.runtime.decisions.end(c, RUN, RunStatus.CANCELLED, {"type": "cancelled"}),
    ),
    "a heartbeat for a run that waits": (
        {"status": RunStatus.WAITING, "due_at": 2**60},
        lambda here, c: here.runtime.runs.renew(c, [(RUN, 1)]) == [],
    ),
    "a ring for a run that is running": (
        {"due_at": 1},
        lambda here, c: here.runtime.due.rung(c, RUN, 1, again_in_seconds=5),
    ),
    "a ring for a due time that somebody moved": (
        {"status": RunStatus.QUEUED, "due_at": 2},
        lambda here, c: here.runtime.due.rung(c, RUN, 1, again_in_seconds=5),
    ),
    "a ring for a run that is not due": (
        {"status": RunStatus.QUEUED, "due_at": 2**60},
        lambda here, c: here.runtime.due.rung(c, RUN, 2**60, again_in_seconds=5),
    ),
    "a waking of a run that is running": ({"due_at": 1}, lambda here, c: here.runtime.due.wake(c, RUN)),
    "a waking before its time": (
        {"status": RunStatus.WAITING, "due_at": 2**60},
        lambda here, c: here.runtime.due.wake(c, RUN),
    ),
    "a takeover of a lease that was renewed": ({"due_at": 2**60}, lambda here, c: here.runtime.runs.expire(c, RUN)),
    "a takeover of a run that waits": (
        {"status": RunStatus.WAITING, "due_at": 1},
        lambda here, c: here.runtime.runs.expire(c, RUN),
    ),
    "a release for another token": (
        {"lease_token": "another"},
        lambda here, c: here.runtime.runs.release_dead(c, RUN, "token"),
    ),
    "a release of a run that waits": (
        {"status": RunStatus.WAITING},
        lambda here, c: here.runtime.runs.release_dead(c, RUN, "token"),
    ),
    "a parking of a run that is running": ({}, lambda here, c: here.runtime.decisions.park(c, RUN, "for a test")),
    "the telling of another end": (
        {"status": RunStatus.SUCCEEDED, "finished_at": 2, "due_at": 5},
        lambda here, c: here.runtime.decisions.result_stored(c, RUN, finished_at=1),
    ),
    "the telling of the end of a run that was resumed": (
        {"status": RunStatus.QUEUED, "finished_at": None, "due_at": 5},
        lambda here, c: here.runtime.decisions.result_stored(c, RUN, finished_at=1),
    ),
    "an abort of a run that is running": ({}, lambda here, c: here.runtime.decisions.abort(c, RUN, "for a test")),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_row_that_is_not_as_the_writer_saw_it_is_left_alone(here: OneProcess, what: str) -> None:
    values, write = FOREIGN[what]
    attempt_of(here)
    if values:
        Rows(here).write(RUN, **values)
    said, before, after = changes(here, lambda connection: write(here, connection))
    assert not said
    assert after == before


@pytest.mark.parametrize(
    "values",
    [{"agent": "other"}, {"seq": 1}, {"next_step": "mail"}, {"protocol": 99}]
    + [{"status": status} for status in RunStatus if status is not RunStatus.QUEUED],
    ids=str,
)
def test_a_claim_takes_only_the_queued_run_that_its_doorbell_names(here: OneProcess, values: dict[str, Any]) -> None:
    rows = Rows(here)
    rows.queue(RUN)
    rows.write(RUN, **values)
    said, before, after = changes(
        here,
        lambda c: here.runtime.runs.claim(c, RUN, 1, agent="shop", step="pay", owner="a worker", token="token"),
    )
    assert said is None
    assert after == before


# -- the compare-and-set of an operation -------------------------------------------------------------------------------


def begun(here: OneProcess) -> tuple[Attempt, Operation]:
    """An operation whose first request is under way."""
    attempt = attempt_of(here)
    operation = here.runtime.recorder.begin(attempt, attempt.request(note, {"text": "a"}), None)
    assert operation is not None
    return attempt, operation


@pytest.mark.parametrize(
    "values", [{"attempts": 2}, *({"status": s} for s in OperationStatus if s not in IN_DOUBT)], ids=str
)
def test_an_answer_about_one_try_never_settles_another(here: OneProcess, values: dict[str, Any]) -> None:
    _, operation = begun(here)
    write_operation(here, **values)
    with here.runtime.engine.connect() as connection, connection.begin():
        assert not here.runtime.ledger.settle(connection, operation, from_=IN_DOUBT, status=OperationStatus.PENDING)
    stored = operation_now(here, operation)
    assert (stored.attempts, stored.status) == (
        values.get("attempts", 1),
        values.get("status", OperationStatus.EXECUTING),
    )


@pytest.mark.parametrize("values", [{"attempts": 2, "token": "another"}, {"status": OperationStatus.UNKNOWN}], ids=str)
def test_a_request_is_begun_only_from_the_row_that_was_seen(here: OneProcess, values: dict[str, Any]) -> None:
    attempt, operation = begun(here)
    write_operation(here, **values)
    request = attempt.request(note, {"text": "a"})
    before = operation_now(here, operation).row
    seen = Operation(operation.row, operation.clock, operation.read_at)
    with here.runtime.engine.connect() as connection, connection.begin():
        assert here.runtime.ledger.begin(connection, attempt, renamed(request, operation), seen) is None
    assert without_clock(operation_now(here, operation).row) == without_clock(before)


@pytest.mark.parametrize(
    "values",
    [{"attempts": 2}, {"token": "another"}, {"status": OperationStatus.UNKNOWN}, {"args_digest": "of other arguments"}],
    ids=str,
)
def test_an_intent_is_found_again_only_where_every_word_of_it_is_this_one(
    here: OneProcess, values: dict[str, Any]
) -> None:
    attempt, operation = begun(here)
    request = renamed(attempt.request(note, {"text": "a"}), operation)

    def found_again() -> Operation | None:
        return here.runtime.boundary.read(
            here.runtime.engine, lambda c: here.runtime.ledger.begun_before(c, attempt, request, None)
        )

    assert found_again() is not None
    write_operation(here, **values)
    assert found_again() is None


@pytest.mark.parametrize(
    "values", [{"token": "another"}, {"status": OperationStatus.FAILED}, {"args_digest": "of other arguments"}], ids=str
)
def test_a_record_is_found_again_only_where_every_word_of_it_is_this_one(
    here: OneProcess, values: dict[str, Any]
) -> None:
    attempt, operation = begun(here)
    request = renamed(attempt.request(note, {"text": "a"}), operation)
    write_operation(here, status=OperationStatus.SUCCEEDED)

    def found_again() -> bool:
        return here.runtime.boundary.read(
            here.runtime.engine,
            lambda c: here.runtime.ledger.recorded_before(c, attempt, request, OperationStatus.SUCCEEDED),
        )

    assert found_again()
    write_operation(here, **values)
    assert not found_again()


# -- the outcome of an attempt that owns its run, where others wrote about the operation ---------------------------------


@tool(effect="manual", timeout=timedelta(seconds=20))
def charge(text: str) -> str:
    return text


def charging(here: OneProcess) -> tuple[Attempt, Operation]:
    """A charge whose body has just returned."""
    agent = here.agent(charge, name="shop", pay=lambda _state: None)
    attempt = Attempt(here.runtime, agent, Rows(here).run(RUN), CheckpointState(run_id=RUN, seq=0), [], None)
    operation = here.runtime.recorder.begin(attempt, attempt.request(charge, {"text": "a"}), None)
    assert operation is not None
    return attempt, operation


def questions(here: OneProcess) -> list[str]:
    items = here.runtime.boundary.read(here.runtime.engine, lambda c: here.runtime.inbox.items(c, RUN))
    return [str(item.question) for item in items]


#: What stands in the ledger, and what a person must be told when the attempt's own body succeeded.
OTHERWISE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "it was sent again": ({"attempts": 2, "token": "another"}, ["doubled"]),
    "it is taken for failed": ({"status": OperationStatus.FAILED}, ["doubled"]),
    "it was dropped": ({"status": OperationStatus.DROPPED}, ["doubled"]),
    "a person said that it happened": ({"status": OperationStatus.SUCCEEDED, "resolved_by": "kim"}, []),
}


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_an_own_outcome_that_the_ledger_contradicts_is_kept_and_shown(here: OneProcess, otherwise: str) -> None:
    values, told = OTHERWISE[otherwise]
    attempt, operation = charging(here)
    write_operation(here, **values)
    with pytest.raises(StepSuspended, match="others have written what became of charge"):
        here.runtime.recorder.outcome(attempt, operation, OperationStatus.SUCCEEDED, result=b"mine")
    stored = operation_now(here, operation)
    assert stored.evidence[-1]["what"] == "late succeeded"
    assert stored.row["result"] is None
    assert questions(here) == told


@pytest.mark.parametrize("status", [OperationStatus.UNKNOWN, OperationStatus.PENDING])
def test_an_own_success_settles_what_others_made_a_doubt_and_the_next_attempt_finds_it(
    here: OneProcess, status: OperationStatus
) -> None:
    attempt, operation = charging(here)
    write_operation(here, status=status)
    with pytest.raises(StepSuspended):
        here.runtime.recorder.outcome(attempt, operation, OperationStatus.SUCCEEDED, result=b"mine")
    stored = operation_now(here, operation)
    assert (stored.status, stored.row["result"]) == (OperationStatus.SUCCEEDED, b"mine")
    assert questions(here) == []


def test_an_own_outcome_whose_answer_was_lost_is_no_contradiction(here: OneProcess) -> None:
    attempt, operation = charging(here)
    for _ in range(2):
        here.runtime.recorder.outcome(attempt, operation, OperationStatus.SUCCEEDED, result=b"mine")
    assert operation_now(here, operation).evidence == []
    assert (attempt.doomed, questions(here)) == (None, [])


def renamed(request: Request, operation: Operation) -> Request:

    return replace(request, operation_id=operation.operation_id)


def write_operation(here: OneProcess, **values: Any) -> None:
    table = here.runtime.tables.operations
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(update(table).values(**values))


def operation_now(here: OneProcess, operation: Operation) -> Operation:
    found = here.runtime.boundary.read(
        here.runtime.engine, lambda c: here.runtime.ledger.find(c, operation.operation_id)
    )
    assert found is not None
    return found
