"""What is folded into one statement on PostgreSQL: all of it or nothing, whatever others do meanwhile (I2, I7, I13, I14)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from agent_tasks import Agent, Coalesce, shortcuts, tool
from agent_tasks.attempt import Attempt
from agent_tasks.coalescing import GoesOn, commit_held
from agent_tasks.database import open_engine
from agent_tasks.ending import Ending
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.ledger import Request
from agent_tasks.operations import Operation
from agent_tasks.outcomes import Done, Next
from agent_tasks.runs import Owner
from agent_tasks.runtime import Runtime
from agent_tasks.single import Single
from agent_tasks.states import OperationStatus, RunRequest, RunStatus
from checkpoint import CheckpointState, codec
from tests.duel import Outage
from tests.one_process import OneProcess
from tests.rows import Rows
from tests.waiting import wait_until

RUN = "run-1"

#: The output of a run, as it is stored.
PAID = codec.dumps("paid", "output")


@pytest.fixture
def here(postgres_database: Callable[[], str]) -> Iterator[OneProcess]:
    here = OneProcess(postgres_database())
    yield here
    here.close()


@tool(effect="manual", timeout=timedelta(seconds=20))
def charge(text: str) -> str:
    return text


class Situation:
    """An attempt that owns its run, and what it is about to write."""

    def __init__(self, here: OneProcess, agent: Agent | None = None) -> None:
        self.here, self.runtime = here, here.runtime
        agent = agent or here.agent(charge, name="shop", pay=lambda _state: None)
        self.runtime.store.save(self.state(0))
        self.attempt = Attempt(self.runtime, agent, Rows(here).run(RUN), self.state(0), [], None)

    @staticmethod
    def state(seq: int, line: int = 0, **values: Any) -> CheckpointState:
        return CheckpointState(RUN, seq, None, line, [f"message {n}" for n in range(seq)], values)

    def request(self) -> Request:
        return self.attempt.request(charge, {"text": "a"})

    def begun(self) -> Operation:
        operation = shortcuts.intend(self.runtime, self.attempt, self.request())
        assert operation is not None
        return operation

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that the ledger holds."""
        tables = (self.runtime.tables.runs, self.runtime.tables.operations)
        tables += tuple(self.runtime.store.metadata.sorted_tables)
        with self.runtime.engine.connect() as connection:
            return {table.name: [tuple(row) for row in connection.execute(select(table))] for table in tables}

    def set_run(self, connection: Connection | None = None, **values: Any) -> None:
        table = self.runtime.tables.runs
        self.write(update(table).where(table.c.run_id == RUN).values(**values), connection)

    def set_operation(self, connection: Connection | None = None, **values: Any) -> None:
        self.write(update(self.runtime.tables.operations).values(**values), connection)

    def write(self, statement: Any, connection: Connection | None = None) -> None:
        if connection is not None:
            connection.execute(statement)
            return
        with self.runtime.engine.connect() as own, own.begin():
            own.execute(statement)

    @contextmanager
    def meanwhile(self, write: Callable[[], Any]) -> Iterator[tuple[Connection, list[Any]]]:
        """While a transaction is open on the run's row, begin a write in a thread that has to wait for it.

        What the write returned is there when the transaction has ended.
        """
        said: list[Any] = []
        thread = threading.Thread(target=lambda: said.append(write()))
        with self.runtime.engine.connect() as connection, connection.begin():
            self.runtime.runs.find(connection, RUN, lock=True)
            yield connection, said
            thread.start()
            wait_until(lambda: said or self.waiting(), "it waits for the row, or did not have to")
        thread.join(30)
        assert said, "it waits for ever"

    def waiting(self) -> bool:
        with self.runtime.engine.connect() as connection:
            return bool(
                connection.exec_driver_sql(
                    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                    "WHERE NOT granted AND datname = current_database()"
                ).scalar_one()
            )


@pytest.fixture
def there(here: OneProcess) -> Situation:
    return Situation(here)


Write = Callable[[Situation], Any]


def begin(there: Situation) -> Any:
    return shortcuts.intend(there.runtime, there.attempt, there.request())


