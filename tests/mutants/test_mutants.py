"""The list of mutants fits the code as it stands; `make mutants` takes them out and runs their tests."""

from __future__ import annotations

import ast

import pytest

from .__main__ import ROOT, mutated
from .mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_line_that_protects_stands_once_in_its_file_and_code_is_left_without_it(mutant: Mutant) -> None:
    ast.parse(mutated((ROOT / mutant.file).read_text(), mutant))


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_a_test_that_is_named_for_a_mutant_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name.partition("[")[0] in functions


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
