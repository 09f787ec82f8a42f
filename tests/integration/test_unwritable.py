"""Values that no ledger's database takes: refused where they are declared, and never the loop of a worker that seems to be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm.exc import DetachedInstanceError

from agent_tasks import Agent, Coalesce, NotKept, NotWritable, RunFailed, done, fail, tool
from agent_tasks.cleaning import clean_up
from agent_tasks.config import Settings
from agent_tasks.errors import ConfigurationError, UnguardedTool
from agent_tasks.outcomes import MAX_REASON
from agent_tasks.states import RunStatus
from agent_tasks.testing import check_invariants
from tests.one_process import OneProcess

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb

FOR_EVER = timedelta.max
KEYED: dict[str, Any] = {"effect": "keyed", "bind": True, "key_lifetime": timedelta(hours=24)}


@pytest.fixture
def here(database_url: str) -> Iterator[OneProcess]:
    with closing(OneProcess(database_url)) as made:
        yield made
        sound(made)


@pytest.fixture
def on_postgresql(postgres_database: Callable[[], str]) -> Iterator[OneProcess]:
    with closing(OneProcess(postgres_database())) as made:
        yield made
        sound(made)


def sound(here: OneProcess) -> None:
    with here.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


# -- at the declaration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "keyed", "bind": True, "key_lifetime": FOR_EVER},
        {"effect": "manual", "timeout": FOR_EVER},
        {"effect": "manual", "timeout": timedelta(seconds=1), "settle": FOR_EVER},
        {"effect": "probed", "bind": True, "timeout": timedelta(seconds=1), "visible_after": FOR_EVER},
    ],
    ids=["key_lifetime", "timeout", "settle", "visible_after"],
)
def test_a_duration_that_no_database_counts_is_refused_where_it_is_declared(options: dict[str, Any]) -> None:
    with pytest.raises(UnguardedTool, match="must be a hundred years at most, since no database counts further"):
        tool(**options)(lambda operation: None)


def test_the_longest_duration_that_is_taken_can_be_written(here: OneProcess) -> None:
    century = timedelta(days=36_500)

    @tool(effect="keyed", bind=True, key_lifetime=century, timeout=century, settle=century)
    def pay(operation: Any) -> str:
        return "paid"

    @tool(effect="transactional", timeout=century)
    def book() -> str:
        return "booked"

    agent = here.agent(pay, book, act=lambda _state: done([pay(), book()]))
    assert here.run(agent).get(timeout=0) == ["paid", "booked"]


def test_a_probe_without_an_end_is_refused() -> None:
    @tool(**{**KEYED, "name": "pay"})
    def pay(operation: Any) -> None: ...

    with pytest.raises(UnguardedTool, match="timeout= of the probe of tool 'pay' must be a hundred years at most"):
        pay.probe(timeout=FOR_EVER)(lambda operation: None)


@pytest.mark.parametrize("why", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_a_reason_that_no_database_holds_is_refused_where_it_is_declared(why: str) -> None:
    with pytest.raises(UnguardedTool, match="must be a text without NUL and whole surrogate pairs"):
        tool(effect="repeatable", why=why)(lambda: None)


@pytest.mark.parametrize("name", ["lease_seconds", "retry_backoff_max_seconds", "retention_days", "max_steps"])
def test_a_setting_that_no_database_counts_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"agent_{name} must be .* at most, got 1000"):
        Settings("sqlite:///a.db", **{name: 10**30})


def test_an_age_that_no_database_counts_is_refused(here: OneProcess) -> None:
    with pytest.raises(ConfigurationError, match=r"a hundred years at most.*; nothing was deleted"):
        clean_up(here.runtime, older_than=FOR_EVER, dry_run=False)


# -- where it was not seen before -----------------------------------------------------------------------------------------


def paying(body: Callable[[Any], Any] = lambda operation: "paid") -> tuple[Any, list[int]]:
    """Return a tool and what notes that its body ran."""
    ran: list[int] = []

    @tool(**{**KEYED, "name": "pay"})
    def pay(operation: Any) -> Any:
        ran.append(1)
        return body(operation)

    return pay, ran


def refuse(here: OneProcess, table: str, where: str, when: str) -> None:
    """Let PostgreSQL take some values for out of range."""
    with here.runtime.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'value is out of range' "
                "USING ERRCODE = '22003'; END $$ LANGUAGE plpgsql"
            )
        )
        connection.execute(
            text(
                f"CREATE TRIGGER refuse BEFORE {when} ON {table} FOR EACH ROW WHEN ({where}) EXECUTE FUNCTION refuse()"
            )
        )


def test_an_intent_whose_values_are_refused_fails_the_step_and_sends_nothing(here: OneProcess) -> None:
    pay, ran = paying()
    object.__setattr__(pay.guard, "key_lifetime", FOR_EVER)  # as an older release lets it pass
    run = here.run(here.agent(pay, act=lambda _state: done(pay())))
    assert run.status is RunStatus.FAILED
    with pytest.raises(Exception, match=r"refused a value at 'intent', and would again: .*\. Nothing was written"):
        run.get(timeout=0)
    assert ran == []


def test_a_step_may_go_on_after_an_intent_whose_values_are_refused(here: OneProcess) -> None:
    pay, _ = paying()
    object.__setattr__(pay.guard, "key_lifetime", FOR_EVER)

    def act(_state: Any) -> Any:
        try:
            return done(pay())
        except NotWritable:
            return done("not paid")

    assert here.run(here.agent(pay, act=act)).get(timeout=0) == "not paid"


def test_a_result_that_is_refused_is_asked_for_and_not_bought_again(on_postgresql: OneProcess) -> None:
    here = on_postgresql
    refuse(here, "agent_operations", "NEW.result IS NOT NULL", "UPDATE")
    pay, ran = paying()
    agent = here.agent(pay, act=lambda _state: done(pay()))
    run = here.run(agent)
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert "the result of pay could not be stored" in (run.waiting_for or "")
    assert [str(item.question) for item in run.inbox()] == ["result"]
    here.later(agent, 3600)
    assert ran == [1]


def test_a_checkpoint_that_is_refused_fails_the_run(on_postgresql: OneProcess) -> None:
    here = on_postgresql
    refuse(here, "agent_checkpoint_checkpoints", "NEW.seq > 0", "INSERT")
    run = here.run(here.agent(act=lambda _state: done("here")))
    assert run.status is RunStatus.FAILED
    with pytest.raises(Exception, match=r"NotWritable: .* refused a value at 'step'"):
        run.get(timeout=0)


def test_a_retry_that_cannot_be_written_fails_the_run(on_postgresql: OneProcess) -> None:
    here = on_postgresql
    refuse(here, "agent_runs", "NEW.waiting_for LIKE '%wherever%'", "UPDATE")

    class Busy(Exception):
        retry_after_seconds = 60

    def act(_state: Any) -> Any:
        raise Busy("wherever")

    agent = here.agent()
    agent.step(act, name="act", start=True, max_retries=3)
    run = here.run(agent)
    assert run.status is RunStatus.FAILED
    with pytest.raises(Exception, match="refused a value at 'retry'"):
        run.get(timeout=0)


def test_a_suspension_that_is_refused_is_a_wait_that_says_so(on_postgresql: OneProcess) -> None:
    here = on_postgresql
    refuse(here, "agent_inbox", "NEW.question = 'unknown'", "INSERT")

    @tool(effect="manual", timeout=timedelta(seconds=1))
    def call_kim() -> None:
        raise ConnectionError("reset")

    agent = here.agent(call_kim, act=lambda _state: done(call_kim()))
    run = here.run(agent)
    here.later(agent, 60)
    assert run.status is RunStatus.WAITING
    assert "what it stopped at could not be written" in (run.waiting_for or "")


def test_progress_that_is_refused_is_told_to_the_body(on_postgresql: OneProcess) -> None:
    here, said = on_postgresql, []
    refuse(here, "agent_operations", "NEW.progress IS NOT NULL", "UPDATE")

    def body(operation: Any) -> str:
        try:
            operation.save_progress(1)
        except NotKept as error:
            said.append(str(error))
        return "paid"

    pay, _ = paying(body)
    assert here.run(here.agent(pay, act=lambda _state: done(pay()))).get(timeout=0) == "paid"
    assert "was not saved, so what was saved before stays" in said[0]


class Text(str):
    """A text of somebody's own class, which has no stored form."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("no file b\udcff.txt", r"no file b\udcff.txt"),
        ("no\0thing", r"no\x00thing"),
        (Text("no"), "no"),
        ("n" * 10_000_000, "n" * MAX_REASON),
    ],
    ids=["surrogate", "nul", "class", "long"],
)
def test_a_reason_that_no_database_holds_fails_the_run_all_the_same(here: OneProcess, reason: str, kept: str) -> None:
    def send(_state: Any) -> Any:
        here.requests.append("send")
        return fail(reason)

    run = here.run(here.agent(send=send))
    assert here.requests == ["send"]
    with pytest.raises(RunFailed) as failed:
        run.get(timeout=0)
    assert str(failed.value) == f"run 'run-1' failed: {kept}"