def record(there: Situation) -> Any:
    outcome = {"status": OperationStatus.SUCCEEDED, "result": b"", "error": None}
    return shortcuts.record(there.runtime, there.attempt, there.request(), **outcome)


def succeed(there: Situation) -> Any:
    return shortcuts.succeed(there.runtime, there.attempt, operation_of(there), b"mine")


def go_on(there: Situation) -> Any:
    snapshot = there.runtime.store.snapshot(there.state(1))
    return shortcuts.commit(there.runtime, there.attempt, Next("pay"), snapshot, None)


def keep_on(there: Situation) -> Any:
    snapshot = there.runtime.store.snapshot(there.state(1))
    going = GoesOn("pay", "inline", snapshot, with_calls=False, held=False)
    return shortcuts.keep_on(there.runtime, there.attempt, going)


def hold(there: Situation) -> Attempt:
    """Let the attempt be that of the third step, while the checkpoints of two are held."""
    attempt, store = there.attempt, there.runtime.store
    attempt.seq, attempt.held = 3, [store.snapshot(there.state(1)), store.snapshot(there.state(2))]
    return attempt


def catch_up(there: Situation) -> Any:
    attempt = there.attempt
    owner, held = Owner(RUN, attempt.fence, attempt.token, 1), hold(there).held
    said = shortcuts.go_on(there.runtime, owner, attempt.wakeups, held, step="pay", queue="inline")
    attempt.seq = 1
    return said


def end(there: Situation) -> Any:
    snapshot = there.runtime.store.snapshot(there.state(1))
    return shortcuts.commit(there.runtime, there.attempt, Done("paid"), snapshot, PAID)


WRITES: dict[str, Write] = {
    "intent": begin,
    "record": record,
    "outcome": succeed,
    "step": go_on,
    "kept step": keep_on,
    "held steps": catch_up,
    "last step": end,
}


def operation_of(there: Situation) -> Operation:
    """The operation as its attempt saw it at its intent."""
    (operation,) = there.attempt.known.values()
    return operation


def stands_before(there: Situation, write: str) -> None:
    if write == "outcome":
        operation = there.begun()
        there.attempt.known[operation.operation_id] = operation


# -- the usual case ----------------------------------------------------------------------------------------------------------


