"""The protocol is safe and live as designed, and each of its protections is there for a reason that can be shown."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from .attacks import ATTACKS, VARIATIONS
from .designed import AS_DESIGNED, PAIRS
from .limits import LIMITS
from .rules import EFFECTS, PROTECTIONS, Rules
from .variation import DESIGN, SAFE, Variation
from .variations import TABLE
from .without import SURVIVED, WITHOUT


def named(variation: Variation) -> str:
    return variation.name


def in_short(variations: list[Variation]) -> list[Variation]:
    return [variation for variation in variations if not variation.only_in_full]


@pytest.mark.parametrize("variation", in_short(AS_DESIGNED + PAIRS), ids=named)
def test_as_designed_no_schedule_breaks_a_rule_or_gets_stuck(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == SAFE, verdict


@pytest.mark.parametrize("variation", in_short(WITHOUT), ids=named)
def test_taking_out_a_protection_fails_in_its_own_way(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == variation.expected, verdict
    assert verdict.trace, "a failure comes with the schedule that leads to it"


@pytest.mark.parametrize("variation", in_short(SURVIVED), ids=named)
def test_where_one_protection_stands_for_another_nothing_breaks(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == SAFE, verdict


@pytest.mark.parametrize("variation", in_short(LIMITS), ids=named)
def test_where_the_world_breaks_its_word_only_a_vendor_can_help(variation: Variation) -> None:
    verdict = variation.check()
    assert verdict.kind == variation.expected, verdict


# ---- what the table of variations must hold ------------------------------------------------------------------


def test_every_effect_and_every_pair_of_effects_is_checked_as_designed() -> None:
    assert all(variation.is_designed and variation.expected == SAFE for variation in AS_DESIGNED + PAIRS)
    checked = {variation.rules.effects for variation in AS_DESIGNED + PAIRS}
    assert checked >= {(effect,) for effect in EFFECTS} | {(one, two) for one in EFFECTS for two in EFFECTS}


def test_every_protection_is_taken_out_and_missed() -> None:
    assert {name for variation in WITHOUT for name in variation.changed} == set(PROTECTIONS)


def test_a_variation_takes_out_one_protection_or_one_and_the_other_that_hides_it() -> None:
    alone = {name for variation in WITHOUT + SURVIVED if len(variation.changed) == 1 for name in variation.changed}
    for variation in WITHOUT + SURVIVED:
        assert 1 <= len(variation.changed) <= 2, variation.name
        assert set(variation.changed) <= alone, variation.name


def test_no_failure_looks_like_the_protocol_as_designed() -> None:
    assert not [variation.name for variation in WITHOUT if variation.expected == SAFE]
    assert not [variation.name for variation in SURVIVED if variation.expected != SAFE]


def test_names_are_told_apart_and_so_are_the_variations() -> None:
    everything = [variation for variations in TABLE.values() for variation in variations]
    assert len(VARIATIONS) == len(everything)
    assert len({(variation.rules, variation.forgiven) for variation in everything}) == len(everything)


@pytest.mark.parametrize("variation", WITHOUT, ids=named)
def test_the_world_of_a_failure_is_safe_with_the_protection_in_place(variation: Variation) -> None:
    back = replace(variation.rules, **{name: getattr(DESIGN, name) for name in variation.changed})
    safe = (v.rules for v in AS_DESIGNED + PAIRS + LIMITS if v.expected == SAFE and not v.changed)
    assert any(holds(rules, back) for rules in safe), f"no variation as designed has the world of {variation.name!r}"


def holds(larger: Rules, smaller: Rules) -> bool:
    """Tell whether all that happens in one world may happen in another."""
    for field in fields(Rules):
        one, other = getattr(larger, field.name), getattr(smaller, field.name)
        if one != other and not (isinstance(one, int) and isinstance(other, int) and one >= other):
            return False
    return True


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_carried_out_by_variations_that_exist(attack: str) -> None:
    assert ATTACKS[attack]
    assert set(ATTACKS[attack]) <= set(VARIATIONS)


def test_every_variation_belongs_to_an_attack_or_shows_the_design() -> None:
    named_by_an_attack = {name for names in ATTACKS.values() for name in names}
    others = {v.name for v in WITHOUT + SURVIVED + LIMITS} - named_by_an_attack
    assert not others
