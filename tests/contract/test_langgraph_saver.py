"""What LangGraph's conformance suite does not ask of a saver."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import Connection, delete, update
from sqlalchemy.exc import OperationalError

from tests.savers import DATABASES, checkpoint_of, database_url, put, rows, savers, statements, thread

pytest.importorskip("langgraph.checkpoint.base")

from checkpoint.langgraph import CheckpointSaver, ThreadConflict, ThreadCorrupted

Make = Callable[..., CheckpointSaver]


@pytest.fixture(params=DATABASES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with savers(database_url(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture
def saver(make: Make) -> CheckpointSaver:
    return make()


def values(saver: CheckpointSaver, config: Any) -> Any:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def long(number: int) -> str:
    return f"message {number} " + "x" * 200


# Two writers


def test_of_two_writers_that_go_on_from_one_checkpoint_one_gets_a_conflict(make: Make) -> None:
    first, second = make(), make()
    config = put(first, thread(), {"messages": ["a"]})
    ours, theirs = first.get_tuple(config), second.get_tuple({"configurable": {**config["configurable"]}})
    assert ours is not None
    assert theirs is not None
    kept = put(first, ours.config, {"messages": ["a", "b"]}, 2, source="input")
    with pytest.raises(
        ThreadConflict, match=f"would follow .* and the head is {kept['configurable']['checkpoint_id']}"
    ):
        put(second, theirs.config, {"messages": ["a", "c"]}, 2, source="input")
    assert values(first, thread(thread_id=config["configurable"]["thread_id"])) == {"messages": ["a", "b"]}
    assert len(list(first.list(config | {"configurable": {"thread_id": config["configurable"]["thread_id"]}}))) == 2


def test_of_two_writers_that_found_a_thread_empty_one_gets_a_conflict(make: Make) -> None:
    first, second = make(), make()
    config = thread()
    assert first.get_tuple(config) is None
    assert second.get_tuple(config) is None
    put(first, config, {"a": 1}, source="input")
    with pytest.raises(ThreadConflict, match="would follow nothing"):
        put(second, config, {"a": 2}, source="input")
    assert values(second, config) == {"a": 1}


def test_of_many_writers_at_once_one_wins_each_step(make: Make) -> None:
    config = put(make(), thread(), {"messages": [long(0)]})
    latest = thread(thread_id=config["configurable"]["thread_id"])
    writers = [make() for _ in range(4)]
    barrier = threading.Barrier(len(writers))

    def write(number: int) -> int:
        found = writers[number].get_tuple(latest)
        assert found is not None
        messages = [*found.checkpoint["channel_values"]["messages"], long(number)]
        barrier.wait()
        try:
            put(writers[number], found.config, {"messages": messages}, 2)
        except ThreadConflict:
            return 0
        return 1

    with ThreadPoolExecutor(len(writers)) as pool:
        for step in range(3):
            assert sum(pool.map(write, range(len(writers)))) == 1
            assert len(values(make(), latest)["messages"]) == step + 2


def test_an_older_checkpoint_that_is_addressed_may_be_forked(saver: CheckpointSaver) -> None:
    first = put(saver, thread(), {"messages": [long(0)]})
    second = put(saver, first, {"messages": [long(0), long(1)]}, 2)
    old = saver.get_tuple(first)
    assert old is not None
    fork = put(saver, old.config, {"messages": [long(0), long(2)]}, 2)
    assert values(saver, second) == {"messages": [long(0), long(1)]}
    assert values(saver, fork) == {"messages": [long(0), long(2)]}
    assert values(saver, thread(thread_id=fork["configurable"]["thread_id"])) == {"messages": [long(0), long(2)]}


def test_the_same_put_again_changes_nothing(make: Make) -> None:
    saver = make()
    first = put(saver, thread(), {"messages": [long(0)]})
    checkpoint = checkpoint_of({"messages": [long(0), long(1)]}, 2)
    metadata: Any = {"source": "loop", "step": 1, "parents": {}}
    once = saver.put(first, checkpoint, metadata, {"messages": 2})
    assert saver.put(first, checkpoint, metadata, {"messages": 2}) == once
    assert make().put(first, checkpoint, metadata, {"messages": 2}) == once
    assert rows(saver)["checkpoints"] == 2
    assert values(make(), once) == {"messages": [long(0), long(1)]}


def test_a_run_whose_thread_was_deleted_is_told_so(make: Make) -> None:
    saver = make()
    config = put(saver, thread(), {"messages": [long(0)]})
    make().delete_thread(config["configurable"]["thread_id"])
    with pytest.raises(ThreadConflict, match="was deleted"):
        put(saver, config, {"messages": [long(0), long(1)]}, 2)
    assert set(rows(saver).values()) == {0}


# Lists and filters


def test_without_a_config_all_threads_are_listed_newest_first(saver: CheckpointSaver) -> None:
    configs = [put(saver, thread(), {"a": number}) for number in range(25)]
    listed = [each.config for each in saver.list(None)]
    assert listed == configs[::-1]
    assert [each.config for each in saver.list(None, limit=3)] == configs[:-4:-1]
    assert list(saver.list(None, limit=0)) == []


@pytest.mark.parametrize(
    "key", ["it's", 'say "hi"', "a.b", "$", "a'] OR 1=1 --", "x') = 1 OR ('1'='1", "%s", ":name", "ключ", "{}"]
)
def test_metadata_is_filtered_by_any_key_and_none_becomes_sql(saver: CheckpointSaver, key: str) -> None:
    wanted = put(saver, thread(), {"a": 1}, **{key: "value"})
    put(saver, thread(), {"a": 2}, **{key: "other"})
    put(saver, thread(), {"a": 3})
    assert [each.config for each in saver.list(None, filter={key: "value"})] == [wanted]
    assert list(saver.list(None, filter={key: "' OR '1'='1"})) == []
    assert list(saver.list(None, filter={f"{key}x": None})) == []


def test_metadata_is_filtered_by_values_of_every_kind(saver: CheckpointSaver) -> None:
    found = put(saver, thread(), {"a": 1}, number=1, nested={"a": [1, None]}, nothing=None, flag=True)
    put(saver, thread(), {"a": 2}, number=2, nested={"a": []}, flag=False)
    for wanted in ({"number": 1}, {"nested": {"a": [1, None]}}, {"nothing": None}, {"flag": True, "number": 1}):
        assert [each.config for each in saver.list(None, filter=wanted)] == [found], wanted


def test_before_goes_by_the_id_alone(saver: CheckpointSaver) -> None:
    ids = [f"{number:02}" for number in range(30)]
    config: Any = thread()
    thread_id = config["configurable"]["thread_id"]
    for number, checkpoint_id in enumerate(ids):
        checkpoint = {**checkpoint_of({}), "id": checkpoint_id}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})
    before: Any = {"configurable": {"checkpoint_id": "25"}}
    listed = [each.checkpoint["id"] for each in saver.list(thread(thread_id=thread_id), before=before)]
    assert listed == ids[24::-1]
    assert [
        each.checkpoint["id"] for each in saver.list(thread(thread_id=thread_id), before=before, limit=22)
    ] == listed[:22]


def test_ids_are_ordered_by_their_characters_whatever_the_database_speaks(saver: CheckpointSaver) -> None:
    config: Any = thread()
    latest = thread(thread_id=config["configurable"]["thread_id"])
    for checkpoint_id in ("B-1", "a-0", "a1", "É"):
        config = saver.put(config, {**checkpoint_of({}), "id": checkpoint_id}, {"source": "loop"}, {})
    assert [each.checkpoint["id"] for each in saver.list(latest)] == ["É", "a1", "a-0", "B-1"]


# Writes


def test_writes_may_come_before_their_checkpoint(saver: CheckpointSaver) -> None:
    config = thread()
    checkpoint = checkpoint_of({"a": 1})
    at: Any = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
    saver.put_writes(at, [("a", 2), ("messages", [long(0)])], "task", "path")
    assert saver.get_tuple(config) is None
    saver.put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"a": 1})
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "a", 2), ("task", "messages", [long(0)])]


def test_writes_come_in_the_order_in_which_a_run_applies_them(saver: CheckpointSaver) -> None:
    config = put(saver, thread(), {"a": 1})
    for task_id, path in (("3", "~b"), ("1", "~c"), ("2", "~a"), ("9", "")):
        saver.put_writes(config, [("a", f"{task_id} first"), ("a", f"{task_id} second")], task_id, path)
    found = saver.get_tuple(config)
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == [
        f"{task} {which}" for task in "9231" for which in ("first", "second")
    ]


def test_of_the_same_tasks_writes_the_first_stay_but_for_special_ones(saver: CheckpointSaver) -> None:
    config = put(saver, thread(), {"a": 1})
    for attempt in ("first", "second"):
        saver.put_writes(config, [("a", attempt)], "task")
        saver.put_writes(config, [("__interrupt__", attempt)], "task")
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "__interrupt__", "second"), ("task", "a", "first")]


def test_a_message_is_stored_once_in_the_write_and_in_the_list(saver: CheckpointSaver) -> None:
    config = put(saver, thread(), {"messages": [long(0)]})
    saver.put_writes(config, [("messages", [long(1)])], "task")
    put(saver, config, {"messages": [long(0), long(1)]}, 2)
    assert rows(saver)["blobs"] == 2


# Deleting


def grown(saver: CheckpointSaver, steps: int = 12, **metadata: Any) -> list[Any]:
    """Save a thread whose list grows, is cut, edited and forked, with writes and a namespace of its own."""
    config: Any = thread()
    messages: list[str] = []
    configs = []
    for step in range(steps):
        messages = [*(messages[2:] if step % 5 == 4 else messages), long(step)]
        said = {"step": step, **{name: value[step % len(value)] for name, value in metadata.items()}}
        config = put(saver, config, {"messages": messages, "large": {"text": "y" * 300 + str(step)}}, step + 1, **said)
        saver.put_writes(config, [("messages", [long(step + 1)]), ("other", "z" * 300 + str(step))], f"task {step}")
        configs.append(config)
    inner = thread("node:1", config["configurable"]["thread_id"])
    put(saver, inner, {"messages": [long(n) for n in range(20)]})
    old = saver.get_tuple(configs[3])
    assert old is not None
    put(saver, old.config, {"messages": [long(50)]}, 5, source="fork")
    return configs


def test_a_deleted_thread_leaves_no_row_behind(saver: CheckpointSaver) -> None:
    kept = grown(saver)
    before = rows(saver)
    gone = grown(saver)
    saver.delete_thread(gone[0]["configurable"]["thread_id"])
    assert rows(saver) == before
    saver.delete_thread(kept[0]["configurable"]["thread_id"])
    assert set(rows(saver).values()) == {0}


def test_writes_whose_checkpoint_never_came_go_with_their_thread(saver: CheckpointSaver) -> None:
    config: Any = {"configurable": {**thread()["configurable"], "checkpoint_id": "never"}}
    saver.put_writes(config, [("messages", [long(1)])], "task")
    saver.delete_thread(config["configurable"]["thread_id"])
    assert set(rows(saver).values()) == {0}


def test_deleted_runs_leave_no_row_behind(make: Make) -> None:
    saver = make()
    configs = grown(saver, run_id=["one", "two"])
    alive = [values(saver, config) for config in configs]
    saver.delete_for_runs(["one"])
    for number, config in enumerate(configs):
        found = make().get_tuple(config)
        assert (found is None) == (number % 2 == 0)
        assert found is None or found.checkpoint["channel_values"] == alive[number]
    assert rows(saver)["writes"] == 12
    saver.delete_for_runs(["two", "missing"])
    assert rows(saver)["writes"] == 0  # what is left has no run: the fork and the namespace
    saver.delete_thread(configs[0]["configurable"]["thread_id"])
    assert set(rows(saver).values()) == {0}


def test_a_thread_whose_newest_run_was_deleted_goes_on_from_what_is_left(make: Make) -> None:
    saver = make()
    first = put(saver, thread(), {"messages": [long(0)]}, run_id="one")
    second = put(saver, first, {"messages": [long(0), long(1)]}, 2, run_id="two")
    saver.delete_for_runs(["two"])
    assert saver.get_tuple(second) is None
    latest = thread(thread_id=first["configurable"]["thread_id"])
    for each in (saver, make()):
        found = each.get_tuple(latest)
        assert found is not None
        latest_values = found.checkpoint["channel_values"]["messages"]
        put(each, found.config, {"messages": [*latest_values, long(7)]}, 2)
        latest_values = [*latest_values, long(7)]
        assert values(make(), latest) == {"messages": latest_values}


def test_a_pruned_thread_keeps_its_heads_and_nothing_else(make: Make) -> None:
    saver = make()
    configs = grown(saver)
    latest = thread(thread_id=configs[0]["configurable"]["thread_id"])
    inner = thread("node:1", configs[0]["configurable"]["thread_id"])
    found, of_inner = values(saver, latest), values(saver, inner)
    saver.prune([latest["configurable"]["thread_id"]])
    assert (values(make(), latest), values(make(), inner)) == (found, of_inner)
    assert rows(saver) == {"spaces": 2, "checkpoints": 2, "writes": 0, "chunks": 1, "blobs": 21}
    with pytest.raises(ValueError, match="keep_latest, delete, got 'some'"):
        saver.prune([], strategy="some")


def test_a_put_during_a_pruning_keeps_what_it_refers_to(make: Make) -> None:
    config = put(make(), thread(), {"messages": [long(0)]})
    latest = thread(thread_id=config["configurable"]["thread_id"])
    done = threading.Event()

    def prune() -> None:
        while not done.is_set():
            make().prune([latest["configurable"]["thread_id"]])

    pruning = threading.Thread(target=prune)
    pruning.start()
    try:
        saver = make()
        for step in range(1, 10):
            saver.put_writes(config, [("messages", [long(step)])], "task")
            config = put(saver, config, {"messages": [long(n) for n in range(step + 1)]}, step + 1)
            assert len(values(make(), latest)["messages"]) == step + 1
    finally:
        done.set()
        pruning.join()


def test_writes_during_deletions_leave_no_row_behind(make: Make) -> None:
    config: Any = {"configurable": {**thread()["configurable"], "checkpoint_id": "first"}}
    thread_id = config["configurable"]["thread_id"]
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            make().delete_thread(thread_id)

    removing = threading.Thread(target=remove)
    removing.start()
    try:
        for step in range(20):
            make().put_writes(config, [("messages", [long(step)])], f"task {step}")
    finally:
        done.set()
        removing.join()
    make().delete_thread(thread_id)
    assert set(rows(make()).values()) == {0}


# Copies


def test_a_copy_has_everything_and_is_its_own(make: Make) -> None:
    saver = make()
    configs = grown(saver)
    source, target = configs[0]["configurable"]["thread_id"], uuid.uuid4().hex
    saver.copy_thread(source, target)
    copies = [each.checkpoint for each in make().list({"configurable": {"thread_id": target}})]
    assert copies == [each.checkpoint for each in saver.list({"configurable": {"thread_id": source}})]
    saver.delete_thread(source)
    assert [each.checkpoint for each in make().list({"configurable": {"thread_id": target}})] == copies
    with pytest.raises(ValueError, match="must be empty"):
        saver.copy_thread(source, target)


def test_the_shallow_copy_of_with_allowlist_shares_what_it_must(saver: CheckpointSaver) -> None:
    config = put(saver, thread(), {"messages": [long(0)], "thing": Thing(1)})
    assert values(saver, config)["thing"] == {"number": 1}
    clone = saver.with_allowlist([(Thing.__module__, "Thing")])
    assert clone is not saver
    assert isinstance(clone, CheckpointSaver)
    assert values(clone, config)["thing"] == Thing(1)
    then = put(clone, config, {"messages": [long(0), long(1)]}, 2)
    put(saver, then, {"messages": [long(0), long(1), long(2)]}, 3)
    assert len(values(clone, thread(thread_id=config["configurable"]["thread_id"]))["messages"]) == 3


@dataclass
class Thing:
    number: int


# Types and bytes


def test_a_type_is_restored_only_if_it_is_allowed(make: Make) -> None:
    config = put(make(), thread(), {"thing": Thing(1)}, thing=Thing(2))
    assert values(make(), config) == {"thing": {"number": 1}}
    assert values(make(allowed=[Thing]), config) == {"thing": Thing(1)}
    assert values(make(allowed=[(Thing.__module__, "Thing")]), config) == {"thing": Thing(1)}


def test_no_name_found_in_data_is_imported(saver: CheckpointSaver, tmp_path: Path) -> None:
    import ormsgpack

    from checkpoint.langgraph.refs import ref_of

    made = tmp_path / "made"
    for code in (0, 1, 2, 4, 5):
        argument: Any = {"command": f"touch {made}"} if code in (2, 4, 5) else f"touch {made}"
        forged = ormsgpack.packb(
            ormsgpack.Ext(code, ormsgpack.packb(("os", "system", [argument] if code == 1 else argument)))
        )
        assert saver._loads(b"\3" + forged) == ([argument] if code == 1 else argument)
    with pytest.raises(ThreadCorrupted, match="got 'pickle'"):
        saver._loads(b"\xff\6pickle" + b"cos\nsystem\n")
    with pytest.raises(ThreadCorrupted, match="got 'json'"):
        saver._loads(b'\xff\4json{"lc": 2, "type": "constructor", "id": ["os", "system"]}')
    assert ref_of(b"\3", {}) == b"\0\3"
    assert not made.exists()


def test_damaged_and_missing_bytes_are_named_and_never_become_state(make: Make) -> None:
    saver = make()
    tables = saver._tables
    config = put(saver, thread(), {"messages": [long(n) for n in range(20)]})
    damages: list[tuple[Any, str]] = [
        (update(tables.blobs).values(payload=b"\1\0 no such bytes"), "checksum"),
        (delete(tables.blobs), "is missing"),
        (delete(tables.chunks), "ends at 0"),
        (update(tables.checkpoints).values(body=b"nothing"), "corrupted"),
    ]
    for statement, reason in damages:
        with saver._store._engine.begin() as connection:
            connection.execute(statement)
        with pytest.raises(ThreadCorrupted, match=reason):
            make().get_tuple(config)


def test_an_old_message_that_was_changed_in_place_is_saved_where_it_is_recent(make: Make) -> None:
    saver = make()
    messages: list[dict[str, str]] = [{"text": long(n)} for n in range(20)]
    config = put(saver, thread(), {"messages": messages})
    messages[-2]["text"] = "changed"
    config = put(saver, config, {"messages": [*messages, {"text": long(20)}]}, 2)
    assert values(make(), config)["messages"] == [*messages, {"text": long(20)}]


# Cost


def test_a_put_is_one_statement_on_postgresql(postgres_url: str) -> None:
    with savers(postgres_url) as make:
        saver = make()
        config = put(saver, thread(), {"messages": [long(0)]})
        with statements(saver._store) as said:
            config = put(saver, config, {"messages": [long(0), long(1)], "other": "z" * 300}, 2)
        assert len(said) == 1
        with statements(saver._store) as said:
            saver.put_writes(config, [("messages", [long(1)]), ("other", 1)], "task")
        assert len(said) == 1


# Names


@pytest.mark.parametrize(
    "thread_id", ["a/b", "..", "*", "[a-z]%_", "x" * 10_000, "ключ", " a ", "A", "'; DROP TABLE x; --"]
)
def test_any_name_is_its_own_thread(saver: CheckpointSaver, thread_id: str) -> None:
    put(saver, thread(thread_id="a"), {"a": "other"})
    config = put(saver, thread(thread_id=thread_id), {"a": 1})
    found = saver.get_tuple(thread(thread_id=thread_id))
    assert found is not None
    assert (found.config, found.checkpoint["channel_values"]) == (config, {"a": 1})
    saver.delete_thread(thread_id)
    assert values(saver, thread(thread_id="a")) == {"a": "other"}


def test_a_name_that_cannot_be_stored_is_refused(saver: CheckpointSaver) -> None:
    with pytest.raises(ValueError, match="thread_id must have no NUL"):
        saver.get_tuple(thread(thread_id="a\0b"))
    with pytest.raises(ValueError, match="lone surrogates"):
        saver.get_tuple(thread(thread_id="\ud800"))
    with pytest.raises(ValueError, match="must have a thread_id"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(ValueError, match="at most 128 characters, got 129"):
        saver.get_tuple({"configurable": {"thread_id": "a", "checkpoint_id": "x" * 129}})
    with pytest.raises(ValueError, match="checkpoint_id on which the task runs"):
        saver.put_writes(thread(), [("a", 1)], "task")


def test_other_stores_and_permissive_serializers_are_refused(saver: CheckpointSaver) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    with pytest.raises(TypeError, match="store must be an SqlStore, got str; open one with"):
        CheckpointSaver("sqlite:///a.db")  # type: ignore[arg-type]
    for serde in (JsonPlusSerializer(allowed_msgpack_modules=True), JsonPlusSerializer(pickle_fallback=True)):
        with pytest.raises(ValueError, match="must not import whatever its data names"):
            CheckpointSaver(saver._store, serde=serde)
    with pytest.raises(ValueError, match="must not both be given"):
        CheckpointSaver(saver._store, allowed=[Thing], serde=JsonPlusSerializer(allowed_msgpack_modules=None))


def test_event_loops_and_threads_share_one_saver(saver: CheckpointSaver) -> None:
    async def one(number: int) -> Any:
        config = await asyncio.to_thread(put, saver, thread(), {"a": number})
        found = await saver.aget_tuple(config)
        assert found is not None
        return found.checkpoint["channel_values"]["a"]

    async def many() -> list[int]:
        return await asyncio.gather(*(one(number) for number in range(16)))

    assert asyncio.run(many()) == list(range(16))


def test_a_transaction_that_the_server_took_back_is_carried_out_again(make: Make) -> None:
    saver, tried = make(), []

    def work(connection: Connection) -> str:
        tried.append(connection)
        if len(tried) < 3:
            raise OperationalError("UPDATE", {}, pymysql.err.OperationalError(1213, "Deadlock found"))
        return "done"

    assert saver._change(work) == "done"
    assert len(tried) == 3


def test_another_error_is_raised_at_once(make: Make) -> None:
    saver, tried = make(), []

    def work(connection: Connection) -> None:
        tried.append(connection)
        raise OperationalError("UPDATE", {}, pymysql.err.OperationalError(2013, "Lost connection"))

    with pytest.raises(OperationalError, match="Lost connection"):
        saver._change(work)
    assert len(tried) == 1
