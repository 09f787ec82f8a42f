"""The engine's log while it is held: nothing of it is lost that somebody wants, and the loggers are as they were."""

from __future__ import annotations

import logging

import pytest

from agent_tasks.testing.held_log import LOGGERS, held_log


def state() -> list[tuple[list[logging.Handler], bool]]:
    return [(logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in LOGGERS]


def test_a_log_that_nobody_wants_is_dropped_and_other_loggers_are_not_held(caplog: pytest.LogCaptureFixture) -> None:
    before = state()
    with held_log():
        for name in ("agent_tasks.sweeper", "checkpoint.sql", "shop"):
            logging.getLogger(name).warning("from %s", name)
    assert caplog.messages == ["from shop"]
    assert state() == before


def test_a_log_that_somebody_wants_comes_in_its_order(caplog: pytest.LogCaptureFixture) -> None:
    with held_log() as log:
        logging.getLogger("agent_tasks.sweeper").warning("first")
        log.show()
        logging.getLogger("checkpoint.sql").error("second")
        assert caplog.messages == []
    assert caplog.messages == ["first", "second"]


def test_an_exception_brings_the_log_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def play() -> None:
        with held_log():
            logging.getLogger("agent_tasks.calling").warning("what led to it")
            raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError):
        play()
    assert caplog.messages == ["what led to it"]
    assert state() == before
