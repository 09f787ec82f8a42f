"""The fuzz target for the decoder runs: over its corpus, and for a while from there on."""

from __future__ import annotations

import secrets

import pytest

from checkpoint.registry import registry
from tests.fuzz import decoder


@pytest.fixture(autouse=True)
def _types_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_class", {})
    monkeypatch.setattr(registry, "_by_tag", {})
    decoder.register_types()


@pytest.mark.parametrize("file", sorted(decoder.CORPUS.iterdir()), ids=lambda file: str(file.name))
def test_each_input_that_is_kept_gives_a_value_or_an_error_of_ours(file: decoder.Path) -> None:
    gave_a_value = decoder.one_input(file.read_bytes())
    if file.name.startswith(("bare", "sealed")):
        assert gave_a_value
    if file.name.startswith("bomb"):
        assert not gave_a_value


def test_what_is_near_to_them_does_too() -> None:
    seed = secrets.randbelow(1_000_000)
    values, errors = decoder.fuzz(4000, seed)
    assert values > 100, seed
    assert errors > 100, seed


def test_the_target_notices_what_escapes_and_says_for_which_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(raw: bytes) -> None:
        raise KeyError(len(raw))

    monkeypatch.setattr(decoder.codec, "decode", broken)
    with pytest.raises(KeyError):
        decoder.fuzz(10, 1)
    assert capsys.readouterr().err.startswith("input: 00")
