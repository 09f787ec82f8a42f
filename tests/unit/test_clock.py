"""The one clock: the database's for everything shared, a boot clock for what is local (I10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select, text

from agent_tasks.clock import OFFSET_VARIABLE, Clock, microseconds
from agent_tasks.database import open_engine
from agent_tasks.testing.stage import StillClock
from tests.waiting import wait_until


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


def read(engine: Engine, clock: Clock, *seconds: float) -> list[int]:
    """Return the clock's present, then each of these moments, in one statement."""
    with engine.connect() as connection:
        return list(connection.execute(select(clock.now(), *(clock.in_(s) for s in seconds))).one())


def test_the_database_tells_the_time_of_its_host_in_microseconds(engine: Engine) -> None:
    before = time.time()
    (now,) = read(engine, Clock())
    assert (before - 1) * 1e6 < now < (time.time() + 1) * 1e6


def test_the_database_tells_whole_microseconds(engine: Engine) -> None:
    assert all(isinstance(moment, int) for moment in read(engine, Clock(), 0.1))


def test_a_moment_is_as_far_away_as_was_asked_for(engine: Engine) -> None:
    now, later, earlier = read(engine, Clock(), 90.5, -30)
    assert later - now == pytest.approx(90.5e6, abs=2e3)
    assert now - earlier == pytest.approx(30e6, abs=2e3)


def test_an_advanced_clock_is_ahead_in_the_database_and_here(engine: Engine) -> None:
    clock, true = Clock(), Clock()
    before = clock.local()
    clock.advance(3600)
    clock.advance(60)
    assert clock.local() - before >= 3660
    with engine.connect() as connection:
        ahead, now = connection.execute(select(clock.now(), true.now())).one()
    assert ahead - now == pytest.approx(3660e6, abs=2e3)


def test_a_pause_on_a_clock_that_stands_still_moves_it_by_as_much_at_once() -> None:
    clock = StillClock()
    before = clock.local(), clock.offset(0)
    clock.pause(3600)
    assert clock.local() - before[0] == pytest.approx(3600, abs=1e-3)
    assert clock.offset(0) - before[1] == pytest.approx(3600e6, abs=2)


def test_the_clock_goes_on_within_a_transaction(engine: Engine) -> None:
    with engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT 1"))
        first = connection.execute(select(Clock().now())).scalar_one()
        wait_until(lambda: connection.execute(select(Clock().now())).scalar_one() > first, "the clock goes on", 5)


def test_a_process_inherits_a_moved_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFSET_VARIABLE, "3600.5")
    assert Clock().local() - Clock(0).local() == pytest.approx(3600.5, abs=1)


def test_the_local_clock_does_not_follow_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock.local()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.local() >= before


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(None, 0), (timedelta(0), 0), (timedelta(microseconds=1), 1), (timedelta(days=1), 86_400_000_000)],
)
def test_durations_are_whole_microseconds(duration: timedelta | None, expected: int) -> None:
    assert microseconds(duration) == expected
