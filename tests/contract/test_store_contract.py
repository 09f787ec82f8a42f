"""What every checkpoint store does, whatever keeps its bytes."""

from __future__ import annotations

import multiprocessing
import random
import threading
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import (
    CheckpointConflict,
    CheckpointNotFound,
    CheckpointState,
    CheckpointStore,
    Position,
    Secret,
    UnstorableValue,
    dumps,
    open_store,
)

together: Any = None  # where those who race wait for each other

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def saved(store: CheckpointStore, run_id: str, length: int) -> list[CheckpointState]:
    """Save `length` checkpoints, each with one message more than the one before."""
    states = [
        CheckpointState(
            run_id,
            seq,
            step=f"step-{seq}" if seq else None,
            messages=[{"role": "user", "content": f"message {n}"} for n in range(seq)],
            agent_state={"seq": seq},
            created_at=NOON + timedelta(seconds=seq),
        )
        for seq in range(length)
    ]
    for state in states:
        store.save(state)
    return states


def test_a_saved_state_comes_back_equal_and_of_its_own_types(store: CheckpointStore, run_id: str) -> None:
    state = CheckpointState(
        run_id,
        0,
        step="plan",
        messages=["text", {"role": "tool", "content": (1, 2.5, None)}],
        agent_state={"price": Decimal("1.10"), "tags": {"a", "b"}, 7: b"\x00"},
        metadata={"due": NOON},
        created_at=NOON,
        version=3,
    )
    store.save(state)
    loaded = store.load_latest(run_id)
    assert loaded == state
    assert repr(loaded) == repr(state)


def test_a_state_without_a_time_gets_one_in_utc(store: CheckpointStore, run_id: str) -> None:
    before = datetime.now(timezone.utc)
    store.save(CheckpointState(run_id, 0))
    loaded = store.load(run_id, 0)
    assert loaded.created_at is not None
    assert before <= loaded.created_at <= datetime.now(timezone.utc)
    assert loaded.created_at.tzinfo is timezone.utc


def test_an_unknown_run_has_nothing(store: CheckpointStore, run_id: str) -> None:
    assert store.load_latest(run_id) is None
    assert store.head(run_id) is None
    assert list(store.list_checkpoints(run_id)) == []
    with pytest.raises(CheckpointNotFound, match="no checkpoint at all"):
        store.load(run_id, 0)


def test_a_run_begins_with_seq_0(store: CheckpointStore, run_id: str) -> None:
    with pytest.raises(CheckpointConflict, match="save seq 0 first"):
        store.save(CheckpointState(run_id, 1))
    assert store.head(run_id) is None


def test_the_head_follows_each_save_and_older_checkpoints_stay(store: CheckpointStore, run_id: str) -> None:
    states = saved(store, run_id, 4)
    assert store.head(run_id) == Position(run_id, 0, 3)
    assert [store.load(run_id, seq) for seq in range(4)] == states
    assert store.load_latest(run_id) == states[3]


def test_saving_the_head_again_changes_nothing(store: CheckpointStore, run_id: str) -> None:
    states = saved(store, run_id, 3)
    store.save(states[2])
    store.save(replace(states[2], created_at=NOON + timedelta(days=1)))
    assert store.load_latest(run_id) == states[2]
    assert len(list(store.list_checkpoints(run_id))) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"agent_state": {"seq": 2, "more": 1}},
        {"agent_state": {"seq": 2.0}},
        {"messages": []},
        {"metadata": {"x": 1}},
        {"step": "another"},
        {"version": 2},
    ],
    ids=str,
)
def test_other_content_for_the_head_is_a_conflict(
    store: CheckpointStore, run_id: str, other: dict[str, object]
) -> None:
    states = saved(store, run_id, 3)
    with pytest.raises(CheckpointConflict, match=rf"line 0, seq 2\) of run '{run_id}'.*other content"):
        store.save(replace(states[2], **other))  # type: ignore[arg-type]
    assert store.load_latest(run_id) == states[2]


@pytest.mark.parametrize(("line", "seq"), [(0, 0), (0, 1), (0, 4), (1, 4), (1, 9)], ids=str)
def test_a_position_that_does_not_follow_the_head_is_a_conflict(
    store: CheckpointStore, run_id: str, line: int, seq: int
) -> None:
    states = saved(store, run_id, 3)
    with pytest.raises(CheckpointConflict, match="the head is at line 0, seq 2"):
        store.save(CheckpointState(run_id, seq, line=line))
    assert store.load_latest(run_id) == states[2]


