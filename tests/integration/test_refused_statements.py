"""Statements that a database refuses: what is known is not thrown away, and no refusal ends in a doubt (I5, I6, I15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from celery.app.trace import build_tracer
from celery.exceptions import Ignore
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.pool import NullPool

from agent_tasks import Agent, AgentTask, Operation, done, tool
from agent_tasks.boundary import Boundary, Point
from agent_tasks.config import Settings
from agent_tasks.doorbell import RING_HEADER, InlineBell
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.integration import AppState
from agent_tasks.runtime import Runtime
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing import check_invariants
from tests.one_process import OneProcess

RUN = "run-1"

_NO = "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$"

#: Refused by the server although the statement is right: what does it, and what takes it back.
REFUSALS = {
    "a standby": (
        "ALTER DATABASE {database} SET default_transaction_read_only = on",
        "ALTER DATABASE {database} RESET default_transaction_read_only",
    ),
    "a right that was taken": (
        "REVOKE UPDATE ON agent_operations FROM {role}",
        "GRANT UPDATE ON agent_operations TO {role}",
    ),
    "a trigger": (
        f"{_NO}; CREATE TRIGGER no BEFORE UPDATE ON agent_operations FOR EACH ROW EXECUTE FUNCTION no()",
        "DROP TRIGGER no ON agent_operations",
    ),
    "a table that is away": (
        "ALTER TABLE agent_operations RENAME TO elsewhere",
        "ALTER TABLE elsewhere RENAME TO agent_operations",
    ),
}


#: Those that are no database which is away, by the driver's class or SQLSTATE, and of which the log says so.
SAID = {"a trigger", "a table that is away"}


class Shop(OneProcess):
    """A run with each kind of write, on a ledger whose role is no owner of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.effects: list[str] = []
        owner = make_url(url)
        self.database, self.role = str(owner.database), f"worker_of_{str(owner.database)[-12:]}"
        own = {"options": "-c default_transaction_read_only=off"}  # whatever the database says
        self._owner = create_engine(owner, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=own)
        self.say("CREATE TABLE effects (what text)")
        self.say("CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        self.say("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
        self.worker_url = owner.set(username=self.role).render_as_string(hide_password=False)
        self.shop = self._agent()
        self.begin_anew()

    def _agent(self) -> Agent:
        effects = self.effects

        @tool(effect="manual", timeout=timedelta(seconds=60))
        def charge(what: str) -> str:
            effects.append(what)
            return what.upper()

        @tool(effect="transactional", bind=True)
        def book(operation: Operation, what: str) -> None:
            assert operation.connection is not None
            operation.connection.execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})

        @tool(effect="read")
        def price(what: str) -> int:
            return len(what)

        def pay(state: Any) -> Any:
            state["bought"] = [charge("hat"), price("hat")]
            return self.shop.steps["send"]

        def send(state: Any) -> Any:
            book("hat")
            return done([*state["bought"], charge("coat")])

        return self.agent(charge, book, price, name="shop", pay=pay, send=send)

    def begin_anew(self, options: str = "") -> None:
        """Let another worker, with connections of its own, take over."""
        self.runtime.engine.dispose()
        self.runtime = Runtime(Settings(self.worker_url + options), InlineBell, slots=self.runtime.slots)
        AppState.of(self.app).use_runtime(self.runtime)

    def say(self, statements: str) -> None:
        """Say something to the database as its owner."""
        with self._owner.connect() as connection:
            connection.execute(text(statements.format(database=self.database, role=self.role)))

    def ask(self, statement: str) -> list[Any]:
        with self._owner.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def end_sessions(self) -> None:
        """End the worker's sessions, as a server does that becomes a standby."""
        self.say("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")

    def check_all_is_well(self, run_id: str) -> None:
        """Fail unless each effect of a run happened once, in one attempt a step, and nobody was asked."""
        with self._owner.connect() as connection:
            assert check_invariants(connection) == []
        assert self.ask(f"SELECT status, fence, crashes FROM agent_runs WHERE run_id = '{run_id}'") == [
            ("succeeded", 2, 0)
        ]
        operations = f"SELECT status, attempts FROM agent_operations WHERE run_id = '{run_id}'"
        assert self.ask(operations) == [("succeeded", 1)] * 4
        assert self.ask("SELECT question FROM agent_inbox") == []
        assert self.effects == ["hat", "coat"]
        assert self.ask("SELECT what FROM effects") == [("hat",)]
        self.effects.clear()
        self.say("TRUNCATE effects")

    def close(self) -> None:
        super().close()
        self.say("DROP OWNED BY {role}")
        self.say("DROP ROLE {role}")


