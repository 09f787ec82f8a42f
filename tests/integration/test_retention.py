"""Old runs are deleted as a whole, and only when nobody needs them any more; crashes and rivals change nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text, update
from sqlalchemy.exc import OperationalError

from agent_tasks import Agent, RunHandle, cleanup, done, fail, tool
from agent_tasks.boundary import Boundary, Point
from agent_tasks.cleaning import BATCH, Batch, Cleaned, Kept, NotDeleted, clean_some, clean_up
from agent_tasks.cli import agent as cli
from agent_tasks.config import Settings
from agent_tasks.doorbell import InlineBell, Ring
from agent_tasks.errors import ConfigurationError, LeaseLost, LedgerUnavailable, RunNotFound
from agent_tasks.inline import answer
from agent_tasks.retention import Deletion, Place
from agent_tasks.runtime import Runtime
from agent_tasks.states import OperationStatus, Question, RunStatus
from agent_tasks.suspensions import Asked
from agent_tasks.sweeper import Sweeper
from agent_tasks.testing import check_invariants
from checkpoint.sql import SqlStore
from tests.duel import Duel, duel, in_thread
from tests.rows import Rows

DAY = 86400.0
KEY_LIFETIME = timedelta(days=40)

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        for runtime in (both.runtime, both.rival):
            runtime.settings = replace(runtime.settings, retention_days=30)
        yield both


def shop(here: Duel) -> Agent:
    @tool(effect="manual", timeout=timedelta(seconds=10))
    def charge(cents: int) -> str:
        here.requests.append(cents)
        return "charged"

    def pay(state: Any) -> Any:
        state.messages.append({"role": "user", "content": "the same words in every run"})
        return done(charge(100)) if state.get("ok", True) else fail("as wished")

    return here.agent(charge, pay=pay)


def finished(here: Duel, *run_ids: str, days_ago: float = 31) -> Agent:
    order = shop(here)
    for run_id in run_ids:
        here.run(order, run_id)
    here.runtime.clock.advance(days_ago * DAY)
    return order


def clean(runtime: Runtime) -> int:
    return clean_some(runtime).deleted


def test_an_old_run_goes_with_everything_of_it_and_others_keep_theirs(here: Duel) -> None:
    order = finished(here, "old")
    before = here.counts()
    here.run(order, "new")
    assert all(here.counts()[name] > 0 for name in ("agent_runs", "agent_operations", "agent_checkpoint_messages"))

    assert clean(here.runtime) == 1

    assert here.counts() == before  # as many as one run has: all of the old one went, and nothing of the new one
    state = order.run("new").state()
    assert [message["content"] for message in state.messages] == ["the same words in every run"]
    with pytest.raises(RunNotFound):
        _ = order.run("old").status
    here.sound()


def test_nothing_is_deleted_unless_somebody_says_when(here: Duel) -> None:
    finished(here, "old", days_ago=10_000)
    here.runtime.settings = replace(here.runtime.settings, retention_days=None)
    assert (clean(here.runtime), Sweeper(here.runtime).sweep().deleted) == (0, 0)
    with pytest.raises(ConfigurationError, match="--older-than DAYS"):
        cleanup(here.app)
    with pytest.raises(ConfigurationError, match="must be a timedelta of 0 or more"):
        cleanup(here.app, older_than=timedelta(days=-1))
    assert cleanup(here.app, older_than=timedelta(days=1), dry_run=True) == Cleaned(1)
    assert here.counts()["agent_runs"] == 1
    assert cleanup(here.app, older_than=timedelta(days=1)) == Cleaned(1)
    assert here.counts()["agent_runs"] == 0


def test_runs_that_are_kept_are_counted_with_the_first_reason_of_each(here: Duel) -> None:
    finished(here, "honoured", "rung", "free")
    runs, operations = here.runtime.tables.runs, here.runtime.tables.operations
    write(here, update(operations).where(operations.c.run_id != "free").values(key_until=2**60))
    write(here, update(runs).where(runs.c.run_id == "rung").values(due_at=2**60))
    kept = (Kept(1, "Celery has still to be told the result"), Kept(1, "a vendor honours a key of theirs"))
    assert cleanup(here.app, older_than=timedelta(0), dry_run=True) == Cleaned(1, kept=kept)
    shown = run(here, "cleanup", "--older-than", "0", "--dry-run").stdout
    assert shown.splitlines() == ["1 runs would be deleted", *(f"1 that ended are kept: {runs.why}" for runs in kept)]
    assert cleanup(here.app, older_than=timedelta(0)) == Cleaned(1, kept=kept)


def write(here: Duel, statement: Any) -> None:
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(statement)


def set_operation(here: Duel, **values: Any) -> None:
    write(here, update(here.runtime.tables.operations).values(**values))


def ask(here: Duel, question: Question) -> None:
    with here.runtime.engine.connect() as connection, connection.begin():
        here.runtime.inbox.open(connection, "run-1", Asked(question, "run-1"))


#: What keeps a run that is old enough, and how that is brought about.
REASONS: dict[str, Callable[[Duel], None]] = {
    "an operation in doubt": lambda here: set_operation(here, status=OperationStatus.UNKNOWN),
    "an operation under way": lambda here: set_operation(here, status=OperationStatus.EXECUTING),
    "a key that the vendor honours": lambda here: set_operation(here, key_until=2**62),
    "an open question": lambda here: ask(here, Question.ORPHAN),
    "a question that holds nothing": lambda here: ask(here, Question.DOUBLED),
    "a result that Celery has to be told": lambda here: here.set_run(due_at=1),
    "a run that goes on": lambda here: here.set_run(status=RunStatus.QUEUED),
    "a run that never ended": lambda here: here.set_run(finished_at=None),
    "a dedupe window": lambda here: setattr(
        here.runtime, "settings", replace(here.runtime.settings, dedupe_days=60, retention_days=30)
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_run_that_somebody_needs_is_kept(here: Duel, reason: str) -> None:
    finished(here, "run-1")
    REASONS[reason](here)
    assert clean(here.runtime) == 0
    with here.runtime.engine.connect() as connection, connection.begin():  # nor by somebody who found it before
        seconds = (60 if reason == "a dedupe window" else 30) * DAY
        assert here.runtime.retention.delete(connection, "run-1", seconds) is Deletion.NOT_DUE
    assert here.counts()["agent_runs"] == 1


def test_a_key_lives_from_its_first_intent(here: Duel) -> None:
    sent: list[int] = []

    @tool(effect="keyed", key_lifetime=KEY_LIFETIME, bind=False)
    def create() -> str:
        sent.append(1)
        if len(sent) == 1:
            raise TimeoutError
        return "made"

    order = here.agent(create, pay=lambda _state: done(create()))
    here.run(order)
    first = here.operation().row
    here.drive(order)
    assert (len(sent), here.operation().row["key_until"]) == (2, first["key_until"])
    life = timedelta(microseconds=first["key_until"] - first["first_started_at"])
    assert timedelta(0) <= life - KEY_LIFETIME < timedelta(seconds=1)  # one statement reads the clock twice

    here.runtime.clock.advance(31 * DAY)
    assert clean(here.runtime) == 0
    here.runtime.clock.advance(10 * DAY)
    assert clean(here.runtime) == 1


def test_the_dedupe_key_and_the_id_are_free_again(here: Duel) -> None:
    order = shop(here)
    order.enqueue({}, run_id="run-1", dedupe_key="k")
    here.work(order)
    here.runtime.clock.advance(31 * DAY)
    assert order.enqueue({}, run_id="run-2", dedupe_key="k").run_id == "run-1"
    clean(here.runtime)
    assert order.enqueue({}, run_id="run-1", dedupe_key="k").run_id == "run-1"
    here.work(order)
    assert (order.run("run-1").status, here.requests) == (RunStatus.SUCCEEDED, [100, 100])
    here.sound()


def test_a_late_doorbell_and_a_zombie_of_a_deleted_run_change_nothing(here: Duel) -> None:
    said: list[BaseException] = []

    @tool(effect="manual", timeout=timedelta(seconds=10), settle=timedelta(days=1))
    def charge(cents: int) -> str:
        here.requests.append(cents)
        if len(here.requests) == 1:
            in_thread(gone)
        return "charged"

    def gone() -> None:
        here.set_run(status=RunStatus.FAILED, due_at=None, finished_at=1, lease_token=None, lease_owner=None)
        set_operation(here, status=OperationStatus.FAILED)
        assert clean(here.rival) == 1

    def pay(_state: Any) -> Any:
        try:
            charge(100)
        except LeaseLost as error:
            said.append(error)
            raise
        return done()

    order = here.agent(charge, pay=pay)
    run = order.enqueue({}, run_id="run-1")
    here.work(order)
    answer(here.runtime, order, Ring("run-1", 1, "order", "pay", "inline"))
    assert (len(said), here.requests) == (1, [100])
    assert set(here.counts().values()) == {0}
    with pytest.raises(RunNotFound):
        run.get(timeout=0)


# -- crashes and rivals -----------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is dead."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_at_any_boundary_of_a_cleanup_leaves_whole_runs(here: Duel, nth: int, moment: str) -> None:
    finished(here, "a", "b", "c")
    crossed: list[Point] = []

    def observe(point: Point) -> None:
        if point == Point("commit", "cleanup", moment):
            crossed.append(point)
            if len(crossed) == nth:
                raise Crash

    dying = Runtime(here.runtime.settings, InlineBell, boundary=Boundary(observe), clock=here.runtime.clock)
    with pytest.raises(Crash):
        clean(dying)
    dying.engine.dispose()

    left = 3 - (nth if moment == "after" else nth - 1)
    counts = here.counts()
    assert (counts["agent_runs"], counts["agent_operations"], counts["agent_checkpoint_heads"]) == (left, left, left)
    here.sound()
    assert clean(here.rival) == left
    assert set(here.counts().values()) == {0}


def test_sweepers_that_clean_at_once_delete_each_run_once(here: Duel) -> None:
    rows, count = Rows(here), 40
    for number in range(count):
        rows.queue(f"run-{number}")
    write(here, update(here.runtime.tables.runs).values(status=RunStatus.FAILED, due_at=None, finished_at=1))
    deleted: list[int] = []
    ready = threading.Barrier(2)

    def work(runtime: Runtime) -> None:
        ready.wait(30)
        deleted.append(clean(runtime))

    threads = [threading.Thread(target=work, args=(runtime,)) for runtime in (here.runtime, here.rival)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(deleted) + clean(here.runtime) == count
    assert set(here.counts().values()) == {0}


def test_a_sweeper_deletes_in_batches_and_rests_when_there_are_no_more(here: Duel) -> None:
    rows = Rows(here)
    for number in range(3):
        rows.queue(f"run-{number}")
    write(here, update(here.runtime.tables.runs).values(status=RunStatus.FAILED, due_at=None, finished_at=1))
    sweeper = Sweeper(here.runtime)
    assert sweeper.sweep().deleted == 3
    rows.queue("late")
    write(here, update(here.runtime.tables.runs).values(status=RunStatus.FAILED, due_at=None, finished_at=1))
    assert sweeper.sweep().deleted == 0
    here.runtime.clock.advance(301)
    assert sweeper.sweep().deleted == 1


def test_a_full_batch_goes_on_at_the_next_sweep(tmp_path: Any) -> None:
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as here:
        here.runtime.settings = replace(here.runtime.settings, retention_days=30)
        rows = Rows(here)
        for number in range(BATCH + 1):
            rows.queue(f"run-{number}")
        write(here, update(here.runtime.tables.runs).values(status=RunStatus.FAILED, due_at=None, finished_at=1))
        sweeper = Sweeper(here.runtime)
        assert [sweeper.sweep().deleted for _ in range(3)] == [BATCH, 1, 0]


def test_a_run_that_cannot_be_deleted_does_not_keep_the_others(
    here: Duel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finished(here, "a", "b", "c")
    delete = here.runtime.store.delete

    def refuse(run_id: str, connection: Any) -> None:
        delete(run_id, connection=connection)
        if run_id == "b":
            connection.execute(text("INSERT INTO agent_runs (run_id) VALUES ('b')"))  # against every constraint

    monkeypatch.setattr(here.runtime.store, "delete", refuse)
    assert clean(here.runtime) == 2
    assert here.counts()["agent_operations"] == 1
    assert "run b was not deleted" in caplog.text


def ended(here: Duel, *run_ids: str) -> None:
    """Write runs that ended long ago, all of them at once."""
    rows = Rows(here)
    for run_id in run_ids:
        rows.queue(run_id)
    write(here, update(here.runtime.tables.runs).values(status=RunStatus.FAILED, due_at=None, finished_at=1))


def refuse(here: Duel, monkeypatch: pytest.MonkeyPatch, run_ids: list[str], error: Exception) -> None:
    """Let the deletion of runs fail at their checkpoints."""
    delete = here.runtime.store.delete

    def refused(run_id: str, connection: Any) -> None:
        delete(run_id, connection=connection)
        if run_id in run_ids:
            raise error

    monkeypatch.setattr(here.runtime.store, "delete", refused)


BAD, GOOD = [f"a-{number:03}" for number in range(BATCH)], ["b", "c", "d"]


@pytest.fixture
def one(tmp_path: Any) -> Iterator[Duel]:
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as both:
        both.runtime.settings = replace(both.runtime.settings, retention_days=30)
        ended(both, *GOOD, *BAD)
        yield both


def test_a_whole_batch_that_cannot_be_deleted_does_not_keep_those_behind_it(
    one: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(one, monkeypatch, BAD, ValueError("no such codec"))
    cleaned = clean_up(one.runtime, older_than=None, dry_run=False)
    assert cleaned == Cleaned(3, tuple(NotDeleted(run_id, "ValueError: no such codec") for run_id in BAD))
    assert one.counts()["agent_runs"] == len(BAD)
    assert clean_up(one.runtime, older_than=None, dry_run=False).deleted == 0  # tried again, and comes to an end


def test_a_sweeper_goes_on_behind_a_batch_that_it_cannot_delete_and_comes_back_to_it(
    one: Duel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = list(BAD)
    refuse(one, monkeypatch, bad, ValueError("no such codec"))
    sweeper = Sweeper(one.runtime)
    assert [sweeper.sweep().deleted for _ in range(3)] == [0, 3, 0]
    bad.clear()  # somebody mended it
    one.runtime.clock.advance(301)
    assert [sweeper.sweep().deleted for _ in range(2)] == [BATCH, 0]


def test_a_run_whose_locks_cannot_be_had_keeps_no_other(one: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(one, monkeypatch, ["a-007", "c"], OperationalError("DELETE", {}, Exception("lock timeout")))
    cleaned = clean_up(one.runtime, older_than=None, dry_run=False)
    assert (cleaned.deleted, [run.run_id for run in cleaned.left]) == (len(BAD + GOOD) - 2, ["a-007", "c"])
    assert "lock timeout" in cleaned.left[0].why


def test_a_cleanup_ends_where_the_database_does_not_answer_any_more(one: Duel) -> None:
    reads: list[Point] = []

    def observe(point: Point) -> None:
        reads.append(point)
        raise OperationalError("COMMIT", {}, ConnectionError("gone"))

    one.runtime.boundary.observer = observe
    one.runtime.engine.dispose()
    find = one.runtime.retention.find

    def gone(connection: Any, **asked: Any) -> Any:
        if reads:
            raise OperationalError("SELECT", {}, ConnectionError("gone"))
        return find(connection, **asked)

    one.runtime.retention.find = gone  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable):
        clean_up(one.runtime, older_than=None, dry_run=False)
    assert len(reads) == 1  # not once for each run of the batch


def test_a_run_whose_row_is_held_is_left_and_named(postgres_database: Callable[[], str]) -> None:
    with duel(postgres_database()) as here:
        here.runtime.settings = replace(here.runtime.settings, retention_days=30)
        ended(here, "a", "b", "c")
        with here.rival.engine.connect() as holder, holder.begin():
            here.rival.runs.find(holder, "b", lock=True)
            cleaned = clean_up(here.runtime, older_than=None, dry_run=False)
        assert cleaned == Cleaned(2, (NotDeleted("b", "somebody holds its row"),))
        assert clean_up(here.runtime, older_than=None, dry_run=False) == Cleaned(1)


@pytest.mark.parametrize("moment", ["while the others are deleted", "after all others"])
def test_a_run_that_another_cleanup_deletes_is_not_left(
    postgres_database: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moment: str,
) -> None:
    with duel(postgres_database()) as here, here.rival.engine.connect() as other:
        here.runtime.settings = replace(here.runtime.settings, retention_days=30)
        ended(here, "a", "b", "c")
        deleting = other.begin()
        assert here.rival.retention.delete(other, "b", 30 * DAY) is Deletion.DONE
        commits, pauses = [], []

        def observe(point: Point) -> None:
            commits.append(point)
            if moment == "while the others are deleted" and commits.count(Point("commit", "cleanup", "after")) == 3:
                monkeypatch.setattr(here.runtime.boundary, "observer", None)
                deleting.commit()

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if moment == "after all others" and len(pauses) == 2:  # at the first of them it was under way
                deleting.commit()

        here.runtime.boundary.observer = observe
        monkeypatch.setattr("agent_tasks.cleaning.time.sleep", pause)
        assert clean_some(here.runtime) == Batch(2)
        assert not deleting.is_active
        assert "was not deleted" not in caplog.text
        assert set(here.counts().values()) == {0}


def test_a_run_whose_holder_lets_go_before_the_end_of_a_cleanup_is_deleted(
    postgres_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with duel(postgres_database()) as here, here.rival.engine.connect() as holder:
        here.runtime.settings = replace(here.runtime.settings, retention_days=30)
        ended(here, "a", "b", "c")
        held = holder.begin()
        here.rival.runs.find(holder, "b", lock=True)
        monkeypatch.setattr("agent_tasks.cleaning.time.sleep", lambda _: held.is_active and held.rollback())
        assert clean_up(here.runtime, older_than=None, dry_run=False) == Cleaned(3)


def test_a_held_run_that_the_ledger_fails_on_when_it_is_looked_at_again_is_named_with_what_failed(
    postgres_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with duel(postgres_database()) as here, here.rival.engine.connect() as holder, holder.begin():
        here.runtime.settings = replace(here.runtime.settings, retention_days=30)
        ended(here, "a", "b", "c")
        for run_id in ("a", "c"):
            here.rival.runs.find(holder, run_id, lock=True)
        asked: list[str] = []
        delete = here.runtime.retention.delete

        def fail_later(connection: Any, run_id: str, older_than_seconds: float) -> Deletion:
            asked.append(run_id)
            if len(asked) > 3:
                raise OperationalError("SELECT", {}, Exception("lock timeout"))
            return delete(connection, run_id, older_than_seconds)

        monkeypatch.setattr(here.runtime.retention, "delete", fail_later)
        monkeypatch.setattr("agent_tasks.cleaning.time.sleep", lambda _: None)
        batch = clean_some(here.runtime)
        assert (batch.deleted, batch.last, set(asked[3:])) == (1, None, {"a"})
        assert [(left.run_id, "lock timeout" in left.why) for left in batch.left] == [("a", True), ("c", False)]


def test_pages_of_a_cleanup_meet_each_run_once(here: Duel) -> None:
    ended(here, "b", "a", "d", "c", "e")
    for run_id, finished_at in (("a", 3), ("d", 2)):
        Rows(here).write(run_id, finished_at=finished_at)
    met, last = [], None
    while True:
        with here.runtime.engine.connect() as connection:
            page = here.runtime.retention.find(connection, DAY, 2, last)
        if not page:
            break
        met, last = met + [place.run_id for place in page], page[-1]
    assert met == ["b", "c", "e", "d", "a"]


def test_old_runs_are_found_by_an_index(postgres_database: Callable[[], str]) -> None:
    with duel(postgres_database()) as here:
        retention, engine = here.runtime.retention, here.runtime.engine
        asked: list[Any] = []
        with engine.connect() as connection:
            connection.execute = lambda query: asked.append(query) or []  # type: ignore[method-assign,func-returns-value]
            retention.find(connection, DAY, BATCH, Place(1, "run-1"))
        with engine.connect() as connection, connection.begin():
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            sql = asked[0].compile(engine, compile_kwargs={"literal_binds": True})
            plan = "\n".join(str(row[0]) for row in connection.execute(text(f"EXPLAIN {sql}")))
        assert "agent_runs_finished" in plan, plan
        assert "agent_operations_run" in plan, plan


# -- settings and the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["retention_days", "dedupe_days"])
@pytest.mark.parametrize("value", [0, -1, True, "30", float("nan")])
def test_a_retention_that_is_no_number_above_0_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"agent_{name} must be a number above 0"):
        Settings("sqlite://", **{name: value})


def run(here: Duel, *arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments, "--url", here.url], prog_name="agent-tasks")


def test_the_command_says_how_many_and_deletes_only_when_told_to(here: Duel) -> None:
    order = shop(here)
    here.run(order, "old")
    write(here, update(here.runtime.tables.runs).values(finished_at=1))
    here.run(order, "new")

    assert run(here, "cleanup").exit_code == 2
    looked = run(here, "cleanup", "--older-than", "30", "--dry-run")
    assert (looked.exit_code, looked.stdout) == (0, "1 runs would be deleted\n")
    unsaid = run(here, "cleanup", "--older-than", "30")
    assert unsaid.exit_code == 2
    assert "1 runs would be deleted for good; say --yes" in unsaid.stderr
    assert here.counts()["agent_runs"] == 2
    told = run(here, "cleanup", "--older-than", "30", "--yes", "--json")
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"version": 1, "deleted": 1, "left": [], "kept": []})
    assert run(here, "cleanup", "--older-than", "30").stdout == "0 runs were deleted\n"
    assert RunHandle(here.runtime, "new").status is RunStatus.SUCCEEDED
    with here.runtime.engine.connect() as connection:
        assert check_invariants(connection) == []


def test_the_command_names_what_it_could_not_delete(one: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = SqlStore.delete

    def refused(self: SqlStore, run_id: str, connection: Any = None) -> Any:
        if run_id in BAD:
            raise ValueError("no such codec")
        return delete(self, run_id, connection=connection)

    monkeypatch.setattr(SqlStore, "delete", refused)
    told = run(one, "cleanup", "--older-than", "30", "--yes")
    assert (told.exit_code, told.stdout) == (1, "3 runs were deleted\n")
    assert told.stderr.splitlines()[:2] == [
        "100 runs could not be deleted; the next cleanup tries them again:",
        "  a-000: ValueError: no such codec",
    ]
    assert told.stderr.splitlines()[-1] == "  … and 80 more; --json names all of them"
    asked = run(one, "cleanup", "--older-than", "30", "--yes", "--json")
    assert asked.exit_code == 1
    assert [left["run_id"] for left in json.loads(asked.stdout)["left"]] == BAD