def test_what_goes_as_usual_is_written_in_one_statement_each(here: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(effect="read")
    def price(item: str) -> int:
        return 100

    def pay(state: Any) -> Any:
        state["charged"] = charge(f"{price('tea')} cents")
        return order.steps["ship"]

    order = here.agent(price, charge, pay=pay, ship=lambda state: state.messages.append("sent") or order.steps["mail"])
    order.step(lambda _state: Done("mailed"), name="mail")
    longer: list[str] = []
    commit = here.runtime.boundary.commit
    monkeypatch.setattr(
        here.runtime.boundary,
        "commit",
        lambda name, *rest: longer.append(name) or commit(name, *rest),  # type: ignore[func-returns-value]
    )

    run = here.run(order)
    assert run.get(timeout=0) == "mailed"
    assert set(longer) == {"enqueue"}
    by_tool = {operation.tool: operation for operation in run.operations()}
    assert {name: str(operation.status) for name, operation in by_tool.items()} == dict.fromkeys(
        ("price", "charge"), "succeeded"
    )


def test_an_intent_knows_its_operation_without_reading_it(there: Situation) -> None:
    operation = there.begun()
    stored = there.runtime.boundary.read(
        there.runtime.engine, lambda c: there.runtime.ledger.find(c, operation.operation_id)
    )
    assert stored is not None
    assert {**operation.row, "now": None} == {**stored.row, "now": None}
    assert abs(operation.row["now"] - stored.row["now"]) < 60e6


@pytest.mark.parametrize("write", WRITES)
def test_the_longer_way_writes_the_same(here: OneProcess, write: str) -> None:
    """The row that a folded statement leaves is the one that the statements of the transaction leave."""
    there = Situation(here)
    stands_before(there, write)
    before = there.rows()
    assert WRITES[write](there) is not None
    folded = there.rows()
    assert folded != before

    for table in (*there.runtime.tables.metadata.sorted_tables, *there.runtime.store.metadata.sorted_tables):
        with here.runtime.engine.connect() as connection, connection.begin():
            connection.execute(table.delete())
    longer = Situation(here, there.attempt.agent)
    longer.runtime.folded = None
    operation_seen = None
    if write == "outcome":
        operation_seen = here.runtime.recorder.begin(longer.attempt, longer.request(), None)
        assert operation_seen is not None
        here.runtime.recorder.outcome(
            longer.attempt, operation_seen, OperationStatus.SUCCEEDED, result=b"mine", unsettled=0
        )
    elif write == "intent":
        here.runtime.recorder.begin(longer.attempt, longer.request(), None)
    elif write == "record":
        outcome = {"status": OperationStatus.SUCCEEDED, "result": b"", "error": None}
        here.runtime.recorder.record(longer.attempt, longer.request(), None, **outcome)
    else:

        def work(connection: Connection) -> None:
            here.runtime.store.save(longer.state(1), connection=connection)
            if write == "held steps":
                here.runtime.store.save(longer.state(2), connection=connection)
                here.runtime.runs.go_on(connection, longer.attempt, seq=2, step="pay", queue="inline")
            elif write == "step":
                here.runtime.runs.advance(connection, longer.attempt, step="pay", queue="inline")
            elif write == "kept step":
                here.runtime.runs.go_on(connection, longer.attempt, seq=1, step="pay", queue="inline")
            else:
                here.runtime.runs.finish(connection, longer.attempt, RunStatus.SUCCEEDED, output=PAID, advance=True)

        here.runtime.boundary.commit("step", here.runtime.engine, work)
    assert shape(longer.rows()) == shape(folded)


def shape(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Rows without their times, which are the only great numbers in them, and without what is made of these."""
    return {
        name: [
            tuple("a time" if isinstance(value, int) and value > 10**12 else value for value in row)
            if not name.endswith("checkpoints")
            else row[:6]
            for row in found
        ]
        for name, found in rows.items()
    }


# -- each word of their conditions -------------------------------------------------------------------------------------------

#: A run's row that is not as the attempt knows it, by the one word that says so.
OTHERWISE: dict[str, dict[str, Any]] = {
    "another fence": {"fence": 2},
    "another token": {"lease_token": "another"},
    "another seq": {"seq": 1},
    "it waits": {"status": RunStatus.WAITING},
    "it is cancelled": {"request": RunRequest.CANCEL},
    "there is news": {"wakeups": 1},
}

#: Bought or done is recorded, whatever came in; what is requested of the run is heard of.
RECORDED_ALL_THE_SAME = {
    ("record", "there is news"),
    ("outcome", "there is news"),
    ("outcome", "it is cancelled"),
}


@pytest.mark.parametrize("word", OTHERWISE)
@pytest.mark.parametrize("write", WRITES)
def test_a_run_that_is_not_as_its_attempt_knows_it_is_left_to_the_longer_way(
    there: Situation, write: str, word: str
) -> None:
    stands_before(there, write)
    there.set_run(**OTHERWISE[word])
    before = there.rows()
    said = WRITES[write](there)
    if (write, word) in RECORDED_ALL_THE_SAME:
        assert said
        return
    assert not said
    assert there.rows() == before


@pytest.mark.parametrize("word", OTHERWISE)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_the_run_while_its_row_is_waited_for_counts(there: Situation, write: str, word: str) -> None:
    stands_before(there, write)
    with there.meanwhile(lambda: WRITES[write](there)) as (connection, said):
        there.set_run(connection, **OTHERWISE[word])
    assert bool(said[0]) == ((write, word) in RECORDED_ALL_THE_SAME)
    operations, checkpoints = there.runtime.tables.operations.name, there.runtime.store.tables.checkpoints.name
    if not said[0]:
        assert len(there.rows()[operations]) == (1 if write == "outcome" else 0)
        assert len(there.rows()[checkpoints]) == 1


@pytest.mark.parametrize("write", WRITES)
def test_a_row_that_was_waited_for_and_is_as_before_is_written_to(there: Situation, write: str) -> None:
    """A heartbeat, say: it moves the end of the lease."""
    stands_before(there, write)
    with there.meanwhile(lambda: WRITES[write](there)) as (connection, said):
        there.set_run(connection, due_at=2**60)
    assert said[0]
    made = {"step": 1, "kept step": 1, "held steps": 2, "last step": 1}.get(write, 0)
    assert len(there.rows()[there.runtime.store.tables.checkpoints.name]) == 1 + made


@pytest.mark.parametrize(
    "values",
    [{"attempts": 2}, {"token": "another"}]
    + [{"status": status} for status in OperationStatus if status is not OperationStatus.EXECUTING],
    ids=str,
)
@pytest.mark.parametrize("when", ["before", "while the run's row is waited for"])
def test_an_outcome_settles_only_the_request_that_it_is_of(there: Situation, values: dict[str, Any], when: str) -> None:
    stands_before(there, "outcome")
    if when == "before":
        there.set_operation(**values)
        said = [succeed(there)]
    else:
        with there.meanwhile(lambda: succeed(there)) as (connection, said):
            there.set_operation(connection, **values)
    assert said == [None]
    table = there.runtime.tables.operations
    with there.runtime.engine.connect() as connection:
        row = connection.execute(select(table)).mappings().one()
    assert row["result"] is None
    assert {name: row[name] for name in values} == {name: _as_stored(value) for name, value in values.items()}


def _as_stored(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


@pytest.mark.parametrize("requested", [None, RunRequest.CANCEL])
def test_an_outcome_hears_of_a_cancel(there: Situation, requested: RunRequest | None) -> None:
    stands_before(there, "outcome")
    there.set_run(request=requested)
    recorder = there.runtime.recorder
    recorder.outcome(there.attempt, operation_of(there), OperationStatus.SUCCEEDED, result=b"mine", unsettled=0)
    assert there.attempt.cancelled == (requested is not None)


# -- others who write beside it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_of_two_intents_with_one_id_the_one_that_was_committed_stands(there: Situation, ends: str) -> None:
    request, said = there.request(), list[Any]()
    table = there.runtime.tables.operations
    values = {
        **request.planned(there.attempt),
        "status": OperationStatus.EXECUTING,
        "attempts": 1,
        "fence": 1,
        "token": "another",
    }
    thread = threading.Thread(target=lambda: said.append(shortcuts.intend(there.runtime, there.attempt, request)))
    with there.runtime.engine.connect() as connection:
        transaction = connection.begin()
        connection.execute(insert(table).values(**values))
        thread.start()
        wait_until(lambda: said or there.waiting(), "it waits for the other one")
        getattr(transaction, ends)()
    thread.join(30)
    (row,) = there.rows()[table.name]
    assert (said[0] is None, "another" in row) == ((True, True) if ends == "commit" else (False, False))


@pytest.mark.parametrize("write", ["step", "kept step", "held steps", "last step"])
@pytest.mark.parametrize("moved", ["before", "while the run's row is waited for"])
def test_a_head_that_somebody_else_moved_leaves_nothing_half_done(there: Situation, write: str, moved: str) -> None:
    theirs = there.state(1, theirs=True)
    if moved == "before":
        rival = Runtime(there.runtime.settings, lambda _boundary: there.runtime.bell, engine=there.runtime.engine)
        rival.store.save(theirs)
        said = [WRITES[write](there)]
    else:
        rival = Runtime(there.runtime.settings, lambda _boundary: there.runtime.bell, engine=there.runtime.engine)
        with there.meanwhile(lambda: WRITES[write](there)) as (connection, said):
            rival.store.save(theirs, connection=connection)
    assert said == [None]
    row = Rows(there.here).find(RUN)
    assert (row["status"], row["seq"], row["lease_token"]) == (RunStatus.RUNNING, 0, "token")
    rows = there.rows()
    assert [len(rows[table.name]) for table in there.runtime.store.metadata.sorted_tables] == [2, 1, 1]
    assert rival.store.load(RUN, 1).agent_state == {"theirs": True}


def test_a_checkpoint_that_cannot_be_inserted_moves_nothing(there: Situation) -> None:
    table = there.runtime.store.tables.checkpoints
    with there.runtime.engine.connect() as connection, connection.begin():
        (row,) = connection.execute(select(table)).mappings()
        connection.execute(insert(table).values(**{**row, "seq": 1}))  # a database that was put together by hand
    before = there.rows()
    with pytest.raises(IntegrityError):
        go_on(there)
    assert there.rows() == before


# -- claim -------------------------------------------------------------------------------------------------------------------


def claim(there: Situation) -> Any:
    return shortcuts.claim(there.runtime, RUN, 1, agent="shop", step="pay", token="second")


def test_a_claim_that_waited_for_the_row_does_not_trust_the_checkpoint_that_it_read_beside_it(there: Situation) -> None:
    """Meanwhile the run went to another line, where it stands at a checkpoint of the same number."""
    there.set_run(status=RunStatus.QUEUED, lease_token=None)
    with there.meanwhile(lambda: claim(there)) as (connection, said):
        there.runtime.store.save(there.state(0, line=1, newer=True), connection=connection)
        there.set_run(connection, line=1, line_start_seq=-1)
    row, state = said[0]
    assert (row["line"], state) == (1, None)


def test_the_step_gets_the_checkpoint_that_the_claimed_row_names(here: OneProcess) -> None:
    seen: list[Any] = []
    order = here.agent(pay=lambda state: seen.append(state["n"]) or Done(), name="shop")
    order.enqueue({"n": 1}, run_id=RUN)
    there = here.runtime
    newer = CheckpointState(RUN, 0, None, 1, [], {"n": 2})
    Runtime(there.settings, lambda _b: there.bell, engine=there.engine).store.save(newer)
    with there.engine.connect() as connection, connection.begin():
        connection.execute(update(there.tables.runs).values(line=1, line_start_seq=-1))
    here.work(order)
    assert seen == [2]


def test_a_claim_brings_the_checkpoint_along(there: Situation) -> None:
    there.set_run(status=RunStatus.QUEUED, lease_token=None)
    row, state = claim(there)
    assert (row["fence"], row["lease_token"], row["status"]) == (2, "second", RunStatus.RUNNING)
    assert replace(state, created_at=None) == there.state(0)


@pytest.mark.parametrize("reader", ["this process", "another one"])
def test_the_messages_that_another_process_wrote_are_read(here: OneProcess, reader: str) -> None:
    def pay(state: Any) -> Any:
        state.messages.append(len(state.messages))
        if reader == "another one":
            here.runtime.store._cache.forget(RUN)
        return order.steps["pay"] if len(state.messages) < 5 else Done(list(state.messages))

    order = here.agent(pay=pay)
    assert here.run(order).get(timeout=0) == [0, 1, 2, 3, 4]


# -- the boundary --------------------------------------------------------------------------------------------------------------


def test_a_folded_statement_is_crossed_before_it_is_sent_and_after_it_was_answered(there: Situation) -> None:
    operations, seen = there.runtime.tables.operations.name, list[tuple[str, int]]()
    there.runtime.boundary.observer = lambda point: seen.append((str(point), len(there.rows()[operations])))
    assert begin(there) is not None
    assert seen == [("before commit intent", 0), ("after commit intent", 1)]


def test_a_folded_statement_that_changed_nothing_is_not_crossed_to_its_other_side(there: Situation) -> None:
    seen: list[str] = []
    there.set_run(wakeups=1)
    there.runtime.boundary.observer = lambda point: seen.append(str(point))
    assert begin(there) is None
    assert seen == ["before commit intent"]


def test_what_an_observer_raises_before_a_folded_statement_keeps_it_from_being_sent(there: Situation) -> None:
    def crash(_point: object) -> None:
        raise Struck

    before = there.rows()
    there.runtime.boundary.observer = crash
    with pytest.raises(Struck):
        begin(there)
    assert there.rows() == before


@pytest.mark.parametrize("write", WRITES)
def test_an_answer_that_was_lost_after_the_statement_is_found_by_the_longer_way(there: Situation, write: str) -> None:
    """The recorder sends again, and finds by the token what was written."""
    stands_before(there, write)
    lost = Outage("step" if "step" in write else write, "after")
    there.runtime.boundary.observer = lost
    recorder, attempt = there.runtime.recorder, there.attempt
    outcome = {"status": OperationStatus.SUCCEEDED, "result": b"", "error": None}
    if write == "intent":
        assert recorder.begin(attempt, there.request(), None) is not None
    elif write == "record":
        assert recorder.record(attempt, there.request(), None, **outcome)
    elif write == "outcome":
        recorder.outcome(attempt, operation_of(there), OperationStatus.SUCCEEDED, result=b"mine", unsettled=0)
    elif write == "held steps":
        commit_held(hold(there))
        row = Rows(there.here).find(RUN)
        assert (row["seq"], row["status"], row["next_step"]) == (2, RunStatus.RUNNING, "pay")
        assert attempt.held == []
    else:
        if write == "kept step":
            attempt.agent.coalesce, attempt.message_began = Coalesce(seconds=60), there.runtime.clock.local()
        going = Ending(there.runtime).settle(attempt, Done("paid") if write == "last step" else Next("pay"))
        row = Rows(there.here).find(RUN)
        status = {"step": RunStatus.QUEUED, "kept step": RunStatus.RUNNING, "last step": RunStatus.SUCCEEDED}[write]
        assert (row["seq"], row["status"], row["next_step"]) == (1, status, None if write == "last step" else "pay")
        assert (going is not None) == (write == "kept step")
        assert Rows(there.here).rung() == ([RUN] if write == "step" else [])
    assert (lost.hits, attempt.doomed) == (1, None)


# -- the connection --------------------------------------------------------------------------------------------------------------


def test_a_race_for_locks_that_is_lost_is_left_to_the_longer_way(there: Situation) -> None:
    with there.runtime.engine.connect() as connection, closing(Pool(there)) as impatient:
        there.runtime.engine = impatient.engine
        with impatient.engine.connect() as own:
            own.exec_driver_sql("SET lock_timeout = '100ms'")
            own.commit()
        with connection.begin():
            there.runtime.runs.find(connection, RUN, lock=True)
            assert go_on(there) is None
        assert go_on(there) is not None
        there.runtime.engine = connection.engine


class Pool:
    """Connections of its own to the ledger."""

    def __init__(self, there: Situation) -> None:
        self.engine = open_engine(there.here.url)

    def close(self) -> None:
        self.engine.dispose()


def test_after_a_connection_was_cut_the_next_statement_connects_anew(there: Situation) -> None:
    with there.runtime.engine.connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with closing(Pool(there)) as other, other.engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({backend})")
    with pytest.raises(LedgerUnavailable) as cut:
        begin(there)
    assert cut.value.ambiguous
    assert begin(there) is not None


def test_an_attempt_whose_connection_was_cut_begins_its_call_all_the_same(there: Situation) -> None:
    with there.runtime.engine.connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with closing(Pool(there)) as other, other.engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({backend})")
    operation = there.runtime.recorder.begin(there.attempt, there.request(), None)
    assert operation is not None
    assert operation.attempts == 1


class Struck(Exception):
    """What a time limit raises, from a signal's handler."""


def test_a_time_limit_in_the_middle_of_a_statement_is_heard_of_and_its_connection_is_not_used_again(
    there: Situation,
) -> None:
    def strike(*_: object) -> None:
        raise Struck

    engine = there.runtime.engine
    sleep, one = Single(select(func.pg_sleep(20)), engine), Single(select(literal(1).label("one")), engine)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Struck):
            there.runtime.boundary.at_once("step", engine, sleep, {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert there.runtime.boundary.at_once("step", engine, one, {}).one == 1
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_database_that_is_not_reached_got_no_statement(there: Situation) -> None:
    one = Single(select(literal(1).label("one")), there.runtime.engine)
    nobody = open_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with pytest.raises(LedgerUnavailable, match=r"did not answer at 'claim'.*Nothing was written") as said:
        there.runtime.boundary.at_once("claim", nobody, one, {})
    assert not said.value.ambiguous


def test_a_statement_that_the_database_refuses_is_said_in_the_words_of_sqlalchemy(there: Situation) -> None:
    with there.runtime.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("ALTER TABLE agent_operations ADD CHECK (tool <> 'charge')")
    before = there.rows()
    with pytest.raises(IntegrityError, match="violates check constraint"):
        begin(there)
    assert there.rows() == before