@pytest.fixture
def here(postgres_database: Callable[[], str]) -> Iterator[Shop]:
    with closing(Shop(postgres_database())) as shop:
        yield shop


# -- prepared statements --------------------------------------------------------------------------------------------------


def at_checkout(engine: Engine, nth: int, do: Callable[[Any], None]) -> Callable[[], bool]:
    """Do something with the connection that the engine's pool gives out as its n-th from now on; tells whether it did."""
    numbers, met = count(), []

    def given_out(connection: Any, _record: object, _proxy: object) -> None:
        if next(numbers) == nth:
            met.append(nth)
            do(connection)

    event.listen(engine, "checkout", given_out)
    return lambda: bool(met)


LONGER = pytest.param("?prepare_threshold=0", id="the longer way", marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [pytest.param("", id="in one statement"), LONGER])
@pytest.mark.parametrize("words", ["DEALLOCATE ALL", "a migration", "another's statements"])
def test_prepared_statements_that_are_gone_at_any_moment_cost_no_outcome(here: Shop, words: str, options: str) -> None:
    sizes = count(20)

    def disturb(connection: Any) -> None:
        if words == "a migration":
            here.say(f"ALTER TABLE agent_runs ALTER COLUMN request TYPE varchar({next(sizes)})")
        elif words == "another's statements":  # where the next ones are to be prepared
            first = connection._prepared._prepared_idx
            for number in range(first, first + 3):
                connection.pgconn.exec_(f"PREPARE _pg3_{number} AS SELECT 1".encode())
        else:
            connection.pgconn.exec_(words.encode())  # past psycopg, as another client of a pooler would

    for nth in count():
        here.begin_anew(options)
        if options:
            here.runtime.folded = None
        here.run(here.shop, f"before-{nth}")
        here.check_all_is_well(f"before-{nth}")
        met = at_checkout(here.runtime.engine, nth, disturb)
        here.run(here.shop, f"run-{nth}")
        Sweeper(here.runtime).sweep()
        here.check_all_is_well(f"run-{nth}")
        if not met():
            break
    assert nth > 8  # a claim, an intent, an outcome and a commit each were met


