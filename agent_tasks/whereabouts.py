"""Which database a connection leads to: a caller's connection has to lead to the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import text

from agent_tasks.errors import TransactionUnusable
from checkpoint.mysql import is_mysql

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from agent_tasks.runtime import Runtime

#: Two names may stand for one server, and one name for two schemas: asked for is the server's start, and the number of the
#: table itself.
_POSTGRESQL = """
    SELECT extract(epoch FROM pg_postmaster_start_time())::text, current_database(), to_regclass(:table)::oid::bigint
"""

#: The same of MySQL or MariaDB, of which only newer servers have a number of their own.
_MYSQL = "SHOW VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port', 'datadir')"

#: Of each ledger, as it was last found.
_known: WeakKeyDictionary[Engine, tuple[str | None, ...]] = WeakKeyDictionary()


def check_same_database(connection: Connection, runtime: Runtime) -> None:
    """Refuse a connection that does not lead to a runtime's ledger.

    Raises:
        TransactionUnusable: it leads elsewhere.
        LedgerUnavailable: the ledger did not answer.
    """
    engine, table = runtime.engine, runtime.tables.runs.name
    here, there = ("mysql" if is_mysql(bind) else bind.dialect.name for bind in (connection, engine))
    if here != there:
        raise TransactionUnusable(
            f"the connection leads to {here}, and the ledger is on {there} ({_shown(engine)}): a run cannot be part of its "
            "transaction. Keep both in one database, or enqueue without a connection."
        )
    found = _whereabouts(connection, table)
    if _known.get(engine) != found:  # not asked yet, or the server was started again
        _known[engine] = runtime.boundary.read(engine, lambda own: _whereabouts(own, table))
    if found != _known[engine]:
        missing = here == "postgresql" and found[-1] is None
        said = f"has no table {table!r} on its search_path" if missing else "leads to another database"
        raise TransactionUnusable(
            f"the connection {said}, and the ledger is at {_shown(engine)}: a run cannot be part of its transaction. Let "
            "agent_database_url (in Django: agent_django_database) name the connection's database and schema, or enqueue "
            "without a connection."
        )


def _whereabouts(connection: Connection, table: str) -> tuple[str | None, ...]:
    if connection.dialect.name == "postgresql":
        return tuple(
            None if part is None else str(part)
            for part in connection.execute(text(_POSTGRESQL), {"table": table}).one()
        )
    if is_mysql(connection):
        database = connection.exec_driver_sql("SELECT DATABASE()").scalar_one()
        return (
            database,
            *(f"{name}={value}" for name, value in sorted(map(tuple, connection.exec_driver_sql(_MYSQL)))),
        )
    files = {row[1]: row[2] for row in connection.exec_driver_sql("PRAGMA database_list")}
    return (str(Path(files["main"]).resolve()) if files["main"] else None,)


def _shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
