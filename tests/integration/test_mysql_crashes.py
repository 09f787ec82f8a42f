"""Batches, shared messages and long steps, crashed at every boundary on MariaDB, which goes the longer way (I2-I5, I7, I12, I13)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from agent_tasks import Agent
from agent_tasks.coalesce import BOUNDARIES, EACH
from agent_tasks.testing import explore_crashes
from tests.agents import SHORT_AGENTS, World, coalesced_agent
from tests.integration.test_coalesce_crashes import long_agent
from tests.integration.test_long_crashes import charging_agent

pytestmark = pytest.mark.timeout(400)  # many schedules, and a machine may be busy

#: What is crashed; a caller's transaction is in ``test_callers_transactions``.
AGENTS: dict[str, Callable[[World], Agent]] = {
    "a batch": SHORT_AGENTS["batch"],
    "a batch that was planned": SHORT_AGENTS["planned"],
    "steps that share a message": lambda world: coalesced_agent("transactional", world, EACH),
    "steps whose checkpoints are held": lambda world: coalesced_agent("probed", world, BOUNDARIES),
    "a message that ends in a sleep, and a body that saves its progress": lambda world: long_agent(world, BOUNDARIES),
    "a body that records what the vendor calls its effect": charging_agent,
}

#: Where answers of commits are lost as well: between them these have every commit of all.
LOSE_ANSWERS = (
    "a batch",
    "a message that ends in a sleep, and a body that saves its progress",
    "a body that records what the vendor calls its effect",
)


@pytest.mark.parametrize("what", AGENTS)
def test_a_crash_at_any_boundary_on_mariadb_repeats_no_effect(what: str, mysql_database: Callable[[], str]) -> None:
    url = mysql_database()
    with closing(World(url)) as world:
        found = explore_crashes(
            AGENTS[what](world),
            {"what": "a"},
            world,
            database_url=url,
            brokers=("emptied",),
            lost_answers=what in LOSE_ANSWERS,
        )
    assert not found.failures, found.report()
    assert len(found.schedules) >= 5
