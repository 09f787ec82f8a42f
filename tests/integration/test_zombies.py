"""A zombie at each boundary: frozen there, overtaken, and let go (I2, and section 4 of the design for its limits)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from agent_tasks import runs
from agent_tasks.boundary import Point
from agent_tasks.recorder import Recorder
from agent_tasks.runs import Runs
from agent_tasks.testing import VendorWorld
from checkpoint.errors import CheckpointConflict
from tests.agents import SHORT_AGENTS, World
from tests.zombies import UNTIL, Freeze, Graveyard

#: Crossings that one test draws; all of them: `python -m tests.attack zombies --full`.
SAMPLE, SAMPLE_ON_A_SERVER = 6, 2


@pytest.fixture
def graveyard_of() -> Iterator[Callable[[str], Graveyard]]:
    """Make a place for zombies of an agent, on SQLite."""
    made: list[Graveyard] = []

    def make(agent: str) -> Graveyard:
        world = VendorWorld()
        made.append(Graveyard(SHORT_AGENTS[agent](world), world))
        return made[-1]

    yield make
    for graveyard in made:
        graveyard.close()


@pytest.mark.mariadb
@pytest.mark.parametrize("agent", SHORT_AGENTS)
def test_a_zombie_doubles_no_effect_and_changes_no_state(agent: str, database_url: str) -> None:
    sample = SAMPLE if database_url.startswith("sqlite") else SAMPLE_ON_A_SERVER
    with (
        closing(World(database_url)) as world,
        closing(Graveyard(SHORT_AGENTS[agent](world), world, database_url)) as g,
    ):
        chosen = random.sample(range(len(g.crossings())), sample)
        frozen = [g.freeze(index, until) for index in chosen for until in UNTIL]

    assert [str(freeze) for freeze in frozen if freeze.problems] == []


def freeze_at(graveyard: Graveyard, point: Point, until: str) -> Freeze:
    return graveyard.freeze(graveyard.crossings().index(point), until)  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", ["manual", "probed"])
def test_a_process_frozen_between_its_last_check_and_its_send_is_beyond_any_client_and_shown_to_a_person(
    agent: str, graveyard_of: Callable[[str], Graveyard]
) -> None:
    graveyard = graveyard_of(agent)
    in_time = freeze_at(graveyard, Point("effect", "act", "before"), "it waits")
    too_late = freeze_at(graveyard, Point("effect", "act", "before"), "it ends")

    assert (in_time.problems, in_time.doubled) == ((), False)
    assert (too_late.problems, too_late.doubled) == ((), True)


@pytest.mark.parametrize("until", UNTIL)
def test_a_living_key_stops_even_the_process_that_was_frozen_before_its_send(
    until: str, graveyard_of: Callable[[str], Graveyard]
) -> None:
    freeze = freeze_at(graveyard_of("keyed"), Point("effect", "act", "before"), until)
    assert (freeze.problems, freeze.doubled) == ((), False)


@pytest.mark.parametrize("broken", ["no fence", "late outcomes are forgotten"])
def test_the_graveyard_sees_a_zombie_that_is_not_stopped(
    broken: str,
    graveyard_of: Callable[[str], Graveyard],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The attack itself is tested by taking a protection away."""
    if broken == "no fence":
        monkeypatch.setattr(Runs, "is_owner", staticmethod(lambda _row, _attempt: True))
        monkeypatch.setattr(runs, "fence_of", lambda table, attempt: (table.c.run_id == attempt.run_id,))
        runs._owning.cache_clear()
        request.addfinalizer(runs._owning.cache_clear)
    else:
        monkeypatch.setattr(Recorder, "_late_outcome", lambda *_arguments: False)

    graveyard = graveyard_of("probed")

    def is_seen(index: int) -> bool:
        try:
            return bool(graveyard.freeze(index, "it ends").problems)
        except (CheckpointConflict, KeyError, OverflowError):  # the store is a second defence; a run with no next step
            return True

    points = graveyard.crossings()
    assert any(is_seen(points.index(Point("effect", "act", moment))) for moment in ("after", "before"))
