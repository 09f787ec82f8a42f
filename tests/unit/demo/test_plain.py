"""Plain Celery, set up to survive kills, with real workers on the embedded broker."""

import json
import subprocess
import sys
import threading

import pytest

from agent_tasks.demo import plain
from agent_tasks.demo.carts import load_carts
from agent_tasks.demo.kills import PLAN_VARIABLE, Kill, KillPlan
from agent_tasks.demo.tally import Share, Tally, tally

CARTS = load_carts()[:4]


@pytest.fixture
def supervise():
    """Keep a worker running: whenever it dies it is started again, as systemd would."""
    stop = threading.Event()
    running = []

    def watch(environ) -> None:
        while not stop.is_set():
            with subprocess.Popen(
                plain.worker_command(1),
                env=environ,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as worker:
                running[:] = [worker]
                if stop.is_set():
                    worker.kill()

    def start(environ) -> None:
        watcher.append(threading.Thread(target=watch, args=(environ,)))
        watcher[0].start()

    watcher: list[threading.Thread] = []
    yield start
    stop.set()
    for worker in running:
        worker.kill()
    for thread in watcher:
        thread.join(60)


@pytest.mark.recovery
@pytest.mark.slow
def test_a_killed_child_doubles_its_charge_and_a_killed_worker_loses_its_cart(vendor, supervise, tmp_path, processes):
    plan = KillPlan.write(
        tmp_path / "kills.json",
        [
            Kill("create_order", "child", cart=CARTS[0]["id"]),
            Kill("charge", "child", cart=CARTS[1]["id"]),
            Kill("charge", "worker", cart=CARTS[2]["id"]),
        ],
    )
    carts = tmp_path / "carts.json"
    carts.write_text(json.dumps(CARTS), encoding="utf-8")
    url = f"http://{vendor._host}:{vendor._port}"
    environ = plain.environment(tmp_path / "plain", url, kills=tmp_path / "kills.json")
    supervise(environ)

    placing = processes("-m", "agent_tasks.demo.plain", str(carts), environ=environ)
    output = placing.communicate(timeout=100)[0]

    assert placing.returncode == 0, output
    assert json.loads(output) == {"unfinished": [CARTS[2]["id"]]}
    # The order's key made its second request harmless; the charge has no key; the mail of the third cart never went out.
    assert tally(vendor.ledger(), CARTS) == Tally(
        orders=Share(effects=4, once=4, more=0, none=0),
        charges=Share(effects=5, once=3, more=1, none=0),
        emails=Share(effects=3, once=3, more=0, none=1),
    )
    assert len(plan.carried_out()) == 3


def test_waiting_without_a_worker_ends_with_the_command_that_starts_one(tmp_path, processes, vendor):
    environ = plain.environment(tmp_path / "plain", f"http://{vendor._host}:{vendor._port}")
    script = "from agent_tasks.demo import plain; plain.wait_until_idle(plain.place(plain.load_carts()[:1]), limit_seconds=0.1)"
    output = processes("-c", script, environ=environ).communicate(timeout=60)[0]
    assert "TimeoutError: 1 of 1 carts are under way after 0.1 s: cart-1001. See that a worker runs:" in output
    assert f"{sys.executable} -m celery -A agent_tasks.demo.plain worker" in output


def test_the_environment_takes_over_what_is_given_and_nothing_of_another_side(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_DATABASE_URL", "sqlite:///other.db")
    monkeypatch.setenv(PLAN_VARIABLE, "other.json")
    environ = plain.environment(tmp_path / "plain", "http://127.0.0.1:1", broker_url="redis://127.0.0.1:1/0")
    settings = plain.settings(environ)
    assert PLAN_VARIABLE not in environ
    assert settings["broker_url"] == "redis://127.0.0.1:1/0"
    assert "broker_transport_options" not in settings
    assert settings["result_backend"] == f"db+sqlite:///{tmp_path / 'plain' / 'results.db'}"
    assert settings["task_acks_late"]
    assert settings["task_reject_on_worker_lost"]
    assert settings["worker_prefetch_multiplier"] == 1
