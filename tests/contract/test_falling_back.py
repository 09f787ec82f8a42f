"""What every store does about a checkpoint that cannot be used: the newest earlier one, and a warning that names both."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import pytest

from checkpoint import (
    CheckpointCorrupted,
    CheckpointState,
    CheckpointStore,
    CheckpointUnhealthy,
    Position,
    SqlStore,
    open_store,
)
from tests.tampering import DAMAGES, damage, lose_message

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def states(run_id: str, length: int) -> list[CheckpointState]:
    return [
        CheckpointState(run_id, seq, messages=[f"m{n}" for n in range(seq)], agent_state={"seq": seq}, created_at=NOON)
        for seq in range(length)
    ]


@pytest.fixture
def saved(store: CheckpointStore, run_id: str) -> list[CheckpointState]:
    made = states(run_id, 6)
    for state in made:
        store.save(state)
    return made


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_head_gives_the_one_before_and_a_warning_that_names_both(
    store: CheckpointStore,
    store_url: str,
    run_id: str,
    saved: list[CheckpointState],
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(store, run_id, 0, 5, how)
    with open_store(store_url) as fresh:
        for reader in (store, fresh):
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="checkpoint"):
                assert reader.load_latest(run_id) == saved[4]
            (warning,) = caplog.messages
            assert f"checkpoint (line 0, seq 5) of run '{run_id}' is corrupted" in warning
            assert "fell back to (line 0, seq 4)" in warning
            with pytest.raises(CheckpointCorrupted, match=r"line 0, seq 5\)"):
                reader.load_latest(run_id, strict=True)
        assert fresh.head(run_id) == Position(run_id, 0, 5)
        assert [one.seq for one in fresh.list_checkpoints(run_id)][-5:] == [4, 3, 2, 1, 0]


def test_a_missing_message_spoils_only_the_checkpoints_that_hold_it(
    store: CheckpointStore, store_url: str, run_id: str, saved: list[CheckpointState], caplog: pytest.LogCaptureFixture
) -> None:
    lose_message(store, run_id, 0, 2)
    with open_store(store_url) as fresh:
        with caplog.at_level(logging.WARNING, logger="checkpoint"):
            assert fresh.load_latest(run_id) == saved[2]
        assert "seq 5" in caplog.text
        assert "fell back to (line 0, seq 2)" in caplog.text
        with pytest.raises(CheckpointCorrupted, match="seq 5"):
            fresh.load_latest(run_id, strict=True)
        with pytest.raises(CheckpointCorrupted, match="seq 4"):
            fresh.load(run_id, 4)
        assert fresh.load(run_id, 2) == saved[2]
        assert fresh.load_before(run_id, 5) == saved[2]


def test_a_new_line_goes_on_from_where_it_fell_back_to(
    store: CheckpointStore, store_url: str, run_id: str, saved: list[CheckpointState]
) -> None:
    lose_message(store, run_id, 0, 2)
    with open_store(store_url) as fresh:
        with pytest.raises(CheckpointCorrupted, match="seq 4"):
            fresh.save(CheckpointState(run_id, 5, line=1))
        assert fresh.head(run_id) == Position(run_id, 0, 5)
        turned = CheckpointState(run_id, 3, line=1, messages=["m0", "m1", "new"], created_at=NOON)
        fresh.save(turned)
        assert fresh.load_latest(run_id, strict=True) == turned
        assert fresh.load(run_id, 2) == saved[2]


def healthy_until(seq: int, answer: Any) -> Any:
    return lambda state: True if state.seq <= seq else answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (False, "its health check says no"),
        ("the cart is gone", "its health check says: the cart is gone"),
        (3, "its health check returned 3"),
    ],
)
def test_a_failed_health_check_gives_the_one_before(
    store: CheckpointStore,
    run_id: str,
    saved: list[CheckpointState],
    answer: Any,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    check = healthy_until(3, answer)
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        assert store.load_latest(run_id, health_check=check) == saved[3]
    assert f"checkpoint (line 0, seq 5) of run '{run_id}' must not be used: {said}" in caplog.text
    assert "fell back to (line 0, seq 3)" in caplog.text
    with pytest.raises(CheckpointUnhealthy, match=said):
        store.load_latest(run_id, health_check=check, strict=True)
    with pytest.raises(CheckpointUnhealthy, match="and no older one verifies"):
        store.load_latest(run_id, health_check=healthy_until(-1, answer))


def test_a_health_check_that_raises_is_a_no(store: CheckpointStore, run_id: str, saved: list[CheckpointState]) -> None:
    def check(state: CheckpointState) -> None:
        if state.seq > 1:
            raise KeyError("cart")

    assert store.load_latest(run_id, health_check=check) == saved[1]
    with pytest.raises(CheckpointUnhealthy, match="its health check raised KeyError: 'cart'"):
        store.load_latest(run_id, health_check=check, strict=True)


def test_a_head_that_passes_is_taken_without_a_word(
    store: CheckpointStore, run_id: str, saved: list[CheckpointState], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        assert store.load_latest(run_id, strict=True, health_check=lambda state: None) == saved[5]
        assert store.load_latest(f"{run_id}-other", strict=True, health_check=lambda state: False) is None
    assert caplog.messages == []


def test_damage_and_a_failed_check_are_passed_over_together(
    store: CheckpointStore, run_id: str, saved: list[CheckpointState], caplog: pytest.LogCaptureFixture
) -> None:
    damage(store, run_id, 0, 5, "a bit flipped")
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        assert store.load_latest(run_id, health_check=healthy_until(2, False)) == saved[2]
    assert "seq 5" in caplog.text
    assert "fell back to (line 0, seq 2)" in caplog.text


def test_a_run_of_which_nothing_is_whole_says_so(store: CheckpointStore, run_id: str) -> None:
    for state in states(run_id, 3):
        store.save(state)
        damage(store, run_id, 0, state.seq, "a bit flipped")
    with pytest.raises(CheckpointCorrupted, match=r"seq 2\).*and no older one verifies"):
        store.load_latest(run_id)


def test_a_health_check_may_use_the_store(store: CheckpointStore, run_id: str, saved: list[CheckpointState]) -> None:
    asked: list[int] = []

    def check(state: CheckpointState) -> bool:
        asked.append(state.seq)
        assert store.load(run_id, state.seq) == state
        store.save(CheckpointState(f"{run_id}-checks", len(asked) - 1))
        return state.seq < 4

    assert store.load_latest(run_id, health_check=check) == saved[3]
    assert asked == [5, 4, 3]


def test_a_run_that_is_deleted_while_it_is_looked_at_has_no_checkpoint(
    store: CheckpointStore, run_id: str, saved: list[CheckpointState]
) -> None:
    def check(state: CheckpointState) -> bool:
        store.delete(run_id)
        return False

    if isinstance(store, SqlStore):
        pytest.skip("a database shows the whole of it as it was")
    assert store.load_latest(run_id, health_check=check) is None
