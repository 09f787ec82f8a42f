"""Tools that write to the ledger's own database: their effect and its record are one commit, or none (I5, I7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from agent_tasks import Agent, Operation, RunFailed, current_run, done, tool
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, Outage, duel

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        with both.runtime.engine.connect() as connection, connection.begin():
            connection.execute(text("CREATE TABLE effects (what VARCHAR(40) PRIMARY KEY)"))
        yield both


def write(connection: Connection | None, what: str) -> None:
    assert connection is not None
    connection.execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})


def written(here: Duel) -> list[str]:
    with here.runtime.engine.connect() as connection:
        return [row.what for row in connection.execute(text("SELECT what FROM effects ORDER BY what"))]


def writing(here: Duel, body: Callable[[Operation], Any], timeout: timedelta | None = None) -> Agent:
    """Return an agent whose one step calls a transactional tool with this body."""

    @tool(effect="transactional", bind=True, timeout=timeout, name="put")
    def put(operation: Operation) -> Any:
        here.requests.append("put")
        return body(operation)

    def pay(_state: Any) -> Any:
        answer = put()
        if current_run.number == 1:
            raise MemoryError
        return done(answer)

    return here.agent(put, pay=pay)


def fails(here: Duel, order: Agent, why: str) -> None:
    """Fail unless the run fails so, on an operation that failed and left nothing behind."""
    with pytest.raises(RunFailed, match=why):
        here.run(order).get(timeout=0)
    assert here.operation().status is OperationStatus.FAILED
    assert written(here) == []
    here.sound()


def test_an_effect_is_committed_with_its_record_and_never_again(here: Duel) -> None:
    def body(operation: Operation) -> str:
        write(operation.connection, "a")
        return "written"

    assert here.run(writing(here, body)).get(timeout=0) == "written"
    assert (written(here), here.requests) == (["a"], ["put"])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_effect_whose_commit_had_no_answer_is_there_once(here: Duel, moment: str) -> None:
    here.runtime.boundary.observer = Outage("effect and outcome", moment)

    def body(operation: Operation) -> str:
        write(operation.connection, "a")
        return "written"

    assert here.run(writing(here, body)).get(timeout=0) == "written"
    assert written(here) == ["a"]
    assert here.operation().attempts == 1


def test_waiting_for_a_lost_database_is_not_the_bodys_time(here: Duel) -> None:
    outage = Outage("effect and outcome", "before")

    def observe(point: Any) -> None:
        try:
            outage(point)
        except Exception:
            here.runtime.clock.advance(60)
            raise

    here.runtime.boundary.observer = observe
    run = here.run(writing(here, lambda operation: write(operation.connection, "a")))
    assert (run.status, written(here)) == (RunStatus.SUCCEEDED, ["a"])


def test_an_exception_rolls_back(here: Duel) -> None:
    def body(operation: Operation) -> None:
        write(operation.connection, "a")
        raise ValueError("not this one")

    fails(here, writing(here, body), "ValueError: not this one")


def test_a_body_that_overstays_is_rolled_back(here: Duel) -> None:
    def body(operation: Operation) -> None:
        write(operation.connection, "a")
        here.runtime.clock.advance(6)

    fails(here, writing(here, body, timedelta(seconds=5)), "longer than its timeout")


def test_a_violated_constraint_of_the_users_own_table_is_a_failure(here: Duel) -> None:
    def body(operation: Operation) -> None:
        write(operation.connection, "a")
        write(operation.connection, "a")

    fails(here, writing(here, body), "IntegrityError")


def test_a_body_that_goes_on_after_a_failed_statement_either_works_or_fails_as_a_whole(here: Duel) -> None:
    def body(operation: Operation) -> str:
        write(operation.connection, "a")
        try:
            write(operation.connection, "a")
        except IntegrityError:
            return "went on"
        raise AssertionError("unreachable")

    run = here.run(writing(here, body))
    if not here.url.startswith("postgresql"):  # the others undo the statement only
        assert (run.get(timeout=0), written(here)) == ("went on", ["a"])
    else:
        assert (run.status, written(here)) == (RunStatus.FAILED, [])
        assert here.operation().status is OperationStatus.FAILED
    here.sound()


def test_a_savepoint_of_the_body_is_its_own_affair(here: Duel) -> None:
    def body(operation: Operation) -> str:
        assert operation.connection is not None
        write(operation.connection, "a")
        savepoint = operation.connection.begin_nested()
        try:
            write(operation.connection, "a")
        except IntegrityError:
            savepoint.rollback()
        with operation.connection.begin_nested():
            write(operation.connection, "b")
        return "written"

    assert here.run(writing(here, body)).get(timeout=0) == "written"
    assert written(here) == ["a", "b"]


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_body_cannot_end_the_transaction_by_itself(here: Duel, end: str, caught: bool) -> None:
    def body(operation: Operation) -> None:
        write(operation.connection, "a")
        try:
            getattr(operation.connection, end)()
        except Exception:
            if not caught:
                raise

    fails(here, writing(here, body), "InsideTransaction|transaction")


def test_a_tool_cannot_be_called_inside_the_transaction_of_another(here: Duel) -> None:
    sent: list[str] = []

    @tool(effect="manual", timeout=timedelta(seconds=10))
    def mail(to: str) -> None:
        sent.append(to)

    def body(operation: Operation) -> None:
        write(operation.connection, "a")
        mail("kim")

    fails(here, writing(here, body), "in the body of transactional tool 'put'")
    assert sent == []


def test_a_result_that_cannot_be_stored_is_a_failure_here_since_nothing_happened(here: Duel) -> None:
    def body(operation: Operation) -> object:
        write(operation.connection, "a")
        return object()

    fails(here, writing(here, body), "UnstorableValue")


def test_a_swallowed_doubt_before_it_stops_the_transaction(here: Duel) -> None:
    """A doomed attempt writes nothing any more, not even what could be rolled back (I15)."""

    @tool(effect="manual", timeout=timedelta(seconds=10))
    def charge() -> None:
        raise TimeoutError

    @tool(effect="transactional", bind=True)
    def put(operation: Operation) -> None:
        write(operation.connection, "a")

    def pay(_state: Any) -> Any:
        try:
            charge()
        except BaseException:  # noqa: BLE001
            put()
        return done()

    order = here.agent(charge, put, pay=pay)
    here.run(order)
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (written(here), here.questions()) == ([], ["unknown"])
