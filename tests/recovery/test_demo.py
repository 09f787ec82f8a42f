"""The demo as a newcomer runs it: real workers, real kills, and the outside world's own ledger."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tasks.demo.carts import load_carts
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]


def start_demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agent_tasks.demo", *arguments],
        cwd=ROOT,
        # Whatever its processes leave behind is found here.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and its children would as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - there are no threads here
    )


def processes_of(tmp_path: Path) -> list[str]:
    """The processes whose environment or command line names this test's folder."""
    own = str(tmp_path).encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            surroundings = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:  # it ended, or is another user's
            continue
        if own in surroundings:
            found.append(folder.name)
    return found


@pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork")
def test_every_cart_is_bought_exactly_once_although_its_workers_are_killed(tmp_path):
    demo = start_demo(tmp_path, "--json", "--seed", "7")
    stdout, stderr = demo.communicate()
    assert demo.returncode == 0, stderr

    said = json.loads(stdout)  # one object and nothing else
    carts = len(load_carts())
    assert said["runs"] == said["succeeded"] == carts
    assert said["world"] == {"orders": carts, "charges": carts, "emails": carts}
    assert (said["child_kills"], said["worker_kills"]) == (3, 3)
    assert len(said["recovery_seconds"]) == 6
    assert all(seconds > 0 for seconds in said["recovery_seconds"])
    plain = said["plain_celery"]
    assert set(plain) == {"orders", "charges", "emails", "doubled", "lost"}
    assert plain["doubled"] + plain["lost"] > 0
    assert "asked the shop: charge happened" in stderr
    wait_until(lambda: not processes_of(tmp_path), "all its processes are gone")
    assert not list(tmp_path.iterdir())


@pytest.mark.serves(ledger="sqlite", broker="filesystem", pool="prefork")
def test_one_cart_is_fewer_than_the_kills_and_its_kept_ledger_can_be_looked_at(tmp_path):
    carts, kept = tmp_path / "carts.json", tmp_path / "kept"
    carts.write_text(json.dumps(load_carts()[:1]), encoding="utf-8")
    demo = start_demo(tmp_path, str(carts), "--seed", "7", "--keep", str(kept))
    stdout, stderr = demo.communicate()
    assert demo.returncode == 0, stderr

    command = next(line for line in stdout.splitlines() if "runs list --url" in line)
    assert f"sqlite:///{kept}" in command
    program = "from agent_tasks.cli import main; main()"
    listed = subprocess.run(
        [sys.executable, "-c", program, *shlex.split(command)[1:], "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert [run["status"] for run in json.loads(listed.stdout)["runs"]] == ["succeeded"]


def test_a_folder_that_holds_something_is_not_kept_in(tmp_path):
    (tmp_path / "mine").touch()
    demo = start_demo(tmp_path, "--keep", str(tmp_path))
    _, stderr = demo.communicate()
    assert demo.returncode == 2
    assert "argument --keep: must be a new or an empty folder" in stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_demo_leaves_neither_a_process_nor_a_file_behind(tmp_path, how):
    demo = start_demo(tmp_path, "--json")
    # Two workers with their children, the shop and the demo itself.
    wait_until(lambda: len(processes_of(tmp_path)) >= 6, "the workers of the demo run", limit_seconds=120)
    demo.send_signal(how)
    stdout, stderr = demo.communicate()

    assert demo.returncode == 130, stderr
    assert stdout == ""
    assert "interrupted" in stderr
    wait_until(lambda: not processes_of(tmp_path), "all its processes are gone")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "must be a JSON array of at least one cart"), ("{", "is not JSON"), (None, "cannot be read")],
    ids=["no cart", "broken", "missing"],
)
def test_carts_that_cannot_be_used_end_the_demo_before_anything_starts(tmp_path, content, message):
    path = tmp_path / "carts.json"
    if content is not None:
        path.write_text(content)
    demo = start_demo(tmp_path, str(path), "--json")
    stdout, stderr = demo.communicate()

    assert demo.returncode == 2
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert message in stderr