# -- what does something else when it is encoded ------------------------------------------------------------------------------


class Detached:
    """As an object of an ORM is whose session has ended."""

    def __repr__(self) -> str:
        raise DetachedInstanceError("not bound to a Session")


class _Unhashable(type):
    def __hash__(cls) -> int:
        raise DetachedInstanceError("its class is not mapped")


class Unmapped(metaclass=_Unhashable):
    """One that no walk over a value can even ask for its kind."""


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "in a set": (lambda: {Detached()}, r"a Detached has no stored form"),
    "as a key": (lambda: {Detached(): 1}, r"a Detached has no stored form"),
    "of a strange class": (Unmapped, r"looking at it raised DetachedInstanceError: its class is not mapped"),
}


@pytest.mark.parametrize(
    "coalesce", [None, True, Coalesce(checkpoints="boundaries")], ids=["none", "all", "boundaries"]
)
@pytest.mark.parametrize(("value", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_state_that_raises_when_it_is_stored_fails_its_step(
    here: OneProcess, value: Callable[[], Any], said: str, coalesce: Any
) -> None:
    agent = Agent("hostile", app=here.app, coalesce=coalesce)

    @agent.step(start=True)
    def look(state: Any) -> Any:
        here.requests.append("look")
        state["found"] = [value()]
        return second

    @agent.step
    def second(_state: Any) -> Any:
        return done("never")

    run = here.run(agent)
    with pytest.raises(RunFailed, match=f"the state after step 'look' cannot be stored: {said}"):
        run.get(timeout=0)
    assert here.requests == ["look"]


@pytest.mark.parametrize(("value", "said"), HOSTILE.values(), ids=HOSTILE)
def test_an_output_that_raises_when_it_is_stored_fails_its_run(
    here: OneProcess, value: Callable[[], Any], said: str
) -> None:
    run = here.run(here.agent(send=lambda _state: done([value()])))
    with pytest.raises(RunFailed, match=f"the output of step 'send' cannot be stored: {said}"):
        run.get(timeout=0)


@pytest.mark.parametrize(("value", "_said"), HOSTILE.values(), ids=HOSTILE)
def test_a_transactional_result_that_raises_when_it_is_stored_is_rolled_back_and_known(
    here: OneProcess, value: Callable[[], Any], _said: str
) -> None:
    @tool(effect="transactional", bind=True)
    def note(_operation: Any) -> Any:
        here.requests.append("note")
        return value()

    run = here.run(here.agent(note, send=lambda _state: done(note())))
    assert (run.status, here.requests) == (RunStatus.FAILED, ["note"])
