"""Errors keep their facts and their message through pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from checkpoint import CheckpointError, errors

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, CheckpointError) and cls is not CheckpointError
]
FACTS = {"line": 2, "seq": 7, "version": 3}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling_with_its_facts(cls: type[CheckpointError]) -> None:
    names = list(inspect.signature(cls).parameters)
    facts = {name: FACTS.get(name, f"the {name}") for name in names}
    error = cls(*facts.values())
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__ == facts
    for fact in facts.values():
        assert str(fact) in str(error)


def test_every_error_has_the_one_base() -> None:
    assert {cls.__name__ for cls in CLASSES} == {name for name in vars(errors) if name[0].isupper()} - {
        "CheckpointError"
    }