def test_a_new_line_starts_after_any_ancestor_and_hides_what_it_abandons(store: CheckpointStore, run_id: str) -> None:
    states = saved(store, run_id, 5)
    turned = CheckpointState(run_id, 2, "again", line=1, messages=["other"], created_at=NOON)
    store.save(turned)
    assert store.head(run_id) == Position(run_id, 1, 2)
    assert store.load(run_id, 1) == states[1]
    assert store.load(run_id, 2) == turned
    assert store.load(run_id, 2, line=0) == states[2]
    with pytest.raises(CheckpointNotFound, match="its head is at line 1, seq 2"):
        store.load(run_id, 4)
    assert store.load(run_id, 4, line=0) == states[4]


def test_lines_may_start_on_lines_and_skip_numbers(store: CheckpointStore, run_id: str) -> None:
    saved(store, run_id, 4)
    for line, seq in ((1, 3), (4, 4), (4, 5), (9, 2)):
        store.save(CheckpointState(run_id, seq, line=line, agent_state={"at": (line, seq)}))
    assert [store.load(run_id, seq).line for seq in range(3)] == [0, 0, 9]
    with pytest.raises(CheckpointConflict):
        store.save(CheckpointState(run_id, 5, line=4))  # the line is over
    with pytest.raises(CheckpointConflict):
        store.save(CheckpointState(run_id, 3, line=8))  # not above the head's
    assert store.load(run_id, 5, line=4).agent_state == {"at": (4, 5)}


def test_a_new_line_may_start_from_the_input(store: CheckpointStore, run_id: str) -> None:
    saved(store, run_id, 3)
    store.save(CheckpointState(run_id, 0, line=1, agent_state={"fresh": True}))
    store.save(CheckpointState(run_id, 1, line=1))
    assert store.load(run_id, 0).agent_state == {"fresh": True}


def test_summaries_come_newest_first(store: CheckpointStore, run_id: str) -> None:
    saved(store, run_id, 3)
    store.save(CheckpointState(run_id, 1, "again", line=1, created_at=NOON))
    listed = list(store.list_checkpoints(run_id))
    assert [(one.line, one.seq, one.parent_line) for one in listed] == [(1, 1, 0), (0, 2, 0), (0, 1, 0), (0, 0, None)]
    assert listed[1].step == "step-2"
    assert listed[1].message_count == 2
    assert listed[1].created_at == NOON + timedelta(seconds=2)
    assert all(one.head_bytes > 0 and one.run_id == run_id for one in listed)


def test_a_long_list_is_complete(store: CheckpointStore, run_id: str) -> None:
    for seq in range(205):
        store.save(CheckpointState(run_id, seq))
    assert [one.seq for one in store.list_checkpoints(run_id)] == list(range(204, -1, -1))


def test_an_old_message_changed_in_place_is_noticed(store: CheckpointStore, run_id: str) -> None:
    messages = [{"content": "a"}, {"content": "b"}]
    store.save(CheckpointState(run_id, 0, messages=messages))
    messages[0]["content"] = "changed"
    messages.append({"content": "c"})
    store.save(CheckpointState(run_id, 1, messages=messages))
    assert store.load(run_id, 1).messages == [{"content": "changed"}, {"content": "b"}, {"content": "c"}]
    assert store.load(run_id, 0).messages == [{"content": "a"}, {"content": "b"}]


def test_a_message_of_another_type_but_equal_is_noticed(store: CheckpointStore, run_id: str) -> None:
    store.save(CheckpointState(run_id, 0, messages=[1, 2]))
    store.save(CheckpointState(run_id, 1, messages=[True, 2.0]))
    assert repr(store.load(run_id, 1).messages) == "[True, 2.0]"


