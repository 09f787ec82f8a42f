"""An idempotency key at a bank that forgets it: the key is never used past its life (section 4, `keyed`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import Operation, done
from agent_tasks.clock import Clock
from agent_tasks.declarations import Guard
from agent_tasks.states import OperationStatus, RunStatus
from tests.market import KEY_LIFE, Market, market
from tests.vendor_server import LOST_ON_THE_WAY, RESET, Bank

LIFE_SECONDS, TIMEOUT_SECONDS = KEY_LIFE.total_seconds(), 10


@pytest.fixture
def here(database_url: str) -> Iterator[Market]:
    with market(database_url, key_life=LIFE_SECONDS) as opened:
        yield opened


def wake_at(here: Market, order: Any, seconds: float) -> None:
    """Let the run look again so many seconds after its first request, whatever it waits for."""
    here.set_run(status=str(RunStatus.QUEUED), due_at=0, waiting_for=None)
    passed = (here.row()["now"] - here.operation().first_started_at) / 1e6
    here.later(order, seconds - passed)


def test_a_key_is_used_until_its_life_leaves_no_time_for_one_more_request(here: Market) -> None:
    here.script(*[LOST_ON_THE_WAY] * 9)
    order = here.start(here.charge("keyed"))

    wake_at(here, order, LIFE_SECONDS - TIMEOUT_SECONDS - 2)
    assert len(here.bank.requests) == 2
    wake_at(here, order, LIFE_SECONDS - TIMEOUT_SECONDS + 0.001)
    assert len(here.bank.requests) == 2
    assert here.operation().status is OperationStatus.UNKNOWN
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), len(here.bank.requests)) == (["unknown"], 2)


@pytest.mark.parametrize(("left_us", "lives"), [(1, True), (0, False), (-1, False)])
def test_a_key_lives_while_more_than_one_whole_request_is_left(left_us: int, lives: bool) -> None:
    class Stopped(Clock):
        def local(self) -> float:
            return 0.0

    nothing = dict.fromkeys(("horizon_at", "ask_at", "resolved_by", "resolved_why", "result_missing"))
    row = {**nothing, "status": "unknown", "attempts": 1, "args_digest": "", "effect": "keyed", "first_started_at": 0}
    timeout = TIMEOUT_SECONDS * 1_000_000
    now = int(LIFE_SECONDS * 1_000_000) - timeout - left_us
    guard = Guard(Operation({**row}, Stopped(), 0.0).effect, key_lifetime=KEY_LIFE)
    assert Operation({**row, "now": now}, Stopped(), 0.0).recorded("", guard, timeout).key_lives is lives


@pytest.mark.parametrize("probe", [False, True], ids=["person", "probe"])
def test_a_key_past_its_life_is_never_sent_again_and_the_charge_is_found(here: Market, probe: bool) -> None:
    here.script(RESET)
    order = here.start(here.charge("keyed", probe=here.look if probe else None))
    wake_at(here, order, LIFE_SECONDS + 1)

    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()
    assert len(here.bank.requests) == 1
    assert here.operation().row["resolved_by"] == ("probe" if probe else "kim")


def test_the_life_of_a_key_counts_from_the_first_intent_over_every_attempt_and_a_restart(database_url: str) -> None:
    """A request in the middle of the life does not lengthen it, nor does a process that knows nothing of the first."""
    with Bank(key_life=LIFE_SECONDS) as bank:
        before = Market(database_url, bank)
        before.script(*[LOST_ON_THE_WAY] * 3)
        order = before.start(before.charge("keyed"))
        wake_at(before, order, LIFE_SECONDS / 2)
        first = before.operation().first_started_at
        moved = before.runtime.clock.local() - Clock(0.0).local()
        before.close()

        after = Market(database_url, bank)
        after.runtime.clock.advance(moved)
        charge = after.charge("keyed")
        order = after.deploy(charge, pay=lambda _state: done(charge(100)))
        wake_at(after, order, LIFE_SECONDS - 2 * TIMEOUT_SECONDS)
        assert (len(bank.requests), after.operation().first_started_at) == (3, first)
        wake_at(after, order, LIFE_SECONDS + 1)
        assert len(bank.requests) == 3
        assert after.drive(order) is RunStatus.NEEDS_ATTENTION
        after.close()


def test_the_bank_of_these_tests_does_charge_twice_under_a_key_that_it_forgot(here: Market) -> None:
    here.client.charge("o", key="k")
    here.client.charge("o", key="k")
    here.bank.advance(timedelta(hours=2).total_seconds())
    here.client.charge("o", key="k")
    assert here.bank.count() == {"o": 2}
