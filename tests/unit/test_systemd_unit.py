"""The systemd unit for a worker is one that systemd understands and that stops a worker the right way."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "agent-worker.service"


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's names have capitals
    parser.read_string(UNIT.read_text())
    return parser


def test_a_stop_reaches_the_parent_first_and_everything_in_the_end(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert int(service["TimeoutStopSec"]) > 60


def test_a_worker_comes_back_whatever_ended_it_and_however_often(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_child_that_is_killed_for_memory_does_not_stop_the_worker(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["OOMPolicy"] == "continue"


def test_addresses_and_secrets_come_from_a_file_and_not_from_the_unit(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["EnvironmentFile"].startswith("/etc/")
    assert "://" not in unit["Service"]["ExecStart"] + unit["Service"]["Environment"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    lines = UNIT.read_text().splitlines(keepends=True)
    here = ["ExecStart=/bin/sh\n" if line.startswith("ExecStart=") else line for line in lines]  # ours is not installed
    copy = tmp_path / UNIT.name
    copy.write_text("".join(here))
    verify = ["systemd-analyze", "verify", "--man=no", str(copy)]
    said = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in said.stderr.splitlines() if UNIT.name in line]
    assert (said.returncode, complaints) == (0, []), said.stderr
