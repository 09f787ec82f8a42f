"""The invariants hold on ledgers that the engine wrote, and each check sees its own kind of damage and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, delete, update

from agent_tasks import current_run, done, fail, tool
from agent_tasks.database import open_engine
from agent_tasks.identity import operation_id
from agent_tasks.schema import tables
from agent_tasks.testing import INVARIANTS, Violation, check_invariants
from agent_tasks.testing.invariants import assert_invariants
from checkpoint.tables import build_tables
from tests import questions
from tests.one_process import OneProcess

SECONDS = timedelta(seconds=10)


def work(here: OneProcess) -> None:
    """Leave runs that were bought, failed, cancelled, resumed, parked and one that nobody took yet."""
    questions.unknown(here, run_id="parked", agent="mail")

    @tool(effect="manual", timeout=SECONDS)
    def charge(cents: int) -> str:
        return f"charged {cents}"

    @tool(effect="read")
    def price(item: str) -> int:
        return len(item)

    @tool(effect="manual", timeout=SECONDS, key=lambda order: f"order-{order}")
    def ship(order: int) -> None: ...

    def pay(state: Any) -> Any:
        state["paid"] = charge(price("tea"))
        return buyer.steps["send"]

    def send(state: Any) -> Any:
        ship(7)
        return fail("sold out") if state["sold_out"] and current_run.line == 0 else done(state["paid"])

    buyer = here.agent(charge, price, ship, name="buyer", pay=pay, send=send)
    here.run(buyer, "bought", sold_out=False)
    here.run(buyer, "failed", sold_out=True)
    buyer.enqueue({}, run_id="cancelled").cancel(who="kim", why="sold out")
    here.run(buyer, "resumed", sold_out=True).resume(from_seq=1, who="kim", why="there is more")
    here.work(buyer)
    buyer.enqueue({}, run_id="queued")


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file that the engine wrote; each test breaks a copy of it."""
    path = tmp_path_factory.mktemp("worked") / "agent.db"
    with closing(OneProcess(f"sqlite:///{path}")) as here:
        work(here)
    return path


@pytest.fixture
def ledger(worked: Path, tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(open_engine(f"sqlite:///{shutil.copy(worked, tmp_path)}"))) as ledger:
        yield ledger


