"""What an SQL store does beyond the contract: the caller's transactions, damage, and how few statements it needs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, MetaData, String, Table, create_engine, event, insert, inspect, select, update

import checkpoint
from checkpoint import (
    CheckpointConflict,
    CheckpointCorrupted,
    CheckpointNotFound,
    CheckpointState,
    Position,
    SqlStore,
    UnknownStore,
    UnreadableValue,
    UnstorableValue,
    open_store,
)
from checkpoint.registry import registry

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'checkpoints.db'}"
    else:
        url = str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "mysql_url"))
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlStore:
    store = SqlStore(engine)
    store.create_schema()
    return store


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex}"


def state_at(run_id: str, seq: int, line: int = 0) -> CheckpointState:
    messages = [f"message {n}" for n in range(seq)]
    return CheckpointState(run_id, seq, f"step-{seq}", line, messages, {"seq": seq}, created_at=NOON)


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("BEGIN"):
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


# The caller's transaction


def test_a_save_in_the_callers_transaction_is_undone_with_it(store: SqlStore, engine: Engine, run_id: str) -> None:
    store.save(state_at(run_id, 0))
    with engine.connect() as connection:
        store.save(state_at(run_id, 1), connection=connection)
        assert store.head(run_id, connection=connection) == Position(run_id, 0, 1)
        connection.rollback()
    assert store.head(run_id) == Position(run_id, 0, 0)
    assert store.load_latest(run_id) == state_at(run_id, 0)


def test_after_a_rollback_other_content_may_be_saved(store: SqlStore, engine: Engine, run_id: str) -> None:
    store.save(state_at(run_id, 0))
    with engine.connect() as connection:
        for seq in (1, 2):
            store.save(replace(state_at(run_id, seq), messages=["undone"] * seq), connection=connection)
        connection.rollback()
    for seq in (1, 2):
        store.save(state_at(run_id, seq))
    assert store.load_latest(run_id) == state_at(run_id, 2)


def test_a_save_commits_with_the_callers_own_rows(store: SqlStore, engine: Engine, run_id: str) -> None:
    with engine.begin() as connection:
        for seq in range(3):
            store.save(state_at(run_id, seq), connection=connection)
    assert [store.load(run_id, seq) for seq in range(3)] == [state_at(run_id, seq) for seq in range(3)]


@pytest.mark.parametrize("seq", [0, 1, 7])
def test_a_conflict_leaves_the_callers_transaction_usable(
    store: SqlStore, engine: Engine, run_id: str, seq: int
) -> None:
    for number in range(2):
        store.save(state_at(run_id, number))
    stranger = SqlStore(engine)  # it has seen nothing of the run
    with engine.begin() as connection:
        with pytest.raises(CheckpointConflict):
            stranger.save(replace(state_at(run_id, seq), metadata={"other": True}), connection=connection)
        stranger.save(state_at(run_id, 2), connection=connection)
    assert store.load_latest(run_id) == state_at(run_id, 2)


def test_a_delete_in_the_callers_transaction_is_undone_with_it(store: SqlStore, engine: Engine, run_id: str) -> None:
    store.save(state_at(run_id, 0))
    with engine.connect() as connection:
        store.delete(run_id, connection=connection)
        assert store.load_latest(run_id, connection=connection) is None
        connection.rollback()
    assert store.load_latest(run_id) == state_at(run_id, 0)


def test_a_store_never_closes_the_callers_engine(store: SqlStore, engine: Engine, run_id: str) -> None:
    with engine.connect() as connection:
        store.close()
        assert engine.pool.checkedout() == 1
        store.save(state_at(run_id, 0), connection=connection)


def test_an_engine_that_begins_by_itself_is_respected(tmp_path: Path, run_id: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    store = SqlStore(engine)
    store.create_schema()
    store.save(state_at(run_id, 0))
    assert store.load_latest(run_id) == state_at(run_id, 0)
    engine.dispose()


# The schema


def test_the_schema_can_be_created_again_and_under_a_prefix(engine: Engine, run_id: str) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}_"
    store = SqlStore(engine, prefix)
    store.create_schema()
    store.create_schema()
    store.save(state_at(run_id, 0))
    names = {name for name in inspect(engine).get_table_names() if name.startswith(prefix)}
    assert names == {f"{prefix}heads", f"{prefix}checkpoints", f"{prefix}messages"}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)  # MySQL commits each change of a table
def test_the_schema_can_be_created_in_the_callers_transaction(engine: Engine) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}_"
    with engine.connect() as connection:
        connection.begin()
        if engine.dialect.name == "sqlite":  # its driver does not begin before DDL
            connection.exec_driver_sql("BEGIN")
        SqlStore(engine, prefix).create_schema(connection)
        connection.rollback()
    assert not [name for name in inspect(engine).get_table_names() if name.startswith(prefix)]


def test_several_processes_may_create_the_schema_at_once(engine: Engine) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}_"
    together = threading.Barrier(4)
    failures: list[BaseException] = []

    def create() -> None:
        own = create_engine(engine.url)
        try:
            together.wait(timeout=30)
            SqlStore(own, prefix).create_schema()
        except BaseException as error:  # noqa: BLE001  # shown below, in the test's own thread
            failures.append(error)
        finally:
            own.dispose()

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []


# Statements


def test_a_save_after_a_save_is_one_round_trip_on_postgresql(store: SqlStore, engine: Engine, run_id: str) -> None:
    store.save(state_at(run_id, 0))
    with counted(engine) as statements:
        store.save(state_at(run_id, 1))
        store.save(replace(state_at(run_id, 2), messages=["message 0"] * 50))
    assert len(statements) <= (3 if engine.dialect.name == "postgresql" else 7)  # the edit reads one list of links
    with counted(engine) as statements:
        store.save(replace(state_at(run_id, 3), messages=["message 0"] * 60))
    assert len(statements) == (1 if engine.dialect.name == "postgresql" else 3)


def test_a_load_by_the_process_that_saved_reads_no_message(store: SqlStore, engine: Engine, run_id: str) -> None:
    for seq in range(3):
        store.save(state_at(run_id, seq))
    with counted(engine) as statements:
        assert store.load_latest(run_id) == state_at(run_id, 2)
    assert len(statements) == 1


def test_a_load_by_another_process_reads_only_what_was_added(store: SqlStore, engine: Engine, run_id: str) -> None:
    other = SqlStore(engine)
    store.save(state_at(run_id, 0))
    for seq in range(1, 6):
        assert other.load_latest(run_id) == state_at(run_id, seq - 1)
        store.save(state_at(run_id, seq))
    with engine.begin() as connection:  # proof that the older ones are not read again
        messages = store.tables.messages
        connection.execute(
            update(messages).where(messages.c.run_id == run_id, messages.c.position == 1).values(payload=b"lost")
        )
    assert other.load_latest(run_id) == state_at(run_id, 5)


def test_a_snapshot_is_the_state_as_it_was_whatever_is_changed_afterwards(store: SqlStore, run_id: str) -> None:
    state = state_at(run_id, 0)
    state.agent_state["shared"] = state.agent_state["also"] = ["tea"]
    snapshot = store.snapshot(state)
    state.agent_state["shared"].append("milk")
    state.messages.append("later")
    one, other = snapshot.state(), snapshot.state()
    one.agent_state["shared"].append("sugar")
    assert other.agent_state == {"seq": 0, "shared": ["tea"], "also": ["tea"]}
    store.save(snapshot)
    store.save(snapshot)
    assert store.load_latest(run_id) == other
    assert snapshot.seq == 0


def test_a_snapshot_of_what_cannot_be_stored_is_refused(store: SqlStore, run_id: str) -> None:
    with pytest.raises(UnstorableValue, match="agent_state"):
        store.snapshot(CheckpointState(run_id, 0, agent_state={"thing": object()}))


def append_all(store: SqlStore, engine: Engine, states: list[CheckpointState]) -> bool:
    """Append states in one statement of PostgreSQL; False if it would not."""
    append = store.plan_appends([store.snapshot(state) for state in states])
    if append is None:
        return False
    heads = store.tables.heads
    moved, *rows = store.append_parts(select(heads.c.run_id).cte("guard"), several=True)
    with engine.begin() as connection:
        found = connection.execute(select(moved.c.run_id).add_cte(*rows), append.parameters).all()
    if found:
        store.appended(append)
    return bool(found)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_several_checkpoints_in_one_statement_are_what_as_many_saves_write(engine: Engine, run_id: str) -> None:
    rows = []
    for prefix in ("saved_", "appended_"):
        store = SqlStore(engine, prefix)
        store.create_schema()
        for seq in (0, 1):
            store.save(state_at(run_id, seq))
        if prefix == "saved_":
            for seq in (2, 3, 4):
                store.save(state_at(run_id, seq))
        else:
            assert append_all(store, engine, [state_at(run_id, seq) for seq in (2, 3, 4)])
        store.save(state_at(run_id, 5))
        other = SqlStore(engine, prefix)
        assert [other.load(run_id, seq) for seq in range(6)] == [state_at(run_id, seq) for seq in range(6)]
        with engine.connect() as connection:
            tables = store.metadata.sorted_tables
            rows.append([sorted(map(tuple, connection.execute(select(table)))) for table in tables])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_several_checkpoints_are_appended_to_the_head_that_was_seen_or_not_at_all(
    store: SqlStore, engine: Engine, run_id: str
) -> None:
    for seq in (0, 1):
        store.save(state_at(run_id, seq))
    edited = replace(state_at(run_id, 3), messages=["another", "message 1", "message 2"])
    assert not append_all(store, engine, [state_at(run_id, 2), edited])
    assert not append_all(store, engine, [state_at(run_id, 3), state_at(run_id, 4)])
    assert not append_all(store, engine, [state_at(f"{run_id}-unseen", 1)])
    SqlStore(engine).save(state_at(run_id, 2))
    assert not append_all(store, engine, [state_at(run_id, 2), state_at(run_id, 3)])
    assert store.head(run_id) == Position(run_id, 0, 2)


def test_heads_can_be_joined_to_the_callers_tables(store: SqlStore, engine: Engine, run_id: str) -> None:
    runs = Table(f"runs_{uuid.uuid4().hex[:8]}", MetaData(), Column("run_id", String(255), primary_key=True))
    for seq in range(3):
        store.save(state_at(run_id, seq))
    latest = store.heads_query().subquery()
    with engine.begin() as connection:
        runs.create(connection)
        connection.execute(insert(runs), [{"run_id": run_id}, {"run_id": "no-checkpoint"}])
        joined = select(runs, latest).outerjoin_from(runs, latest, latest.c.head_run_id == runs.c.run_id)
        row = connection.execute(joined.where(runs.c.run_id == run_id)).one()
        assert store.state_of(row, connection) == state_at(run_id, 2)
        assert SqlStore(engine).state_of(row, connection) == state_at(run_id, 2)
        nothing = connection.execute(joined.where(runs.c.run_id == "no-checkpoint")).one()
        assert nothing.head_run_id is None
        runs.drop(connection)


# Damage


def tamper(store: SqlStore, engine: Engine, run_id: str, table: str, where: dict[str, Any], **values: Any) -> None:
    target = getattr(store.tables, table)
    matching = [target.c.run_id == run_id, *(target.c[name] == value for name, value in where.items())]
    with engine.begin() as connection:
        done = connection.execute(update(target).where(*matching).values(**values))
    assert done.rowcount == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("head", b""),
        ("head", checkpoint.dumps([{"seq": 99}, {}])),
        ("checksum", bytes(16)),
        ("chain", bytes(16)),
        ("segments", b"\x91\x92\x00\x01"),
        ("segments", b"nonsense"),
        ("parent_line", 5),
        ("step", "another"),
        ("version", 2),
        ("created_at", 0),
        ("message_count", 1),
    ],
)
def test_a_changed_checkpoint_never_becomes_state(
    engine: Engine, store: SqlStore, run_id: str, caplog: pytest.LogCaptureFixture, column: str, value: Any
) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, "checkpoints", {"seq": 3}, **{column: value})
    for reader in (store, SqlStore(engine)):
        with pytest.raises(CheckpointCorrupted, match=rf"line 0, seq 3\) of run '{run_id}' is corrupted"):
            reader.load(run_id, 3)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="checkpoint"):
            assert reader.load_latest(run_id) == state_at(run_id, 2)
        assert "line 0, seq 3" in caplog.text
        assert "fell back to (line 0, seq 2)" in caplog.text


def test_a_row_moved_to_another_place_never_becomes_state(engine: Engine, store: SqlStore, run_id: str) -> None:
    other = f"{run_id}-other"
    for seq in range(2):
        store.save(state_at(run_id, seq))
        store.save(replace(state_at(other, seq), agent_state={"seq": "other"}))
    with engine.connect() as connection:
        table = store.tables.checkpoints
        moved = connection.execute(select(table).where(table.c.run_id == other, table.c.seq == 1)).one()._asdict()
    del moved["run_id"]
    tamper(store, engine, run_id, "checkpoints", {"seq": 1}, **moved)
    with pytest.raises(CheckpointCorrupted, match="does not match its checksum"):
        store.load(run_id, 1)


def test_a_head_without_its_checkpoint_falls_back(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(3):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, "checkpoints", {"seq": 2}, seq=77)
    assert store.load_latest(run_id) == state_at(run_id, 1)


@pytest.mark.parametrize("values", [{"payload": b""}, {"payload": checkpoint.dumps("forged")}, {"position": 99}])
def test_a_changed_or_lost_message_spoils_only_the_checkpoints_that_hold_it(
    engine: Engine, store: SqlStore, run_id: str, caplog: pytest.LogCaptureFixture, values: dict[str, Any]
) -> None:
    for seq in range(8):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, "messages", {"position": 3}, **values)
    fresh = SqlStore(engine)
    with pytest.raises(CheckpointCorrupted, match="seq 5"):
        fresh.load(run_id, 5)
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        assert fresh.load_latest(run_id) == state_at(run_id, 3)
    assert "seq 7" in caplog.text
    assert "fell back to (line 0, seq 3)" in caplog.text


def test_a_fallback_follows_the_heads_ancestry_over_lines(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    store.save(state_at(run_id, 2, line=1))
    tamper(store, engine, run_id, "checkpoints", {"seq": 2, "line": 1}, step="x")
    assert store.load_latest(run_id) == state_at(run_id, 1)


@pytest.mark.parametrize("column", ["segments", "ancestry"])
def test_a_damaged_head_row_is_an_error_of_its_own(engine: Engine, store: SqlStore, run_id: str, column: str) -> None:
    store.save(state_at(run_id, 0))
    tamper(store, engine, run_id, "heads", {}, **{column: b"nonsense"})
    for read in (store.load_latest, store.head, lambda run_id: store.load(run_id, 0)):
        with pytest.raises(CheckpointCorrupted, match="the row of its head"):
            read(run_id)
    assert store.load(run_id, 0, line=0) == state_at(run_id, 0)


def test_after_a_fallback_a_new_line_goes_on(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, "messages", {"position": 2}, payload=b"lost")
    fresh = SqlStore(engine)
    found = fresh.load_latest(run_id)
    assert found == state_at(run_id, 2)
    fresh.save(state_at(run_id, 3, line=1))
    assert SqlStore(engine).load_latest(run_id) == state_at(run_id, 3, line=1)


@pytest.mark.parametrize(
    ("table", "where", "values"),
    [
        ("checkpoints", {"seq": 2}, {"segments": b"\x91\x92\x05\x02"}),
        ("checkpoints", {"seq": 2}, {"segments": b"nonsense"}),
        ("messages", {"position": 1}, {"payload": b"lost"}),
    ],
    ids=["pointer", "broken pointer", "message"],
)
def test_a_new_line_never_stands_on_damage(
    engine: Engine, store: SqlStore, run_id: str, table: str, where: dict[str, Any], values: dict[str, Any]
) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, table, where, **values)
    with pytest.raises(CheckpointCorrupted, match=r"line 0, seq 2\)"):
        store.save(state_at(run_id, 3, line=1))
    assert store.head(run_id) == Position(run_id, 0, 3)
    store.save(state_at(run_id, 2, line=1))
    assert SqlStore(engine).load_latest(run_id) == state_at(run_id, 2, line=1)


def test_a_run_whose_checkpoints_all_fail_says_so(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(3):
        store.save(state_at(run_id, seq))
        tamper(store, engine, run_id, "checkpoints", {"seq": seq}, step="x")
    with pytest.raises(CheckpointCorrupted, match=r"seq 2\).*and no older one verifies"):
        store.load_latest(run_id)


def test_missing_code_is_no_damage_and_nothing_older_is_taken(
    store: SqlStore, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part:
        pass

    monkeypatch.setattr(registry, "_by_class", dict(registry._by_class))
    monkeypatch.setattr(registry, "_by_tag", dict(registry._by_tag))
    part = Part()
    checkpoint.register("test.Part", Part, to_data=lambda _: 1, from_data=lambda _: part)
    store.save(state_at(run_id, 0))
    store.save(replace(state_at(run_id, 1), agent_state={"part": part}))
    registry._by_tag.clear()
    registry._by_class.clear()
    checkpoint.register("test.Part", Part, to_data=lambda _: 1, from_data=lambda data: 1 / (data - data))
    with pytest.raises(UnreadableValue, match=r"'test.Part' \(version 1\) cannot be read: ZeroDivisionError"):
        store.load_latest(run_id)


def test_whole_bytes_that_the_codec_did_not_write_are_damage(
    engine: Engine, store: SqlStore, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state_at(run_id, 0))
    monkeypatch.setattr("checkpoint.record.encode", lambda *_, **__: b"\x01")
    store.save(CheckpointState(run_id, 1))
    monkeypatch.undo()
    with pytest.raises(CheckpointCorrupted, match="a head must be a list of two dicts"):
        store.load(run_id, 1)
    assert store.load_latest(run_id) == state_at(run_id, 0)


def test_a_large_head_is_warned_about_with_its_largest_keys(
    store: SqlStore, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="checkpoint"):
        store.save(CheckpointState(run_id, 0, agent_state={"report": "x" * 70_000, "small": 1}))
    assert f"the head of run '{run_id}' at seq 0 takes 70" in caplog.text
    assert "agent_state['report'] 70" in caplog.text


# URLs


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgres://u:hidden@h/d", "did you mean postgresql://user@host/database"),
        ("sqlit:///a.db", "did you mean sqlite:///agent.db"),
        ("postgresql+psycop://h/d", r"did you mean postgresql\+psycopg://"),
        ("gopher://h/d", "schemes are sqlite, postgresql"),
        ("agent.db", "a URL looks like sqlite:///agent.db"),
        ("sqlite://", "it names no file and would forget everything"),
        ("sqlite:///:memory:", "it names no file and would forget everything"),
    ],
)
def test_a_url_of_no_store_is_refused_with_the_nearest(url: str, hint: str) -> None:
    with pytest.raises(UnknownStore, match=hint) as refused:
        open_store(url)
    assert "hidden" not in str(refused.value)


def test_an_engine_of_another_database_is_refused() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with pytest.raises(ValueError, match="engine must be for postgresql, sqlite, mysql or mariadb, got oracle"):
        SqlStore(engine)
    engine.dispose()


# -- what a next checkpoint would follow ----------------------------------------------------------------------------------


def test_what_a_save_would_follow_is_the_head_or_where_a_new_line_begins(store: SqlStore, run_id: str) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    assert store.load_parent_of(Position(run_id, 0, 4)) == state_at(run_id, 3)
    assert store.load_parent_of(Position(run_id, 1, 3)) == state_at(run_id, 2)
    store.save(state_at(run_id, 3, line=1))
    assert store.load_parent_of(Position(run_id, 1, 4)) == state_at(run_id, 3, line=1)
    assert store.load_parent_of(Position(run_id, 2, 4)) == state_at(run_id, 3, line=1)
    assert store.load_parent_of(Position(run_id, 2, 2)) == state_at(run_id, 1)


@pytest.mark.parametrize(("line", "seq"), [(0, 2), (0, 4), (1, 6), (0, 6)])
def test_nothing_is_found_for_a_save_that_would_be_refused(store: SqlStore, run_id: str, line: int, seq: int) -> None:
    for number in range(4):
        store.save(state_at(run_id, number))
    store.save(state_at(run_id, 2, line=1))
    with pytest.raises(CheckpointNotFound, match="its head is at line 1, seq 2"):
        store.load_parent_of(Position(run_id, line, seq))
    with pytest.raises(CheckpointNotFound, match="no checkpoint at all"):
        store.load_parent_of(Position(f"{run_id}-other", line, seq))


def test_a_line_never_begins_from_what_only_this_process_remembers(
    engine: Engine, store: SqlStore, run_id: str
) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    tamper(store, engine, run_id, "messages", {"position": 1}, payload=b"lost")
    with pytest.raises(CheckpointCorrupted, match="message 1"):
        store.load_parent_of(Position(run_id, 1, 3))
    assert store.load_before(run_id, 3) == state_at(run_id, 1)


def test_the_newest_before_a_number_follows_the_heads_ancestry(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    store.save(state_at(run_id, 2, line=1))
    assert store.load_before(run_id, 9) == state_at(run_id, 2, line=1)
    assert store.load_before(run_id, 2) == state_at(run_id, 1)
    assert store.load_before(run_id, 0) is None
    assert store.load_before(f"{run_id}-other", 5) is None
    tamper(store, engine, run_id, "checkpoints", {"seq": 0}, step="x")
    assert store.load_before(run_id, 1) is None


def test_ancestors_are_the_checkpoints_that_the_head_stands_on(engine: Engine, store: SqlStore, run_id: str) -> None:
    for seq in range(4):
        store.save(state_at(run_id, seq))
    store.save(state_at(run_id, 2, line=1))
    store.save(state_at(run_id, 3, line=1))

    def ancestors(seq: int, limit: int) -> list[tuple[int, int]]:
        return [(made.line, made.seq) for made in store.ancestors(run_id, seq, limit)]

    assert ancestors(9, 9) == [(1, 3), (1, 2), (0, 1), (0, 0)]
    assert ancestors(2, 2) == [(1, 2), (0, 1)]
    assert ancestors(-1, 3) == []
    assert list(store.ancestors(f"{run_id}-other", 3, 3)) == []
    with engine.connect() as connection, connection.begin():
        table = store.tables.checkpoints
        connection.execute(table.delete().where(table.c.run_id == run_id, table.c.seq == 1))
    assert ancestors(3, 9) == [(1, 3), (1, 2), (0, 0)]
