"""Which of the rules about code each small body needs, and what becomes of it without them."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from .bodies import BODIES, DOUBLED, DOUBT, ORPHAN, Body, explore
from .coded import AT_THE_COMMIT_ONLY, EVERY_FAILURE_AGAIN, I5, I13, I14, I15, KEYS_OF_A_STEP, ROWLESS_ONLY, RULES

explored = cache(explore)  # the tests look at the same schedules from several sides

NAMED = {body.name: body for body in BODIES}
ALL = frozenset(RULES)

#: By body: what some schedule does when one rule is missing. Rules that are not named are not needed.
WITHOUT: dict[str, dict[str, set[str]]] = {
    "retry in except": {I15: {DOUBLED}},
    "second card": {},
    "branch on a coin": {I13: {DOUBLED, ORPHAN}, I14: {DOUBLED, DOUBT, ORPHAN}},
    "call left out": {I13: {ORPHAN}, I14: {DOUBT, ORPHAN}},
    "any order": {},
    "any order, with keys": {},
    "renamed tool": {I13: {DOUBLED, ORPHAN}, I14: {DOUBLED, DOUBT, ORPHAN}},
    "refused, and retried": {},
    "fallback along another path": {I13: {DOUBLED, ORPHAN}},
    "the same with a key": {},
}

#: What one might build in place of a rule, and what some schedule of a body then does.
INSTEAD: list[tuple[str, frozenset[str], set[str]]] = [
    ("branch on a coin", ALL | {ROWLESS_ONLY}, {DOUBLED}),
    ("renamed tool", ALL | {ROWLESS_ONLY}, {DOUBLED}),
    ("branch on a coin", ALL | {AT_THE_COMMIT_ONLY}, {DOUBLED}),
    ("renamed tool", ALL | {AT_THE_COMMIT_ONLY}, {DOUBLED}),
    ("fallback along another path", ALL | {AT_THE_COMMIT_ONLY}, {DOUBLED}),
    ("the same with a key", ALL | {KEYS_OF_A_STEP}, {DOUBLED}),
    ("second card", ALL | {EVERY_FAILURE_AGAIN}, set()),  # I13 finds the second card before the first is tried again
    ("second card", (ALL - {I13}) | {EVERY_FAILURE_AGAIN}, {DOUBLED, ORPHAN}),
]


def sets_of_rules() -> list[frozenset[str]]:
    return [frozenset(some) for size in range(len(RULES) + 1) for some in combinations(RULES, size)]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_a_body_is_safe_with_the_rules_it_needs_and_with_no_fewer(body: Body) -> None:
    needed = frozenset(WITHOUT[body.name])
    for rules in sets_of_rules():
        found = explored(body, rules)
        assert (not found.kinds) == (needed <= rules), (sorted(rules), found.worst)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_each_missing_rule_fails_in_its_own_way(body: Body) -> None:
    for missing in RULES:
        found = explored(body, ALL - {missing})
        assert found.kinds == WITHOUT[body.name].get(missing, set()), (missing, found.worst)


@pytest.mark.parametrize(("name", "rules", "kinds"), INSTEAD)
def test_what_one_might_build_instead_is_not_enough(name: str, rules: frozenset[str], kinds: set[str]) -> None:
    found = explored(NAMED[name], rules)
    assert found.kinds == kinds, found.worst


def test_every_rule_but_the_one_that_heals_is_needed_by_some_body() -> None:
    assert {rule for needs in WITHOUT.values() for rule in needs} == ALL - {I5}


def test_a_refusal_is_healed_by_a_retry_and_only_where_failures_are_not_final() -> None:
    body = NAMED["refused, and retried"]
    assert explored(body, ALL).healed
    assert not explored(body, ALL - {I5}).healed


def test_all_bodies_and_all_that_is_built_instead_have_an_expected_verdict() -> None:
    assert set(WITHOUT) == set(NAMED)
    instead = {rule for _, rules, _ in INSTEAD for rule in rules} - ALL
    assert instead == {ROWLESS_ONLY, AT_THE_COMMIT_ONLY, KEYS_OF_A_STEP, EVERY_FAILURE_AGAIN}
