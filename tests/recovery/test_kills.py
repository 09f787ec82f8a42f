"""SIGKILL of a child and of a whole worker at every boundary of an agent, on real services."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest

from agent_tasks.boundary import Point
from agent_tasks.testing.kills import Crossing, Kill
from tests.recovery.places import on
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_SECONDS = 240

#: What a copy of a doorbell adds to the journal of a run, wherever it arrives.
OF_ANY_DOORBELL = {"claim", "ring", "doorbell"}

#: At least this is what parents cross while they recover runs; what else they are seen to cross comes on top.
OF_PARENTS = {"doorbell", "renew", "end lease", "take over", "wake", "ring"}

CHARGED = Crossing(2, Point("effect", "charge", "after"))


@pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork")
def test_a_kill_at_any_boundary_repeats_no_effect_on_postgresql_and_redis(on_servers: Stage) -> None:
    with on_servers.workers(4):
        recorded = recorded_run(on_servers)
        kill_at(on_servers, [(who, index) for index in range(len(recorded)) for who in ("child", "worker")], recorded)
        kill_parents(on_servers)


@on("embedded", "on_rabbitmq", "on_mysql")
def test_a_kill_at_any_kind_of_boundary_repeats_no_effect_elsewhere(placed: Stage) -> None:
    with placed.workers(3):
        recorded = recorded_run(placed)
        points = [crossing.point for crossing in recorded]
        kinds = [index for index, point in enumerate(points) if points.index(point) == index]
        kill_at(placed, list(zip(cycle(["child", "worker"]), kinds, strict=False)), recorded)
        kill_parents(placed)


def recorded_run(stage: Stage) -> list[Crossing]:
    """The boundaries of the agent, as a run crosses them that nobody disturbs.

    Once each, where a doorbell's copy crosses them as well: a busy machine rings again what nobody has taken for a while.
    """
    stage.enqueue("undisturbed")
    wait_until(lambda: stage.all_ended(["undisturbed"]), "the undisturbed run ended", LIMIT_SECONDS)
    recorded: list[Crossing] = []
    for crossing in stage.kills.crossings("undisturbed"):
        if crossing.point.name not in OF_ANY_DOORBELL or crossing not in recorded:
            recorded.append(crossing)
    assert {crossing.point.kind for crossing in recorded} == {"commit", "effect", "publish"}
    return recorded


def kill_at(stage: Stage, places: Sequence[tuple[str, int]], recorded: list[Crossing]) -> None:
    """Kill each of some runs at its own place, and see that it ends with each effect once."""
    kills = {
        f"{who}-{index}": Kill(who, recorded[index], f"{who}-{index}", recorded[: index + 1].count(recorded[index]))
        for who, index in places
    }
    stage.kills.plan(kills.values())
    for run_id in kills:
        stage.enqueue(run_id)
    stage.finish(kills, LIMIT_SECONDS)
    done = {one.kill.run_id: one for one in stage.kills.carried_out()}
    assert [kill for run_id, kill in kills.items() if run_id not in done] == []
    for run_id, one in done.items():  # up to its kill nothing else disturbed the run
        index = int(str(run_id).split("-")[1])
        crossed = stage.kills.crossings(run_id)[: one.crossed]
        assert own(crossed) == own(recorded[: index + 1]), run_id
    assert stage.faults(kills) == []


def own(crossings: Sequence[Crossing]) -> list[Crossing]:
    return [crossing for crossing in crossings if crossing.point.name not in OF_ANY_DOORBELL]


def kill_parents(stage: Stage) -> None:
    """Kill whole workers at every boundary that their parents are seen to cross, the ones of recovery included."""
    planned: set[Kill] = set()

    def missing() -> set[Kill]:
        return planned - {one.kill for one in stage.kills.carried_out()}

    for turn in range(10):
        seen = {Kill("worker", crossing) for crossing in stage.kills.crossings()}
        stage.kills.plan(seen - planned)
        planned |= seen
        if not missing() and {kill.at.point.name for kill in planned} >= OF_PARENTS:
            return
        runs = [f"{what}-{turn}" for what in ("renewed", "ended", "taken", "rung")]
        renewed, ended, taken, rung = runs
        stage.kills.plan([Kill("child", CHARGED, ended), Kill("worker", CHARGED, taken)])
        stage.enqueue(renewed, gated=True)
        stage.enqueue(ended)
        stage.enqueue(taken)
        stage.enqueue(rung, rung=False)
        wait_until(lambda: not any(k.at.point.name == "renew" for k in missing()), "leases were renewed", LIMIT_SECONDS)
        stage.open_gate(renewed)
        stage.finish(runs, LIMIT_SECONDS)
        assert stage.faults(runs) == []
    raise AssertionError(f"not every boundary of a parent was crossed: {missing() or OF_PARENTS}")
