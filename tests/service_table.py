"""The table that a test run ends with: which services were really there, and how many tests ran on them.

    @pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")

A row that the README claims and that no test proved is a claim without proof: in CI it fails the run.
"""

from __future__ import annotations

import collections
import os
from typing import NamedTuple

import pytest


class Served(NamedTuple):
    """One combination of services: where the truth is, what rings, and which pool works."""

    ledger: str
    broker: str
    pool: str


#: What the README claims, in its order.
CLAIMS = {
    Served("postgresql", "redis", "prefork"): "PostgreSQL + Redis/Valkey",
    Served("postgresql", "rabbitmq", "prefork"): "PostgreSQL + RabbitMQ",
    Served("mysql", "redis", "prefork"): "MariaDB + Redis/Valkey",
    Served("sqlite", "filesystem", "prefork"): "SQLite + filesystem",
    Served("postgresql", "redis", "threads"): "PostgreSQL + Redis/Valkey",
    Served("postgresql", "redis", "gevent"): "PostgreSQL + Redis/Valkey",
    Served("sqlite", "filesystem", "solo"): "SQLite + filesystem",
}

PROPERTY = "serves"


class ServiceTable:
    """Counts the passed tests of each combination; under xdist the counts meet in the controller."""

    def __init__(self, config: pytest.Config, claims: dict[Served, str] = CLAIMS) -> None:
        self.claims = claims
        self.passed: collections.Counter[Served] = collections.Counter()
        self.is_controller = not hasattr(config, "workerinput")
        # A part of the suite proves a part of the table; only a whole run can be held to all of it.
        self.is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not (
            config.getoption("keyword") or config.getoption("markexpr") or config.getoption("collectonly")
        )

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("serves"):
                served = Served(**mark.kwargs)
                if served not in self.claims:
                    known = ", ".join(str(tuple(claim)) for claim in self.claims)
                    raise pytest.UsageError(f"{item.nodeid} serves {tuple(served)}, no row of the table: {known}")
                item.user_properties.append((PROPERTY, list(served)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self.passed[Served(*value)] += 1  # type: ignore[misc]  # xdist sends properties as plain lists

    @property
    def unproved(self) -> list[Served]:
        """The claims that no test of this run proved."""
        return [claim for claim in self.claims if not self.passed[claim]]

    @property
    def fails(self) -> bool:
        """Whether an unproved claim fails this run."""
        return self.is_controller and self.is_whole and os.environ.get("CI") == "true" and bool(self.unproved)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.fails and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not (self.passed or self.is_whole):
            return
        terminalreporter.section("services")
        terminalreporter.line(f"{'service':<28}{'pool':<10}{'tests run':>9}")
        for claim, label in self.claims.items():
            terminalreporter.line(f"{label:<28}{claim.pool:<10}{self.passed[claim]:>9}")
        if self.fails:
            terminalreporter.line("a row with no test is a claim without proof: this run fails", red=True)
