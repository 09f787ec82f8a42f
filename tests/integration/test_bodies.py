"""Wrong step bodies, crashed at every boundary, with a vendor that times out: none doubles an effect (I4, I13-I15)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tasks.integration import AppState
from agent_tasks.states import RunStatus
from agent_tasks.testing import explore_crashes
from tests.bodies import BODIES, VENDORS, Shop, Wrong, calls_in_a_task_group
from tests.duel import duel

#: Crashes that one test draws; all of them, and other effects: `python -m tests.attack bodies --full`.
SAMPLE = 3


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_wrong_body_doubles_no_effect(body: Callable[[str, Shop], Wrong], vendor: str) -> None:
    shop = Shop(vendor)
    wrong = body("probed", shop)

    found = explore_crashes(
        wrong.agent, {}, shop, sample=SAMPLE, one_ending=wrong.one_ending, next_release=wrong.next_release
    )
    shop.join()

    assert not found.failures, found.report()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup is new in Python 3.11")
def test_a_suspension_that_a_task_group_wraps_suspends_the_run_and_counts_as_no_crash(tmp_path: Path) -> None:
    shop = Shop("times out after the effect")
    with duel(f"sqlite:///{tmp_path / 'agent.db'}") as here:
        wrong = calls_in_a_task_group("probed", shop).agent
        AppState.of(wrong.app).use_runtime(here.runtime)
        run = here.run(wrong)

        assert run.status is RunStatus.WAITING
        assert here.row()["crashes"] == 0
        assert here.drive(wrong) is RunStatus.SUCCEEDED
        assert set(shop.effects().values()) == {1}