def test_a_loaded_state_is_the_callers_own(store: CheckpointStore, run_id: str) -> None:
    saved(store, run_id, 3)
    loaded = store.load_latest(run_id)
    assert loaded is not None
    loaded.messages[0]["content"] = "scribble"
    loaded.agent_state.clear()
    again = store.load_latest(run_id)
    assert again is not None
    assert again.messages[0]["content"] == "message 0"
    assert again.agent_state == {"seq": 2}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_the_messages_every_checkpoint_stays_exact(store_url: str, run_id: str, seed: int) -> None:
    """Appends, edits, trims, insertions and new lines at random, saved by two stores in turn and read by a third."""
    chance = random.Random(seed)
    expected: dict[tuple[int, int], CheckpointState] = {}
    ancestors: list[CheckpointState] = []
    line, messages = 0, list[object]()
    with open_store(store_url) as one, open_store(store_url) as two, open_store(store_url) as fresh:
        for number in range(60):
            match chance.choice("aaaaetilr"):
                case "a":
                    messages += [f"{number}-{n}" for n in range(chance.randint(1, 3))]
                case "e" if messages:
                    messages[chance.randrange(-min(3, len(messages)), 0)] = f"edit {number}"
                case "t":
                    messages = messages[: chance.randint(0, len(messages))]
                case "i":
                    messages.insert(chance.randint(0, len(messages)), number)
                case "r":
                    messages = messages[chance.randint(0, len(messages)) :]
                case "l" if ancestors:
                    line += chance.randint(1, 2)
                    ancestors = ancestors[: chance.randint(1, len(ancestors))]
                    messages = list(ancestors[-1].messages)
            state = CheckpointState(run_id, len(ancestors), line=line, messages=list(messages), created_at=NOON)
            chance.choice((one, two)).save(state)
            ancestors.append(state)
            expected[state.line, state.seq] = state
        for store in (fresh, one, two):
            assert store.load_latest(run_id) == ancestors[-1]
            assert [store.load(run_id, seq) for seq in range(len(ancestors))] == ancestors
            assert {place: store.load(run_id, place[1], line=place[0]) for place in expected} == expected


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"messages": ["a", {"content": object()}]}, r"messages\[1\]\['content'\]"),
        ({"agent_state": {"cart": [{"price": object()}]}}, r"agent_state\['cart'\]\[0\]\['price'\]"),
        ({"metadata": {"by": Secret("k")}}, r"metadata\['by'\] cannot be stored: it is a Secret"),
        ({"messages": ("a",)}, "messages cannot be stored: it must be a list, got tuple"),
        ({"agent_state": []}, "agent_state cannot be stored: it must be a dict, got list"),
        ({"created_at": datetime(2026, 1, 1)}, "created_at cannot be stored: it must have a time zone"),  # noqa: DTZ001
        ({"run_id": ""}, "run_id cannot be stored: it must be text of 1 to 255"),
        ({"run_id": "a\x00b"}, "run_id cannot be stored: it must be text"),
        ({"run_id": "\ud800"}, "run_id cannot be stored: the text has a lone surrogate"),
        ({"step": 7}, "step cannot be stored: it must be text"),
        ({"seq": -1}, "seq cannot be stored: it must be an int from 0"),
        ({"seq": True}, "seq cannot be stored: it must be an int from 0"),
        ({"line": 2**31}, "line cannot be stored: it must be an int from 0 to 2147483647"),
        ({"version": 0}, "version cannot be stored: it must be an int from 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_stored_is_refused_by_path_and_nothing_is_written(
    store: CheckpointStore, run_id: str, part: dict[str, object], path: str
) -> None:
    with pytest.raises(UnstorableValue, match=path):
        store.save(replace(CheckpointState(run_id, 0), **part))  # type: ignore[arg-type]
    assert store.head(run_id) is None


def test_a_state_that_is_changed_after_the_save_does_not_change_its_checkpoint(
    store: CheckpointStore, run_id: str
) -> None:
    state = CheckpointState(run_id, 0, messages=[{"content": ["a"]}], agent_state={"cart": ["tea"]}, metadata={"x": []})
    snapshot = store.snapshot(CheckpointState(run_id, 1, agent_state=state.agent_state))
    store.save(state)
    state.messages[0]["content"].append("b")
    state.agent_state["cart"].append("milk")
    state.metadata["x"].append(1)
    store.save(snapshot)
    first, second = store.load(run_id, 0), store.load(run_id, 1)
    assert (first.messages, first.agent_state, first.metadata) == ([{"content": ["a"]}], {"cart": ["tea"]}, {"x": []})
    assert second.agent_state == {"cart": ["tea"]}


def test_the_newest_before_a_number_follows_the_heads_ancestry(store: CheckpointStore, run_id: str) -> None:
    states = saved(store, run_id, 4)
    turned = CheckpointState(run_id, 2, line=1, created_at=NOON)
    store.save(turned)
    assert store.load_before(run_id, 9) == turned
    assert store.load_before(run_id, 2) == states[1]
    assert store.load_before(run_id, 0) is None
    assert store.load_before(f"{run_id}-other", 5) is None


HOSTILE = [
    "..", ".", "../../etc/passwd", "a/b", "/abs", "a\\b", "run", "Run", "RUN", "rUn", "con", "nul.txt", "com1", "-rf", "~", "~root", ".git",
    ".locks", ".gitignore", "head.json", "a.", "a ", " a", "a\nb", "%2e%2e", "*", "?", "[x]", "$HOME", "`id`", "'; DROP TABLE x; --", "\u202eevil",
    "é", "e\u0301", "\U0001f600", "ß", "SS", "x" * 255, "x" * 254 + "y", "X" * 255, "é" * 255, "a" * 100 + "/", "7.json", "a~b", "--",
]  # fmt: skip