class Ledger:
    """The tables, as somebody who writes to them by hand sees them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tables = tables()
        self.checkpoints = build_tables(MetaData(), "agent_checkpoint_").checkpoints

    def close(self) -> None:
        self.engine.dispose()

    def violations(self) -> list[Violation]:
        with self.engine.connect() as connection:
            return check_invariants(connection)

    def run(self, run_id: str, **values: Any) -> None:
        self._execute(update(self.tables.runs).where(self.tables.runs.c.run_id == run_id).values(**values))

    def operation(self, run_id: str, tool: str, **values: Any) -> None:
        c = self.tables.operations.c
        self._execute(update(self.tables.operations).where(c.run_id == run_id, c.tool == tool).values(**values))

    def question(self, **values: Any) -> None:
        self._execute(update(self.tables.inbox).values(**values))

    def lose_checkpoint(self, run_id: str, seq: int) -> None:
        c = self.checkpoints.c
        self._execute(delete(self.checkpoints).where(c.run_id == run_id, c.seq == seq))

    def _execute(self, statement: Any) -> None:
        with self.engine.connect() as connection, connection.begin():
            assert connection.execute(statement).rowcount == 1


#: Breaks a ledger by hand.
Break = Callable[[Ledger], object]


LEASE = {"lease_token": "token", "lease_owner": "a worker", "fence": 1, "attempts": 1}

# invariant, what is broken, how
DAMAGE: list[tuple[str, str, Break]] = [
    ("I2", "a run with a lease that does not run", lambda ledger: ledger.run("queued", lease_token="token")),
    *(
        (
            "I2",
            f"a run that runs without its {part}",
            lambda ledger, part=part, nothing=nothing: ledger.run(
                "queued", **{**LEASE, "status": "running", part: nothing}
            ),
        )
        for part, nothing in (("lease_token", None), ("lease_owner", None), ("fence", 0), ("attempts", 0))
    ),
    ("I2", "a write with a fence that its run never had", lambda ledger: ledger.operation("bought", "charge", fence=9)),
    ("I4", "a call that stands elsewhere", lambda ledger: ledger.operation("bought", "charge", ordinal=1)),
    ("I4", "a call of another step", lambda ledger: ledger.operation("bought", "price", seq=2)),
    ("I4", "a call with another key", lambda ledger: ledger.operation("bought", "ship", call_key="order-8")),
    ("I4", "a call inside another", lambda ledger: ledger.operation("bought", "charge", parent_operation="op_1")),
    (
        "I4",
        "an idempotency key of its own",
        lambda ledger: ledger.operation("bought", "charge", idempotency_key="op_1"),
    ),
    ("I5", "a success without a result", lambda ledger: ledger.operation("bought", "charge", result=None)),
    ("I5", "a success that never began", lambda ledger: ledger.operation("bought", "charge", attempts=0)),
    ("I5", "a success at no time", lambda ledger: ledger.operation("bought", "charge", finished_at=None)),
    ("I5", "a success under no fence", lambda ledger: ledger.operation("bought", "charge", ended=None)),
    ("I5", "a failure without an error", lambda ledger: ledger.operation("failed", "ship", status="failed")),
    ("I9", "a queued run that nobody rings for", lambda ledger: ledger.run("queued", due_at=None)),
    ("I9", "a waiting run without an end", lambda ledger: ledger.run("queued", status="waiting", due_at=None)),
    (
        "I9",
        "a running run whose lease never ends",
        lambda ledger: ledger.run("queued", **LEASE, status="running", due_at=None),
    ),
    ("I9", "a parked run without a question", lambda ledger: ledger.question(closed_at=1)),
    ("I9", "a parked run about a doubled effect only", lambda ledger: ledger.question(question="doubled")),
    ("I9", "a parked run that the sweeper wakes", lambda ledger: ledger.run("parked", due_at=1)),
    ("I9", "a finished run that the sweeper wakes", lambda ledger: ledger.run("bought", due_at=1)),
    ("I9", "a finished run with a next step", lambda ledger: ledger.run("bought", next_step="pay")),
    ("I9", "a run that finished at no time", lambda ledger: ledger.run("failed", finished_at=None)),
    ("I9", "a cancelled run that still asks a person", lambda ledger: ledger.question(run_id="cancelled")),
    ("I12", "a cancel that nobody asked for", lambda ledger: ledger.run("queued", request="cancel")),
    ("I12", "a position without its checkpoint", lambda ledger: ledger.lose_checkpoint("bought", 2)),
    ("I12", "a history with a gap", lambda ledger: ledger.lose_checkpoint("bought", 1)),
    ("I12", "a history without its input", lambda ledger: ledger.lose_checkpoint("bought", 0)),
    ("I12", "a run ahead of its history", lambda ledger: ledger.run("queued", seq=1)),
    (
        "I12",
        "an answer that nobody gave",
        lambda ledger: ledger.question(reply="happened", replied_why="I saw it"),
    ),
    ("I12", "an answer without a reason", lambda ledger: ledger.question(reply="happened", replied_by="kim")),
    ("I12", "a line that began ahead of its run", lambda ledger: ledger.run("resumed", line_start_seq=3)),
    ("I12", "a line that follows no other", lambda ledger: ledger.run("resumed", parent_line=1)),
    ("I13", "an effect of a line that was left", lambda ledger: ledger.operation("resumed", "charge", line=0)),
    (
        "I14",
        "a doubt in a run that succeeded",
        lambda ledger: ledger.operation("bought", "charge", status="unknown"),
    ),
    (
        "I14",
        "a doubt in a run that failed",
        lambda ledger: ledger.operation("failed", "ship", status="executing"),
    ),
    (
        "I14",
        "a doubt behind a run's position",
        lambda ledger: (
            ledger.run("failed", status="queued", due_at=1, next_step="send", finished_at=None),
            ledger.operation("failed", "charge", status="executing"),
        ),
    ),
]


@pytest.mark.parametrize("working", [work, *questions.STOPS.values()], ids=["ended", *questions.STOPS])
def test_a_ledger_that_the_engine_wrote_breaks_no_invariant(
    working: Callable[[OneProcess], object], database_url: str
) -> None:
    with closing(OneProcess(database_url)) as here:
        working(here)
        with here.runtime.engine.connect() as connection:
            assert check_invariants(connection) == []


@pytest.mark.parametrize(("invariant", "what", "damage"), DAMAGE, ids=[f"{n}: {what}" for n, what, _ in DAMAGE])
def test_damage_is_seen_by_the_check_of_its_invariant_alone(
    ledger: Ledger, invariant: str, what: str, damage: Break
) -> None:
    assert ledger.violations() == []
    damage(ledger)
    assert {violation.invariant for violation in ledger.violations()} == {invariant}, what


def test_every_check_is_broken_by_some_damage() -> None:
    assert {invariant for invariant, *_ in DAMAGE} == set(INVARIANTS)


def test_an_effect_beyond_a_runs_last_checkpoint_is_an_orphan(ledger: Ledger) -> None:
    identifier = operation_id("bought", 3, "charge", 0)
    ledger.operation("bought", "charge", seq=3, operation_id=identifier, idempotency_key=identifier)
    assert [str(violation) for violation in ledger.violations()] == [
        f"I13: {identifier} succeeded, and the line that its run ended on does not ask for it"
    ]


@pytest.mark.parametrize("excuse", [{"orphan_reply": "keep"}, {"effect": "read"}], ids=str)
def test_what_a_person_kept_or_nobody_minds_is_no_orphan(ledger: Ledger, excuse: dict[str, str]) -> None:
    ledger.operation("resumed", "charge", line=0, **excuse)
    assert ledger.violations() == []


def test_a_broken_ledger_fails_a_test_with_all_that_is_wrong(ledger: Ledger) -> None:
    ledger.run("queued", due_at=None)
    ledger.operation("bought", "charge", fence=9)
    with ledger.engine.connect() as connection, pytest.raises(AssertionError, match=r"(?s)I2: op_.*I9: queued"):
        assert_invariants(connection)
