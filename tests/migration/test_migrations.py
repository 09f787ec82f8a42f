"""Migrations: from nothing to exactly the tables that the code works with, once, whoever else migrates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, inspect, select

from agent_tasks import migrate
from agent_tasks.database import open_engine
from agent_tasks.errors import LedgerUnavailable
from agent_tasks.migrate import newest, revision, upgrade
from agent_tasks.schema import PROTOCOL, tables
from checkpoint.sql import SqlStore
from tests.one_process import OneProcess
from tests.questions import unknown

#: What this is about is done with other statements on MariaDB.
pytestmark = pytest.mark.mariadb


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


def expected(engine: Engine, prefix: str = "agent_") -> MetaData:
    """The tables that the code works with, the checkpoints' among them."""
    together = MetaData()
    for metadata in (tables(prefix).metadata, SqlStore(engine, prefix=f"{prefix}checkpoint_").metadata):
        for table in metadata.sorted_tables:
            table.to_metadata(together)
    return together


def differences(engine: Engine, prefix: str = "agent_") -> list[Any]:
    with engine.connect() as connection:
        options = {"version_table": f"{prefix}version", "compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), expected(engine, prefix))


def shape(engine: Engine, prefix: str) -> dict[str, Any]:
    """What the database says about the tables of a prefix, without the prefix."""
    looker = inspect(engine)

    def bare(facts: Any) -> str:
        return str(facts).replace(prefix, "")

    return {
        bare(name): (
            [bare(column) for column in looker.get_columns(name)],
            bare(looker.get_pk_constraint(name)["constrained_columns"]),
            sorted(map(bare, looker.get_indexes(name))),
            sorted(map(bare, looker.get_unique_constraints(name))),
        )
        for name in looker.get_table_names()
        if name.startswith(prefix) and name != f"{prefix}version"
    }


def test_an_upgrade_from_nothing_gives_exactly_the_tables_of_the_code(engine: Engine) -> None:
    assert revision(engine) is None
    assert upgrade(engine) == revision(engine) == newest()
    assert differences(engine) == []
    assert set(inspect(engine).get_table_names()) == {*expected(engine).tables, "agent_version"}


def test_migrated_tables_are_like_created_ones_down_to_the_partial_index(engine: Engine) -> None:
    upgrade(engine)
    expected(engine, "fresh_").create_all(engine)
    assert shape(engine, "agent_") == shape(engine, "fresh_")


def test_a_difference_would_be_seen(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("ALTER TABLE agent_runs ADD COLUMN forgotten INTEGER")
        on_table = " ON agent_runs" if engine.dialect.name == "mysql" else ""
        connection.exec_driver_sql(f"DROP INDEX agent_runs_due{on_table}")
    assert {change[0] for change in differences(engine)} == {"remove_column", "add_index"}


def test_a_second_upgrade_changes_nothing(database_url: str, engine: Engine) -> None:
    upgrade(engine)
    before = shape(engine, "agent_")
    assert upgrade(database_url) == newest()
    assert shape(engine, "agent_") == before


@pytest.mark.parametrize("server", ["postgres_database", "mysql_database"])
def test_an_upgrade_waits_in_short_tries_for_a_table_that_a_transaction_uses_and_says_so(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(request.getfixturevalue(server)())
    upgrade(engine)
    with engine.begin() as connection:  # the ledger of the release before
        connection.exec_driver_sql("ALTER TABLE agent_operations DROP COLUMN progress")
        connection.exec_driver_sql("UPDATE agent_version SET version_num = '0003'")
    monkeypatch.setattr(migrate, "_TABLE_TRIES", 2)
    monkeypatch.setattr(migrate, "_TABLE_SECONDS", 1)
    with engine.connect() as user, user.begin():
        user.exec_driver_sql("SELECT count(*) FROM agent_operations")
        with pytest.raises(
            LedgerUnavailable, match=r"used in a transaction that does not end, .* waited for it 2 times"
        ):
            upgrade(engine)
        assert revision(engine) == "0003"
    assert upgrade(engine) == newest()
    assert differences(engine) == []
    engine.dispose()


def test_an_upgrade_keeps_every_row(database_url: str) -> None:
    here = OneProcess(database_url)
    unknown(here)
    before = rows(here)
    upgrade(database_url)
    assert rows(here) == before
    here.close()


def test_a_run_of_another_protocol_is_left_as_it_is(database_url: str) -> None:
    here = OneProcess(database_url)
    agent = here.agent(send=lambda _state: None)
    table = here.runtime.tables.runs
    for run_id, protocol in (("older", PROTOCOL - 1), ("newer", PROTOCOL + 1)):
        agent.enqueue({}, run_id=run_id)
        with here.runtime.engine.connect() as connection, connection.begin():
            connection.execute(table.update().where(table.c.run_id == run_id).values(protocol=protocol))
    here.runtime.bell.rings.clear()
    before = rows(here)
    upgrade(database_url)
    assert rows(here) == before
    here.close()


def test_another_prefix_has_tables_and_a_version_of_its_own(engine: Engine) -> None:
    upgrade(engine, "shop_")
    assert (revision(engine, "shop_"), revision(engine)) == (newest(), None)
    assert set(inspect(engine).get_table_names()) == {*expected(engine, "shop_").tables, "shop_version"}
    upgrade(engine)
    assert shape(engine, "agent_") == shape(engine, "shop_")


def test_of_several_processes_at_once_one_migrates_and_all_succeed(database_url: str, engine: Engine) -> None:
    # Each waits for a line on stdin once it has imported everything, so that all of them begin together.
    program = (
        "import sys; from agent_tasks.migrate import upgrade; print('ready', flush=True); sys.stdin.readline();"
        "print(upgrade(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert answers == [(f"{newest()}\n", "")] * len(processes)
    assert differences(engine) == []


def rows(here: OneProcess) -> dict[str, list[tuple[Any, ...]]]:
    with here.runtime.engine.connect() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in expected(here.runtime.engine).tables.items()
        }
