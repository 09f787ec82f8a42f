"""Two faults in one run: the second one meets whatever recovers from the first (I2-I7, I13-I15)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_tasks import calling
from agent_tasks.boundary import Point
from agent_tasks.migrate import upgrade
from agent_tasks.recovery import Decision, Promise, Recorded, decide
from agent_tasks.slots import Slots
from agent_tasks.states import IN_DOUBT
from agent_tasks.testing import Fault, VendorWorld, explore_crashes
from agent_tasks.testing.play import Play
from agent_tasks.testing.stage import Stage
from tests.agents import SHORT_AGENTS, World

#: Pairs that one test draws; all of them: `python -m tests.attack pairs --full`.
SAMPLE, SAMPLE_ON_A_SERVER = 16, 4


@pytest.mark.parametrize("agent", SHORT_AGENTS)
def test_no_pair_of_faults_repeats_an_effect(agent: str, database_url: str) -> None:
    sample = SAMPLE if database_url.startswith("sqlite") else SAMPLE_ON_A_SERVER
    with closing(World(database_url)) as world:
        found = explore_crashes(
            SHORT_AGENTS[agent](world), {"what": "a"}, world, database_url=database_url, faults=2, sample=sample
        )

    assert not found.failures, found.report()
    assert sum(len(schedule.faults) == 2 for schedule in found.schedules) == sample


def test_a_drawn_exploration_names_its_seed_and_the_seed_draws_it_again() -> None:
    def explore(seed: int | None) -> list[str]:
        world = VendorWorld()
        found = explore_crashes(SHORT_AGENTS["keyed"](world), {"what": "a"}, world, faults=2, sample=3, seed=seed)
        seeds.append(found.seed)
        assert f"drawn with seed {found.seed}" in found.report()
        summaries.append(found.summary())
        return [str(schedule) for schedule in found.schedules]

    seeds: list[int | None] = []
    summaries: list[dict[str, Any]] = []
    first = explore(None)
    assert explore(seeds[0]) == first

    summary = summaries[0]
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["schedules"], summary["wrong"]) == (len(first), [])
    assert sum(hit["schedules"] for hit in summary["by_boundary"].values()) == len(first)


def test_a_report_tells_the_schedules_that_met_an_open_attempt() -> None:
    world = VendorWorld()
    calm = {"brokers": ("redelivers",), "lost_answers": False}
    found = explore_crashes(SHORT_AGENTS["keyed"](world), {"what": "a"}, world, **calm)

    hits = found.summary()["by_boundary"]
    # The two late copies of doorbells claim nothing.
    assert hits["before commit claim"] == {"schedules": 4, "met_an_open_attempt": 0}
    assert hits["after commit claim"] == {"schedules": 4, "met_an_open_attempt": 2}
    assert hits["after commit step"] == {"schedules": 2, "met_an_open_attempt": 0}
    assert "2 × before effect act (2 open)" in found.report()


def test_a_second_fault_shows_what_a_single_one_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The attack itself is tested by taking a protection away, from the second request of an operation on."""

    def careless(operation: Recorded | None, promise: Promise) -> Decision:
        if operation is not None and operation.status in IN_DOUBT and operation.attempts > 1:
            return Decision.EXECUTE
        return decide(operation, promise)

    monkeypatch.setattr(calling, "decide", careless)
    world, url = VendorWorld(), f"sqlite:///{tmp_path / 'ledger.db'}"
    upgrade(url)
    before, after = Point("effect", "act", "before"), Point("effect", "act", "after")

    with closing(Stage(SHORT_AGENTS["manual"](world), {"what": "a"}, world, url, Slots(tmp_path / "slots"))) as stage:
        (calm,) = Play(stage).play().stretches
        first = Fault(calm.index(before), before, "crash")
        alone = Play(stage, [first]).play()
        second = Fault(alone.stretches[-1].index(after), after, "crash")
        both = Play(stage, [first, second]).play()

    assert alone.problems == []
    assert any("happened 2 times" in problem for problem in both.problems)
