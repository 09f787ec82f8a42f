"""A database that is away fills no log: it is said once, then rarely, and when it is back."""

from __future__ import annotations

import logging

import pytest

from agent_tasks.complaints import FIRST_PAUSE, KIND_PAUSE, MOST_KINDS, Complaints, Seldom


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


def test_a_failure_is_said_at_once_then_ever_more_rarely_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    complaints = Complaints("agent-sweeper", clock := Clock())
    complaints.succeeded()
    assert lines(caplog) == []
    for _ in range(100):
        complaints.failed(ConnectionError("refused"))
    assert lines(caplog) == ["agent-sweeper: ConnectionError: refused"]

    said_at = []
    for second in range(1, 100):
        clock.now = float(second)
        complaints.failed(ConnectionError("refused"))
        said_at += [second] * len(lines(caplog))
    assert said_at == [FIRST_PAUSE, 3 * FIRST_PAUSE, 7 * FIRST_PAUSE]

    complaints.succeeded()
    complaints.succeeded()
    assert lines(caplog) == ["agent-sweeper: works again after 99 s"]


def test_another_failure_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("agent-sweeper", Clock())
    complaints.failed(ConnectionError("refused"))
    complaints.failed(ValueError("no such column"))
    assert lines(caplog) == ["agent-sweeper: ConnectionError: refused", "agent-sweeper: ValueError: no such column"]


def test_a_failure_after_the_end_of_the_last_one_is_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("agent-sweeper", Clock())
    for _ in range(2):
        complaints.failed(ConnectionError("refused"))
        complaints.succeeded()
    assert lines(caplog) == 2 * ["agent-sweeper: ConnectionError: refused", "agent-sweeper: works again after 0 s"]


def test_of_many_lines_of_a_kind_one_passes_in_a_minute_with_the_count_of_the_others() -> None:
    seldom = Seldom(clock := Clock())
    passed = []
    for second in range(0, 180, 5):
        clock.now = float(second)
        passed += [(second, count) for count in [seldom.left_out("order.pay")] if count is not None]
    assert passed == [(0, 0), (KIND_PAUSE, 11), (2 * KIND_PAUSE, 11)]
    assert seldom.left_out("order.ship") == 0


def test_names_that_anybody_makes_up_fill_no_memory() -> None:
    seldom = Seldom(Clock())
    for number in range(MOST_KINDS + 1):
        assert seldom.left_out(f"made-up-{number}") == 0
    assert len(seldom._passed) == MOST_KINDS
    assert seldom.left_out("made-up-0") == 0  # which was forgotten
    assert seldom.left_out(f"made-up-{MOST_KINDS}") is None
