"""Names of folders: one for each run, and none that leads out of the store."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.file_names import checkpoint_name, folder_name, log_name, log_of, place_of

run_ids = st.text(min_size=1, max_size=255) | st.text("aA.-_~/\\ ", min_size=1, max_size=6)


@given(run_ids)
def test_a_folder_is_a_name_that_every_file_system_takes(run_id: str) -> None:
    name = folder_name(run_id)
    assert re.fullmatch(r"(?!\.|-)[a-z0-9._~-]{1,100}(?<!\.)", name)


@given(run_ids, run_ids)
def test_two_runs_have_two_folders_also_where_capitals_are_small_letters(one: str, other: str) -> None:
    for variant in (other, one.swapcase(), f"{one} ", one.upper(), folder_name(one)):
        same = folder_name(one).lower() == folder_name(variant).lower()
        assert same == (one == variant) or (variant == folder_name(one) and "~" not in variant)


def test_a_plain_id_is_its_folder_and_any_other_one_is_recognised() -> None:
    for plain in ("order-7", "0", "a.b_c", "0198c0de-aaaa-7bbb-8ccc-0123456789ab", "x" * 100):
        assert folder_name(plain) == plain
    for other in ("Order-7", "..", "con", "aux.txt", "x" * 101, "a.", "-a", "é"):
        assert re.fullmatch(r"[a-z0-9-]{0,60}~[0-9a-f]{32}", folder_name(other))
    assert folder_name("Order/7").startswith("order-7~")


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_files_are_found_by_their_names(line: int, seq: int) -> None:
    assert place_of(checkpoint_name(line, seq)) == (line, seq)
    assert log_of(log_name(seq)) == seq


def test_other_files_are_no_checkpoints() -> None:
    for name in (
        "head.json",
        "07.json",
        "7.json.tmp",
        "7.line-0.json",
        "7.line-01.json",
        "-1.json",
        "٧.json",
        "7.JSON",
    ):
        assert place_of(name) is None
    assert log_of("messages-01.jsonl") is log_of("head.json") is None