def test_whatever_a_run_is_called_it_is_a_run_of_its_own(store: CheckpointStore) -> None:
    mark = uuid.uuid4().hex  # others share the database
    for number, name in enumerate(HOSTILE):
        store.delete(name)
        store.save(CheckpointState(name, 0, messages=[mark], agent_state={"n": number}))
    for number, name in enumerate(HOSTILE):
        store.save(CheckpointState(name, 1, messages=[mark, name], agent_state={"n": number}))
    for number, name in enumerate(HOSTILE):
        loaded = store.load_latest(name, strict=True)
        assert loaded is not None
        assert (loaded.run_id, loaded.seq, loaded.agent_state) == (name, 1, {"n": number})
        store.delete(name)
        assert store.head(name) is None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=8) | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(timezone.utc)) | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(["$type", "$raw", "$x"]), inner, max_size=3)
    | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.dates(), inner, max_size=2) | st.frozensets(texts, max_size=3),
    max_leaves=8,
)  # fmt: skip
histories = st.lists(
    st.tuples(st.integers(0, 4), st.lists(json_like, max_size=3), st.dictionaries(texts, json_like, max_size=2)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
def test_any_history_of_any_values_comes_back_as_it_was(store: CheckpointStore, history: list[Any]) -> None:
    run_id = f"run-{uuid.uuid4().hex}"
    messages: list[Any] = []
    expected = []
    for seq, (kept, added, agent_state) in enumerate(history):
        messages = [*messages[: len(messages) - min(kept, len(messages)) // 2], *added]
        expected.append(CheckpointState(run_id, seq, messages=messages, agent_state=agent_state, created_at=NOON))
        store.save(expected[-1])
    loaded = [store.load(run_id, seq) for seq in range(len(expected))]
    assert loaded == expected
    assert [dumps([one.messages, one.agent_state]) for one in loaded] == [
        dumps([one.messages, one.agent_state]) for one in expected
    ]


@pytest.mark.parametrize("part", [{"messages": ["x" * 1_500]}, {"agent_state": {"text": "x" * 1_500}}], ids=str)
def test_what_is_too_large_to_be_read_again_is_refused(
    store: CheckpointStore, run_id: str, part: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = saved(store, run_id, 2)
    monkeypatch.setattr("checkpoint.envelope.MAX_BYTES", 1_000)
    with pytest.raises(UnstorableValue, match="bytes and the limit is 1000; store a reference"):
        store.save(CheckpointState(run_id, 2, **part))
    assert store.load_latest(run_id, strict=True) == states[1]


def test_a_deleted_run_is_gone_and_its_id_may_begin_anew(store: CheckpointStore, run_id: str) -> None:
    others = saved(store, f"{run_id}-other", 2)
    saved(store, run_id, 3)
    store.delete(run_id)
    store.delete(run_id)
    assert store.load_latest(run_id) is None
    assert list(store.list_checkpoints(run_id)) == []
    with pytest.raises(CheckpointConflict):
        store.save(CheckpointState(run_id, 3))
    states = saved(store, run_id, 2)
    assert store.load_latest(run_id) == states[1]
    assert store.load_latest(f"{run_id}-other") == others[1]


def meet(barrier: Any) -> None:
    global together
    together = barrier


def race(url: str, run_id: str, name: str, length: int) -> list[int]:
    """Try to append every seq, each at the same moment as the others; return those that this process won."""
    won = []
    with open_store(url) as store:
        for seq in range(length):
            together.wait(60)
            try:
                store.save(CheckpointState(run_id, seq, messages=[name] * seq, agent_state={"by": name}))
            except CheckpointConflict:
                continue
            won.append(seq)
    return won


def test_of_several_processes_that_append_the_same_seq_one_wins(store_url: str, run_id: str) -> None:
    length = 30
    with open_store(store_url) as store:  # the runs of a store in memory live as long as one is open
        if store_url.startswith("memory:"):
            pool: Any = ThreadPool(3, meet, (threading.Barrier(3),))  # no other process sees it
        else:
            context = multiprocessing.get_context("spawn")
            pool = context.Pool(3, meet, (context.Barrier(3),))
        with pool:
            tasks = [pool.apply_async(race, (store_url, run_id, name, length)) for name in "abc"]
            won = dict(zip("abc", (task.get(timeout=100) for task in tasks), strict=True))
        authors = [store.load(run_id, seq).agent_state["by"] for seq in range(length)]
        assert store.head(run_id) == Position(run_id, 0, length - 1)
    assert sorted(seq for seqs in won.values() for seq in seqs) == list(range(length))
    assert all(seq in won[author] for seq, author in enumerate(authors))
