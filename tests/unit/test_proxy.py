"""The proxy before PostgreSQL: a commit whose answer is lost was carried out, and silence looks like an open connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy

from tests.proxy import Fault, Proxy, proxied


@pytest.fixture
def wired(postgres_database: Callable[[], str]) -> Iterator[tuple[Proxy, Callable[..., psycopg.Connection], str]]:
    url = postgres_database()
    direct = url.replace("+psycopg", "")
    with psycopg.connect(direct, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    with proxied(url) as (proxy, through):
        yield proxy, lambda **limits: psycopg.connect(through.replace("+psycopg", ""), **limits), url


def notes(url: str) -> list[str]:
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        return [text for (text,) in connection.exec_driver_sql("SELECT text FROM notes ORDER BY text")]


def test_an_answer_is_cut_off_after_the_commit_that_is_meant(
    wired: tuple[Proxy, Callable[..., psycopg.Connection], str],
) -> None:
    proxy, connect, url = wired
    fault = proxy.plan(Fault("cut", b"INSERT INTO notes", b"mine", nth=2))
    with connect() as connection:
        for text in ("mine 1", "other"):
            connection.execute("INSERT INTO notes VALUES (%s)", [text])
            connection.commit()
        connection.execute("INSERT INTO notes VALUES (%s)", ["mine 2"])
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert fault.met.is_set()
    assert notes(url) == ["mine 1", "mine 2", "other"]
    with connect() as connection:
        connection.execute("SELECT 1")  # it struck once


def test_a_connection_that_falls_silent_is_given_up_by_the_limits_of_tcp(
    wired: tuple[Proxy, Callable[..., psycopg.Connection], str],
) -> None:
    proxy, connect, url = wired
    proxy.plan(Fault("swallow", b"INSERT INTO notes"))
    limits = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 1, "tcp_user_timeout": 2000}
    with connect(**limits) as connection:
        connection.execute("INSERT INTO notes VALUES ('kept')")
        with pytest.raises(psycopg.OperationalError, match="timed out"):
            connection.commit()
    assert notes(url) == ["kept"]
