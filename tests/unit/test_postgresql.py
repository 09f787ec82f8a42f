"""PostgreSQL as a URL names it: which options it takes, which databases will do, and what a connection is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from agent_tasks import done
from agent_tasks.database import open_engine
from agent_tasks.errors import ConfigurationError
from agent_tasks.migrate import upgrade
from agent_tasks.states import RunStatus
from checkpoint import CheckpointState, UnknownStore, UnsuitableServer, open_store
from tests.one_process import OneProcess

WRONG = [
    (
        "prepare_treshold=0",
        r"an option that psycopg does not know: prepare_treshold\. .* Did you mean 'prepare_threshold'\?",
    ),
    ("sslmod=require", r"an option that psycopg does not know: sslmod\. .* Did you mean 'sslmode'\?"),
    ("autocommit=1&row_factory=x", r"an option that psycopg does not know: autocommit, row_factory\. Leave it out"),
    ("ssl_ca=ca.pem", r"an option that psycopg does not know: ssl_ca\."),
    ("prepare_threshold=often", r"prepare_threshold='often', which must be a whole number, or None"),
    ("prepare_threshold=-1", r"prepare_threshold='-1', which must be a whole number, or None"),
    ("prepare_threshold=1&prepare_threshold=2", r"prepare_threshold=\('1', '2'\), which must be"),
]


@pytest.mark.parametrize(("options", "why"), WRONG)
def test_an_option_that_psycopg_cannot_take_is_refused_before_anything_connects(options: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^agent_database_url has {why}"):
        open_engine(f"postgresql://kim@no-such-host.invalid/agents?{options}")
    with pytest.raises(UnknownStore, match=f"it has {why}"):
        open_store(f"postgresql://kim@no-such-host.invalid/agents?{options}")


@pytest.mark.parametrize("threshold", ["0", "3", "None", "none"])
def test_when_statements_are_prepared_is_said_in_the_url(postgres_database: Callable[[], str], threshold: str) -> None:
    here = OneProcess(f"{postgres_database()}?prepare_threshold={threshold}")
    assert here.run(here.agent(create=lambda _state: done("made"))).status is RunStatus.SUCCEEDED
    with here.runtime.engine.connect() as connection:
        prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
    assert bool(prepared) is (threshold.lower() != "none")
    here.close()
    with open_store(here.url, prefix="own_") as store:
        store.save(CheckpointState("run-1", 0))


def test_what_notices_a_dead_server_is_the_urls_own_where_it_says_so(postgres_database: Callable[[], str]) -> None:
    engine = open_engine(f"{postgres_database()}?connect_timeout=7&keepalives_idle=90")
    with engine.connect() as connection:
        told = connection.connection.driver_connection.info.get_parameters()
    engine.dispose()
    assert {name: told[name] for name in ("connect_timeout", "keepalives_idle", "keepalives_count")} == {
        "connect_timeout": "7",
        "keepalives_idle": "90",
        "keepalives_count": "2",
    }


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_are_sent_as_utf_8_whatever_the_role_or_the_url_says(
    postgres_database: Callable[[], str], encoding: str
) -> None:
    url = make_url(postgres_database())
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {url.database} SET client_encoding = '{encoding}'")
    for query in ({}, {"client_encoding": encoding}, {"options": f"-c client_encoding={encoding}"}):
        here = OneProcess(url.set(query=query).render_as_string(hide_password=False))
        agent = here.agent(create=lambda state: done(state["wer"]))
        run = here.run(agent, run_id=f"мила {query}", wer="Łukasz 😀")
        assert (run.status, run.get(timeout=0)) == (RunStatus.SUCCEEDED, "Łukasz 😀")
        here.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_has_no_place_for_every_letter_is_refused(
    postgres_database: Callable[[], str], encoding: str
) -> None:
    url = make_url(postgres_database())
    name = f"{url.database}_other"
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        try:
            other = url.set(database=name).render_as_string(hide_password=False)
            with pytest.raises(
                ConfigurationError, match=f"keeps texts as {encoding}, .* ENCODING 'UTF8' TEMPLATE template0"
            ):
                upgrade(other)
            with pytest.raises(UnsuitableServer, match=f"keeps texts as {encoding}"):
                open_store(other)
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
