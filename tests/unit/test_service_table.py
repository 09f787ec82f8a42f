"""The table at the end of a run counts what really ran, and in CI a claim that nothing proved fails the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest, services
from tests.service_table import CLAIMS

CONFTEST = """
from tests.service_table import ServiceTable

def pytest_configure(config):
    config.addinivalue_line("markers", "serves(ledger, broker, pool): test")
    config.pluginmanager.register(ServiceTable(config))
"""

SERVES_POSTGRES = '@pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")\n'
SERVES_SQLITE = '@pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork")\n'
PASSES = "def test_{}(): pass\n"
PROVES_POSTGRES = SERVES_POSTGRES + '@pytest.mark.parametrize("n", [1, 2, 3])\n' + "def test_postgres(n): pass\n"
SERVES_RABBITMQ = SERVES_POSTGRES.replace("redis", "rabbitmq")
SERVES_MYSQL = SERVES_POSTGRES.replace("postgresql", "mysql")
PROVES_POOLS = "".join(
    f"@pytest.mark.serves(ledger={claim.ledger!r}, broker={claim.broker!r}, pool={claim.pool!r})\n"
    + PASSES.format(claim.pool)
    for claim in CLAIMS
    if claim.pool != "prefork"
)
PROVES_ALL = (
    PROVES_POSTGRES
    + SERVES_RABBITMQ
    + PASSES.format("rabbitmq")
    + SERVES_MYSQL
    + PASSES.format("mysql")
    + SERVES_SQLITE
    + PASSES.format("sqlite")
    + PROVES_POOLS
)


class Run:
    """One run of pytest in a folder of its own."""

    def __init__(self, folder: Path, tests: str, *arguments: str, ci: bool) -> None:
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_it.py").write_text("import pytest\n" + tests)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}
        environment |= {"PYTHONPATH": str(services.ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if ci:
            environment["CI"] = "true"
        command = [sys.executable, "-m", "pytest", "--rootdir=.", "-p", "xdist", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        self.status, self.output = done.returncode, done.stdout + done.stderr
        rows = re.findall(r"^(\w.*?) +prefork +(\d+)$", self.output, re.MULTILINE)
        self.rows = {service: int(count) for service, count in rows}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_passed_tests_are_counted_over_all_processes(workers: str, tmp_path: Path) -> None:
    run = Run(tmp_path, PROVES_ALL, "-n", workers, ci=True)
    assert run.rows == {
        "PostgreSQL + Redis/Valkey": 3,
        "PostgreSQL + RabbitMQ": 1,
        "MariaDB + Redis/Valkey": 1,
        "SQLite + filesystem": 1,
    }
    assert run.status == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_claim_that_no_test_proved_fails_in_ci(workers: str, tmp_path: Path) -> None:
    run = Run(tmp_path, PROVES_POSTGRES, "-n", workers, ci=True)
    assert run.rows["SQLite + filesystem"] == 0
    assert run.status == 1
    assert "a row with no test is a claim without proof" in run.output


def test_a_skipped_or_failed_test_proves_nothing(tmp_path: Path) -> None:
    tests = SERVES_POSTGRES + "def test_skipped(): pytest.skip()\n" + SERVES_SQLITE + "def test_fails(): assert False\n"
    assert Run(tmp_path, tests, ci=True).rows == {
        "PostgreSQL + Redis/Valkey": 0,
        "PostgreSQL + RabbitMQ": 0,
        "MariaDB + Redis/Valkey": 0,
        "SQLite + filesystem": 0,
    }


def test_a_developer_sees_the_table_and_is_not_failed(tmp_path: Path) -> None:
    run = Run(tmp_path, PROVES_POSTGRES, ci=False)
    assert (run.status, run.rows["SQLite + filesystem"]) == (0, 0)


@pytest.mark.parametrize("arguments", [["test_it.py"], ["-k", "postgres"]], ids=" ".join)
def test_a_part_of_the_suite_is_not_held_to_the_whole_table(arguments: list[str], tmp_path: Path) -> None:
    assert Run(tmp_path, PROVES_POSTGRES, *arguments, ci=True).status == 0


def test_a_service_that_is_no_row_of_the_table_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, SERVES_SQLITE.replace("filesystem", "carrier pigeon") + PASSES.format("it"), ci=True)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "serves ('sqlite', 'carrier pigeon', 'prefork'), no row of the table: ('postgresql'," in run.output


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_service_skips_here_and_fails_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(service: str, folder: Path) -> str:
        raise services.Unavailable(f"no {service}")

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(services, "find", find)
    with pytest.raises(outcome, match="no redis"):
        conftest.server("redis")
