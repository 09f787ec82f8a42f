"""Bodies that end their process, are interrupted, hang, or hold the interpreter, under real workers."""

from __future__ import annotations

import json
from itertools import product

import pytest

from tests.recovery.app import CONF_VARIABLE
from tests.recovery.stage import Stage

pytestmark = [
    pytest.mark.recovery,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork"),
]

TOOLS = ("price", "note", "create_order", "charge", "book", "send_mail")
ENDS = ("MemoryError", "SystemExit", "KeyboardInterrupt", "os._exit")


def test_a_body_that_ends_its_process_or_tries_to_repeats_no_effect_and_takes_no_worker_along(
    on_servers: Stage,
) -> None:
    stage = on_servers
    planned = {
        f"{what.lower()}-{when}-{tool}": (f"{when} {tool}", what)
        for (tool, what), when in zip(product(TOOLS, ENDS), 12 * ("before", "after"), strict=True)
    }
    with stage.workers(2, concurrency=3):
        for run_id, misdeed in planned.items():
            stage.enqueue(run_id, misdeed=misdeed)
        stage.finish(planned)
    assert stage.misdeeds_left() == []
    assert stage.faults(planned) == []


def test_time_limits_of_celery_repeat_no_effect(on_servers: Stage) -> None:
    """The soft one raises in the body: its effect is in doubt, or may be tried again. The hard one kills the child."""
    stage = on_servers
    hurried = {f"hurried-{when}-{tool}": f"{when} {tool}" for tool in TOOLS for when in ("before", "after")}
    limited = {
        f"limited-{when}-{tool}": f"{when} {tool}" for tool, when in zip(TOOLS, 3 * ("after", "before"), strict=True)
    }
    # A busy machine lets limits of two seconds strike anywhere, and a limit that strikes in a log handler is lost.
    busy = {"AGENT_STEP_TIMEOUT_SECONDS": "20", "AGENT_MAX_CRASHES": "20"}
    with stage.workers(busy, busy, concurrency=4) as fleet:
        for run_id, where in {**hurried, **limited}.items():
            stage.enqueue(run_id, agent=run_id.split("-")[0], misdeed=(where, "hang"))
        stage.finish({**hurried, **limited})
        assert len(fleet.said("hard time limit")) >= len(limited)
    assert stage.misdeeds_left() == []
    assert stage.faults({**hurried, **limited}) == []


def test_a_step_that_holds_the_interpreter_keeps_its_lease_and_one_that_hangs_is_killed_at_its_timeout(
    on_servers: Stage,
) -> None:
    stage = on_servers
    held = {"held-note": "after note", "held-create_order": "before create_order", "held-book": "after book"}
    hung = {f"hung-{tool}": f"after {tool}" for tool in TOOLS}
    with stage.workers(*2 * [{"AGENT_STEP_TIMEOUT_SECONDS": "12"}], concurrency=5) as fleet:
        for run_id, where in held.items():
            stage.enqueue(run_id, misdeed=(where, "hold the interpreter"))
        for run_id, where in hung.items():
            stage.enqueue(run_id, misdeed=(where, "hang"))
        stage.finish({**held, **hung})
        assert {word for line in fleet.said("is killed") for word in line.split() if word[:-1] in {*held, *hung}} == {
            f"{run_id}:" for run_id in hung
        }
    assert {run_id: stage.row(run_id)["fence"] for run_id in held} == dict.fromkeys(held, 3)  # one attempt a step
    assert stage.misdeeds_left() == []
    assert stage.faults({**held, **hung}) == []


def test_workers_whose_children_are_replaced_after_each_step_lose_and_repeat_nothing(on_servers: Stage) -> None:
    stage = on_servers
    runs = [f"replaced-{number}" for number in range(6)]
    limits = {"worker_max_tasks_per_child": 1}, {"worker_max_memory_per_child": 1}
    with stage.workers(*({CONF_VARIABLE: json.dumps(limit)} for limit in limits), concurrency=2) as fleet:
        for run_id in runs:
            stage.enqueue(run_id)
        stage.finish(runs)
        assert fleet.said("taken over", "given back") == []
    assert {stage.row(run_id)["fence"] for run_id in runs} == {3}
    assert stage.faults(runs) == []
