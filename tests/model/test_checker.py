"""The checker itself, on models small enough to know the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .checker import Step, TooLarge, check


class Graph:
    """Walks from "start" along the arrows given; "end" is an end, "bad" breaks a rule."""

    def __init__(self, arrows: dict[str, list[str]], luck: tuple[tuple[str, str], ...] = ()) -> None:
        self.arrows = arrows
        self.luck = luck

    def initial(self) -> str:
        return "start"

    def steps(self, state: str) -> Iterator[Step[str]]:
        for to in self.arrows.get(state, []):
            violation = "a rule is broken" if to == "bad" else None
            yield Step(f"{state} to {to}", to, violation, (state, to) in self.luck)

    def ended(self, state: str) -> bool:
        return state == "end"


def test_a_model_in_which_all_paths_can_end_is_safe() -> None:
    verdict = check(Graph({"start": ["a", "end"], "a": ["start"]}))
    assert (verdict.kind, verdict.states, verdict.trace) == ("safe", 3, [])


def test_the_shortest_way_to_a_violation_is_shown() -> None:
    verdict = check(Graph({"start": ["a", "c"], "a": ["b"], "b": ["bad"], "c": ["bad", "end"]}))
    assert (verdict.kind, verdict.trace) == ("a rule is broken", ["start to c", "c to bad"])
    assert "  2. c to bad" in str(verdict)


def test_a_state_that_cannot_end_is_stuck_even_if_it_can_move() -> None:
    verdict = check(Graph({"start": ["end", "a"], "a": ["b"], "b": ["a"]}))
    assert (verdict.kind, verdict.trace) == ("stuck", ["start to a"])


def test_luck_is_followed_and_not_relied_upon() -> None:
    arrows = {"start": ["a"], "a": ["end"]}
    assert check(Graph(arrows)).kind == "safe"
    verdict = check(Graph(arrows, luck=(("a", "end"),)))
    assert (verdict.kind, verdict.states) == ("stuck", 3)


def test_a_search_over_its_bound_gives_no_verdict() -> None:
    with pytest.raises(TooLarge, match="more than 2 states"):
        check(Graph({"start": ["a"], "a": ["b"]}), limit=2)
