"""One statement that is a transaction of its own: built once, and sent in one round trip.

Only for PostgreSQL. Building a statement, finding it in a cache and describing its columns costs several times what
sending it does; here all of that happens once, and the driver gets text and a list.
"""

from __future__ import annotations

from collections import namedtuple
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Engine, Executable
    from typing_extensions import Self


class Single:
    """A statement that returns one row, or none if it found nothing to do.

    Args:
        statement: with a ``bindparam`` for whatever is not the same each time.
        engine: that it is sent through, of PostgreSQL.
    """

    def __init__(self, statement: Executable, engine: Engine) -> None:
        from psycopg import RawCursor  # an extra, which is there where there is such an engine
        from psycopg.types.numeric import Int8

        dialect: Any = type(engine.dialect)
        dialect = dialect(paramstyle="numeric_dollar")
        compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self._sql = str(compiled)
        self._names: tuple[str, ...] = tuple(compiled.positiontup)
        self._fixed = {name: _plain(value) for name, value in compiled.params.items() if value is not None}
        self._cursor: Any = RawCursor
        # By itself psycopg sends small numbers as smaller types, and the server prepares a statement for each mixture.
        self._int8 = Int8
        self._row: Any = None

    def run(self, borrowed: Borrowed, values: Mapping[str, Any]) -> Any:
        """Send it, outside of any transaction.

        Args:
            borrowed: the connection to send it through.
            values: of its parameters; one that is left out is NULL.

        Returns:
            The row, with an attribute for each column; None if there was none.

        Raises:
            DBAPIError: the database refused, or did not answer; nobody here can tell then whether it happened.
        """
        known = {**self._fixed, **values}
        found = map(known.get, self._names)
        parameters = [self._int8(value) if type(value) is int else value for value in found]
        with borrowed.sending(self._sql, parameters) as connection:
            connection.autocommit = True  # no word to the server
            cursor = self._cursor(connection)
            cursor.execute(self._sql, parameters, prepare=True)
            row = cursor.fetchone()
            connection.autocommit = False
        if row is None:
            return None
        if self._row is None:
            names = [column.name for column in cursor.description]
            self._row = namedtuple("Row", names)  # type: ignore[misc] # noqa: PYI024 - no field is known before
        return self._row._make(row)


class Borrowed:
    """A driver's connection, borrowed from an engine's pool for one statement.

    Args:
        engine: of PostgreSQL.

    Raises:
        DBAPIError: the database was not reached, so nothing was sent.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        try:
            self._pooled = engine.raw_connection()
        except Exception as error:
            said = self._translated("", [], error, None)
            if said is error:
                raise
            raise said from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pooled.close()

    @contextmanager
    def sending(self, sql: str, parameters: list[Any]) -> Iterator[Any]:
        """Lend the connection; one that anything went wrong on is thrown away."""
        connection: Any = self._pooled.dbapi_connection
        try:
            yield connection
        except BaseException as error:  # noqa: BLE001 - a time limit, say, in the middle of an answer
            said = self._translated(sql, parameters, error, connection)
            self._pooled.invalidate(error)
            if isinstance(said, DBAPIError) and said.connection_invalidated:
                self._engine.dispose()  # the other connections to this server are as old
            raise said from (error if said is not error else None)

    def _translated(self, sql: str, parameters: list[Any], error: BaseException, connection: Any) -> BaseException:
        """Return what SQLAlchemy would raise in the place of a driver's error."""
        dialect = self._engine.dialect
        driver: Any = dialect.dbapi
        if not isinstance(error, driver.Error):
            return error
        lost = dialect.is_disconnect(error, connection, None)
        return DBAPIError.instance(  # type: ignore[no-any-return]
            sql, parameters, error, driver.Error, connection_invalidated=lost, dialect=dialect, hide_parameters=True
        )


def _plain(value: Any) -> Any:
    """Return a word of an enumeration as the text that it is."""
    return str(value) if isinstance(value, str) else value
