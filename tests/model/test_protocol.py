"""The protocol is safe and live as designed, and each of its protections is there for a reason that can be shown."""

from __future__ import annotations

from dataclasses import fields

import pytest

from .rules import EFFECTS, Rules
from .variations import AS_DESIGNED, LIMITS, WITHOUT, Variation

WORLD = {"requests_land_in_time", "never_frozen", "vendor_voids", "keys_expire", "view_lags", "answers_get_lost"}
SCOPE = {"effects", "children_hang", "max_fence", "max_crashes"}


def named(variation: Variation) -> str:
    return variation.name


@pytest.mark.parametrize("variation", AS_DESIGNED, ids=named)
def test_as_designed_no_schedule_breaks_a_rule_or_gets_stuck(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == "safe", verdict


@pytest.mark.parametrize("variation", WITHOUT, ids=named)
def test_taking_out_a_protection_fails_in_its_own_way(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == variation.expected, verdict
    assert verdict.trace, "a failure comes with the schedule that leads to it"


@pytest.mark.parametrize("variation", LIMITS, ids=named)
def test_where_the_world_breaks_its_word_only_a_vendor_can_help(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == variation.expected, verdict


def test_every_effect_is_checked_as_designed() -> None:
    assert {effect for variation in AS_DESIGNED for effect in variation.rules.effects} == set(EFFECTS)


def test_every_protection_is_taken_out_by_some_variation() -> None:
    designed = Rules(("read",))
    protections = {field.name for field in fields(Rules)} - WORLD - SCOPE
    taken_out = {name for name in protections for v in WITHOUT if getattr(v.rules, name) != getattr(designed, name)}
    assert taken_out == protections


def test_each_variation_takes_out_one_protection() -> None:
    designed = Rules(("read",))
    protections = {field.name for field in fields(Rules)} - WORLD - SCOPE
    for variation in WITHOUT:
        changed = [n for n in protections if getattr(variation.rules, n) != getattr(designed, n)]
        assert len(changed) == 1, variation.name


def test_a_protection_that_is_taken_out_and_harmless_is_not_called_one() -> None:
    assert not [variation.name for variation in WITHOUT if variation.expected == "safe"]