def test_statements_are_not_prepared_any_more_where_they_were_forgotten(
    here: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    here.run(here.shop, "before")
    at_checkout(here.runtime.engine, 0, lambda connection: connection.pgconn.exec_(b"DEALLOCATE ALL"))
    here.run(here.shop)
    assert caplog.text.count("add prepare_threshold=None to agent_database_url") == 1
    with here.runtime.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0


def test_a_changed_table_is_no_reason_to_prepare_nothing_any_more(here: Shop, caplog: pytest.LogCaptureFixture) -> None:
    here.run(here.shop, "before")
    here.say("ALTER TABLE agent_runs ALTER COLUMN request TYPE varchar(33)")
    here.run(here.shop)
    assert caplog.text == ""
    with here.runtime.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() > 0


def test_two_clients_never_have_one_name_for_two_statements(here: Shop) -> None:
    """Behind a pooler of transactions one of them would carry out what the other one has prepared."""
    names = set[str]()
    for _ in range(2):
        here.begin_anew("?prepare_threshold=0")
        with here.runtime.engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            names |= set(connection.exec_driver_sql("SELECT name FROM pg_prepared_statements").scalars())
    assert len(names) >= 2
    assert not any(name.endswith("_0") for name in names)


def test_a_users_own_prepared_statement_that_is_missing_fails_his_body_once(here: Shop) -> None:
    tried: list[int] = []

    @tool(effect="transactional", bind=True)
    def book(operation: Operation) -> None:
        tried.append(1)
        assert operation.connection is not None
        operation.connection.exec_driver_sql("EXECUTE nowhere")

    agent = here.agent(book, name="other", pay=lambda _state: done(book()))
    assert here.run(agent).status is RunStatus.FAILED
    assert tried == [1]


# -- refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False], ids=["in one statement", "the longer way"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_outcome_that_is_refused_is_written_when_the_database_takes_it(
    here: Shop, refusal: str, folded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not folded:
        here.runtime.folded = None
    breaks, mends = REFUSALS[refusal]
    mended: list[Callable[[], bool]] = []

    def observe(point: Point) -> None:
        if str(point) == "after effect charge" and not mended:
            here.say(breaks)
            if refusal == "a standby":
                here.end_sessions()
            # Each try takes a connection; the first three are refused.
            mended.append(at_checkout(here.runtime.engine, 3, lambda _connection: here.say(mends)))

    here.runtime.boundary.observer = observe
    here.run(here.shop)
    assert mended[0]()
    here.check_all_is_well(RUN)
    assert caplog.text.count("refused to write the outcome of a call") == int(refusal in SAID)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_was_bought_is_recorded_when_the_database_takes_it(here: Shop, refusal: str) -> None:
    bought: list[str] = []

    @tool(effect="read")
    def answer_of_a_model(what: str) -> str:
        bought.append(what)
        return what.upper()

    agent = here.agent(answer_of_a_model, name="asks", ask=lambda _state: done(answer_of_a_model("hat")))
    breaks, mends = (words.replace("UPDATE", "INSERT") for words in REFUSALS[refusal])

    def observe(point: Point) -> None:
        if str(point) == "after effect answer_of_a_model":
            here.say(breaks)
            if refusal == "a standby":
                here.end_sessions()
            at_checkout(here.runtime.engine, 3, lambda _connection: here.say(mends))

    here.runtime.boundary.observer = observe
    assert here.run(agent).status is RunStatus.SUCCEEDED
    assert bought == ["hat"]
    assert here.ask("SELECT fence, crashes FROM agent_runs") == [(1, 0)]


@pytest.mark.parametrize("refused", ["a standby", "forgotten statements"])
def test_a_transactional_body_that_met_a_refusal_of_the_server_is_run_again_and_not_failed(
    here: Shop, refused: str
) -> None:
    """It was rolled back with its transaction."""
    breaks, mends = REFUSALS["a standby"]
    tries: list[str] = []

    def observe(point: Point) -> None:
        if str(point) == "before effect book":
            tries.append(refused)
        if str(point) != "after commit claim" or here.effects != ["hat"] or tries:
            return
        if refused == "a standby":
            here.say(breaks)
            here.end_sessions()
            at_checkout(here.runtime.engine, 3, lambda _connection: here.say(mends))
        else:
            at_checkout(here.runtime.engine, 0, lambda own: own.pgconn.exec_(b"DEALLOCATE ALL"))

    here.begin_anew("?prepare_threshold=0")
    here.run(here.shop, "before")
    here.check_all_is_well("before")
    here.runtime.boundary.observer = observe
    here.run(here.shop)
    assert len(tries) > 1
    here.check_all_is_well(RUN)


def test_an_outcome_that_is_refused_until_the_steps_time_limit_is_a_doubt_and_not_done_again(here: Shop) -> None:
    breaks, mends = REFUSALS["a trigger"]

    def observe(point: Point) -> None:
        if str(point) == "after effect charge":
            here.say(breaks)
            at_checkout(here.runtime.engine, 3, lambda _connection: here.runtime.clock.advance(3600))

    here.runtime.boundary.observer = observe
    here.run(here.shop)
    here.runtime.boundary.observer = None
    here.say(mends)
    sweeper = Sweeper(here.runtime)
    sweeper.sweep()  # its contact with the database begins
    for _ in range(3):
        here.runtime.clock.advance(120)
        sweeper.sweep()
        here.work(here.shop)
    assert here.effects == ["hat"]
    assert here.ask("SELECT status FROM agent_operations WHERE tool = 'charge'") == [("unknown",)]
    assert here.ask("SELECT question FROM agent_inbox") == [("unknown",)]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_intent_begins_no_body_and_the_run_goes_on_later(here: Shop, refusal: str) -> None:
    breaks, mends = (words.replace("UPDATE", "INSERT") for words in REFUSALS[refusal])
    run_id = here.shop.enqueue({}, run_id=RUN).run_id

    def observe(point: Point) -> None:
        if str(point) == "after commit claim" and not here.ask("SELECT 1 FROM agent_operations"):
            here.runtime.boundary.observer = None
            here.say(breaks)
            if refusal == "a standby":
                here.end_sessions()
            at_checkout(here.runtime.engine, 3, lambda _connection: here.say(mends))

    here.runtime.boundary.observer = observe
    here.work(here.shop)
    sweeper = Sweeper(here.runtime)
    sweeper.sweep()
    here.later(here.shop, 60)
    here.runtime.clock.advance(60)
    sweeper.sweep()
    here.work(here.shop)
    assert here.ask(f"SELECT status FROM agent_runs WHERE run_id = '{run_id}'") == [("succeeded",)]
    assert here.effects == ["hat", "coat"]
    assert here.ask("SELECT what FROM effects") == [("hat",)]


@pytest.mark.parametrize("refusal", ["a standby", "a right that was taken"])
def test_a_refusal_is_no_doubt(here: Shop, refusal: str) -> None:
    """The server rolls back what it refuses, so that nobody has to look whether it happened."""
    breaks, _ = (words.replace("agent_operations", "agent_runs") for words in REFUSALS[refusal])
    run_id = here.shop.enqueue({}, run_id=RUN).run_id
    here.say(breaks)
    here.end_sessions()
    before = here.ask("SELECT * FROM agent_runs")
    with pytest.raises(LedgerUnavailable, match=r"refused 'claim': .* Nothing was written: ") as said:
        AppState.of(here.app).coordinator.handle(here.shop, "pay", run_id, 1)
    assert not said.value.ambiguous
    assert here.ask("SELECT * FROM agent_runs") == before


@pytest.mark.parametrize(("state", "cure"), [("25006", "let"), ("42501", "make the role"), ("53100", "make room on")])
def test_a_commit_that_is_refused_is_no_doubt(here: Shop, state: str, cure: str) -> None:
    here.say(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE 'not now' USING ERRCODE = '{state}'; END $$;"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()"
    )
    engine = here.runtime.engine
    with pytest.raises(LedgerUnavailable, match=rf"refused 'step': not now\. Nothing was written: {cure} ") as said:
        Boundary().commit("step", engine, lambda own: own.execute(text("INSERT INTO effects VALUES ('hat')")))
    assert not said.value.ambiguous
    assert here.ask("SELECT * FROM effects") == []


def test_a_server_that_takes_writes_again_is_asked_by_a_new_connection(here: Shop) -> None:
    """The old ones would lead to the standby for as long as they live."""
    breaks, mends = REFUSALS["a standby"]
    here.say(breaks)
    here.end_sessions()
    with pytest.raises(LedgerUnavailable, match="target_session_attrs=read-write"):
        here.shop.enqueue({})
    here.say(mends)
    here.run(here.shop)
    here.check_all_is_well(RUN)


def test_a_caller_hears_that_the_database_refused_and_that_no_run_was_made(here: Shop) -> None:
    here.say("ALTER ROLE {role} SET default_transaction_read_only = on")
    here.begin_anew()
    with pytest.raises(
        LedgerUnavailable, match=r"refused to write: .*read-only.*No run was made: let .*default_transaction_rea"
    ):
        here.shop.enqueue({})
    here.say("ALTER ROLE {role} RESET default_transaction_read_only; REVOKE INSERT ON agent_runs FROM {role}")
    here.begin_anew()
    with pytest.raises(
        LedgerUnavailable, match=r"refused to write: permission denied .*No run was made: .*GRANT it SELECT"
    ):
        here.shop.enqueue({})
    assert here.counts()["agent_runs"] == 0


@pytest.mark.parametrize("refusal", REFUSALS)
def test_the_doorbell_of_a_step_is_answered_as_if_the_database_were_away(
    here: Shop, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    breaks, mends = (words.replace("agent_operations", "agent_runs") for words in REFUSALS[refusal])
    here.shop.enqueue({}, run_id=RUN)
    here.say(breaks)
    here.end_sessions()
    with pytest.raises(Ignore):
        here.app.tasks["shop.pay"].run(RUN, 1)
    assert caplog.records[-1].getMessage().startswith(f"doorbell of run {RUN}: ")
    assert len(caplog.records[-1].getMessage().splitlines()) == 1  # none of its parameters
    here.say(mends)
    here.work(here.shop)
    here.check_all_is_well(RUN)


@pytest.mark.parametrize("refusal", ["a standby", "a trigger"])
def test_the_doorbell_of_a_plain_task_is_answered_so_too(
    here: Shop, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    @here.app.task(base=AgentTask, tools=[], shared=False, name="mail")
    def mail() -> str:
        return "sent"

    breaks, mends = (words.replace("agent_operations", "agent_runs") for words in REFUSALS[refusal])
    call = mail.apply_async(task_id=RUN)
    here.say(breaks)
    here.end_sessions()
    trace = build_tracer(mail.name, mail, app=here.app)
    doorbell = {"id": call.id, "delivery_info": {RING_HEADER: 1}}
    trace(call.id, (call.id, 1), {}, doorbell)
    assert caplog.records[-1].getMessage().startswith(f"doorbell of run {RUN}: ")
    assert here.ask("SELECT status FROM agent_runs") == [("queued",)]
    here.say(mends)
    here.end_sessions()
    trace(call.id, (call.id, 1), {}, doorbell)
    assert here.ask("SELECT status FROM agent_runs") == [("succeeded",)]
