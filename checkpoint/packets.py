"""The longest statement that a server of MySQL's takes: refused here, where the server would cut the connection.

A connection that is cut looks like a server that is away, and the statement would be sent again for as long as anybody waits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

#: The greatest number of bytes that UTF-8 has for a character.
_BYTES_OF_A_CHARACTER = 4


def bound_statements(connection: Any, limit: int) -> None:
    """Let the cursors of a connection of PyMySQL refuse what is longer than the server takes.

    Args:
        connection: of PyMySQL; its cursors raise its ``DataError`` from here on, and send nothing.
        limit: ``max_allowed_packet`` of its session, in bytes.
    """
    connection.max_allowed_packet = limit
    connection.cursorclass = _bounded(connection.cursorclass)


@cache
def _bounded(kind: Any) -> Any:
    def execute(self: Any, query: Any, args: Any = None) -> Any:
        statement = self.mogrify(query, args)
        _check(self.connection, statement)
        return kind.execute(self, statement)

    return type(kind.__name__, (kind,), {"execute": execute, "__module__": kind.__module__})


def _check(connection: Any, statement: str | bytes | bytearray) -> None:
    limit, length = connection.max_allowed_packet, len(statement)
    if isinstance(statement, str) and length * _BYTES_OF_A_CHARACTER >= limit:
        length = len(statement.encode(connection.encoding, "surrogateescape"))
    if length + 1 >= limit:  # with the byte that says what it is
        raise connection.DataError(
            f"a statement of {length} bytes, and the server takes less than {limit} (max_allowed_packet, in which bytes count twice)"
        )
