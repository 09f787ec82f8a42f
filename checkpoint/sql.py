"""The SQL store: PostgreSQL, SQLite and MySQL or MariaDB, in the caller's transaction or its own."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, delete, func, select, text, tuple_
from sqlalchemy.exc import DataError

from checkpoint.ancestry import line_of
from checkpoint.cache import RunCache
from checkpoint.columns import MYSQL
from checkpoint.errors import CheckpointCorrupted, CheckpointNotFound, UnstorableValue
from checkpoint.falling_back import newest_before, newest_usable
from checkpoint.mysql import alone, is_mysql
from checkpoint.reader import Reader, tip_of
from checkpoint.record import encode_state, moment
from checkpoint.snapshot import Snapshot
from checkpoint.state import CheckpointState, CheckpointSummary, Position
from checkpoint.tables import build_tables
from checkpoint.verifying import Damage
from checkpoint.writer import Append, Writer, append_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import CTE, Connection, Engine, FromClause, Row, Select
    from typing_extensions import Self

    from checkpoint.falling_back import HealthCheck, Reading
    from checkpoint.record import Record
    from checkpoint.tables import Tables
    from checkpoint.tip import Tip

_PAGE_ROWS = 200  # of a list of checkpoints; no connection is held while the caller looks at a page


@cache
def tables_of(prefix: str) -> Tables:
    """Return the tables of a prefix: the same ones for each store, so that statements on them are built once."""
    return build_tables(MetaData(), prefix)


class SqlStore:
    """Checkpoints in an SQL database.

    Safe to share between threads. After a fork a child may go on using it, once it has called
    ``engine.dispose(close=False)``.

    Args:
        engine: The caller's engine, for PostgreSQL, SQLite, MySQL or MariaDB; the store never disposes of it.
        prefix: What the tables' names begin with.

    Raises:
        ValueError: The engine is for another database.

    Example:
        >>> from sqlalchemy import create_engine
        >>> from checkpoint import CheckpointState, SqlStore
        >>> engine = create_engine("sqlite:///" + directory + "/agent.db")
        >>> store = SqlStore(engine)
        >>> store.create_schema()
        >>> store.save(CheckpointState("order-7", 0, agent_state={"cart": ["tea"]}))
        >>> store.load_latest("order-7").agent_state
        {'cart': ['tea']}
        >>> engine.dispose()
    """

    def __init__(self, engine: Engine, prefix: str = "checkpoint_") -> None:
        dialect = engine.dialect.name
        if dialect not in ("postgresql", "sqlite", *MYSQL):
            raise ValueError(f"engine must be for postgresql, sqlite, mysql or mariadb, got {dialect}")
        self.tables = tables_of(prefix)
        self.metadata = self.tables.heads.metadata
        self._engine = engine
        self._sqlite, self._at_once = dialect == "sqlite", dialect == "postgresql"
        self._cache = RunCache()
        self._reader = Reader(self.tables, self._cache)
        self._writer = Writer(self.tables, self._reader, self._cache, dialect)

    def create_schema(self, connection: Connection | None = None) -> None:
        """Create the tables that are missing.

        Args:
            connection: Do it in the caller's transaction.
        """
        with self._transaction(connection) as own:
            # Two processes that create at once would collide in the catalog.
            name = self.tables.heads.name
            if self._at_once:
                own.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
            with alone(own, name) if is_mysql(own) else nullcontext():
                self.metadata.create_all(own)

    def save(self, state: CheckpointState | Snapshot, connection: Connection | None = None) -> None:
        """Append a checkpoint to its run; see `CheckpointStore.save`.

        On PostgreSQL this is one statement, when the store saw the checkpoint before it.

        Args:
            state: The state, or a snapshot of it.
            connection: Save in the caller's transaction, which alone commits or rolls back.

        Raises:
            CheckpointConflict: The head is elsewhere, or holds other content; nothing was written.
            CheckpointCorrupted: The ancestor that a new line would start from is damaged; nothing was written.
            UnstorableValue: A part of the state would not come back equal and of its own type, or the database refuses it,
                such as one that is longer than MySQL's `max_allowed_packet` lets through; nothing was written. In the
                caller's transaction the latter is SQLAlchemy's `DataError`.
        """
        record = self._record(state)
        # PostgreSQL appends in one statement, which needs no transaction and so two round trips less.
        isolation = "AUTOCOMMIT" if self._at_once else "READ COMMITTED"
        try:
            with self._transaction(connection, isolation=isolation) as own:
                self._writer.append(own, record)
        except DataError as error:
            if connection is not None:
                raise
            path = f"checkpoint (line {record.line}, seq {record.seq}) of run {record.run_id!r}"
            raise UnstorableValue(path, f"the database refuses {error.orig}") from error

    def load_latest(
        self,
        run_id: str,
        connection: Connection | None = None,
        *,
        strict: bool = False,
        health_check: HealthCheck | None = None,
    ) -> CheckpointState | None:
        """Return the newest checkpoint of the head's ancestry that verifies, or None if the run has none.

        Args:
            run_id: The run.
            connection: Read in the caller's transaction.
            strict: Raise what speaks against the head in place of looking for an older one.
            health_check: Gets a state that verifies, and returns True or None if it may be used, else False or why not.

        Raises:
            CheckpointCorrupted: It has checkpoints and not one verifies, or the head does not and `strict` is set.
            CheckpointUnhealthy: The same of the health check.
            UnreadableValue: The newest that verifies needs code or a package that is missing here.
        """
        with self._snapshot(connection) as own:
            row = self._reader.head_row(own, run_id)
            if row is None:
                return None
            read = self._reading(own, run_id, row)
            return newest_usable(run_id, tip_of(row), read, strict=strict, health_check=health_check)

    def load(
        self, run_id: str, seq: int, line: int | None = None, connection: Connection | None = None
    ) -> CheckpointState:
        """Return one checkpoint.

        Args:
            run_id: The run.
            seq: Its number.
            line: Its line; None follows the head's ancestry.
            connection: Read in the caller's transaction.

        Raises:
            CheckpointNotFound: There is none.
            CheckpointCorrupted: Its bytes fail their checksum.
            UnreadableValue: It needs code or a package that is missing here.
        """
        with self._snapshot(connection) as own:
            row = self._find(own, run_id, seq, line)
            try:
                return self._reader.state(own, row)
            except Damage as damage:
                raise CheckpointCorrupted(run_id, row.checkpoint_line, seq, damage.reason) from damage

    def load_parent_of(self, position: Position, connection: Connection | None = None) -> CheckpointState:
        """Return the checkpoint that a save at `position` would follow: the head, or where a new line begins.

        What a new line begins from is read from the database even where this process knows it, since a line that
        stands on damage could not be read again.

        Args:
            position: Where a checkpoint is to be saved.
            connection: Read in the caller's transaction.

        Raises:
            CheckpointNotFound: Nothing could be saved there.
            CheckpointCorrupted: Its bytes, or those of the head's row, fail their checksum, or its row is missing.
            UnreadableValue: It needs code or a package that is missing here.
        """
        run_id, line, seq = position.run_id, position.line, position.seq - 1
        with self._snapshot(connection) as own:
            row = self._reader.head_row(own, run_id)
            if row is None:
                raise CheckpointNotFound(run_id, seq, None, "the run has no checkpoint at all")
            tip = tip_of(row)
            is_head = (tip.line, tip.seq) == (line, seq)
            if not is_head and not (tip.line < line and seq <= tip.seq):
                where = f"its head is at line {tip.line}, seq {tip.seq}, which line {line} cannot follow there"
                raise CheckpointNotFound(run_id, seq, None, where)
            found = line_of(tip.ancestry, seq)
            try:
                if is_head:
                    return self._head_state(own, row, tip)
                older = None if found is None else self._reader.row(own, run_id, found, seq)
                if older is None:
                    raise Damage("its row is missing")
                return self._reader.state(own, older, stored=True)
            except Damage as damage:
                raise CheckpointCorrupted(run_id, found or 0, seq, damage.reason) from damage

    def load_before(self, run_id: str, seq: int, connection: Connection | None = None) -> CheckpointState | None:
        """Return the newest checkpoint of the head's ancestry before `seq` that verifies, or None if none does.

        Args:
            run_id: The run.
            seq: The number that it must lie before.
            connection: Read in the caller's transaction.

        Raises:
            CheckpointCorrupted: The head's row is damaged, so that nobody knows its ancestry.
            UnreadableValue: That checkpoint needs code or a package that is missing here.
        """
        with self._snapshot(connection) as own:
            tip = self._reader.tip(own, run_id)
            return None if tip is None else newest_before(run_id, tip, seq, self._reading(own, run_id))

    def head(self, run_id: str, connection: Connection | None = None) -> Position | None:
        """Return where the run stands, or None if it has no checkpoint.

        Args:
            run_id: The run.
            connection: Read in the caller's transaction.
        """
        with self._snapshot(connection) as own:
            tip = self._reader.tip(own, run_id)
        return None if tip is None else Position(run_id, tip.line, tip.seq)

    def list_checkpoints(self, run_id: str, connection: Connection | None = None) -> Iterator[CheckpointSummary]:
        """Yield every checkpoint of every line, newest first, without reading states.

        Args:
            run_id: The run.
            connection: Read in the caller's transaction.
        """
        table = self.tables.checkpoints
        page = self._summaries(run_id).order_by(table.c.line.desc(), table.c.seq.desc()).limit(_PAGE_ROWS)
        rows: list[Row[Any]] = []
        while True:
            older = page.where(tuple_(table.c.line, table.c.seq) < (rows[-1].line, rows[-1].seq)) if rows else page
            with self._snapshot(connection) as own:
                rows = list(own.execute(older))
            for row in rows:
                yield _summary(run_id, row)
            if len(rows) < _PAGE_ROWS:
                return

    def ancestors(
        self, run_id: str, seq: int, limit: int, connection: Connection | None = None
    ) -> list[CheckpointSummary]:
        """Return the checkpoints that the head's ancestry has at `seq` and before, newest first, without states.

        One whose row is missing is left out, and nothing is verified.

        Args:
            run_id: The run.
            seq: The newest wanted.
            limit: How many seqs to look at.
            connection: Read in the caller's transaction.

        Raises:
            CheckpointCorrupted: The head's row is damaged, so that nobody knows its ancestry.
        """
        table = self.tables.checkpoints
        with self._snapshot(connection) as own:
            tip = self._reader.tip(own, run_id)
            if tip is None:
                return []
            newest = min(seq, tip.seq)
            wanted = [(line_of(tip.ancestry, n), n) for n in range(newest, max(newest - limit, -1), -1)]
            query = self._summaries(run_id).where(tuple_(table.c.line, table.c.seq).in_(wanted))
            return [_summary(run_id, row) for row in own.execute(query.order_by(table.c.seq.desc()))]

    def delete(self, run_id: str, connection: Connection | None = None) -> None:
        """Remove everything of a run; no error if there is nothing.

        Args:
            run_id: The run.
            connection: Do it in the caller's transaction.
        """
        with self._transaction(connection) as own:
            for table in (self.tables.heads, self.tables.checkpoints, self.tables.messages):
                own.execute(delete(table).where(table.c.run_id == run_id))
        self._cache.forget(run_id)

    def heads_query(self) -> Select[Any]:
        """Return the query for the head of every run, to be joined to other tables of the same database.

        Its columns are named ``head_…`` and ``checkpoint_…``; join on ``head_run_id``, and give the row to `state_of`.
        A run whose head lost its checkpoint has None in the latter columns.
        """
        return self._reader.heads()

    def state_of(self, row: Row[Any], connection: Connection) -> CheckpointState:
        """Return the state of a row that has the columns of `heads_query`.

        It reads only the messages that this store has not seen; none, if it made the checkpoint itself.

        Args:
            row: The row.
            connection: Where messages are read, if any are needed.

        Raises:
            CheckpointCorrupted: Its bytes fail their checksum; `load_latest` finds the newest that verifies.
            UnreadableValue: It needs code or a package that is missing here.
        """
        try:
            return self._head_state(connection, row, tip_of(row))
        except Damage as damage:
            raise CheckpointCorrupted(row.head_run_id, row.head_line, row.head_seq, damage.reason) from damage

    def seen_state(self, row: Any) -> CheckpointState | None:
        """Return the state of a row that has the columns of `heads_query`, if all its messages were seen here.

        Args:
            row: The row.

        Returns:
            None if messages have to be read, or if anything is wrong; `state_of` reads them, and says what.

        Raises:
            UnreadableValue: It needs code or a package that is missing here.
        """
        try:
            return self._head_state(None, row, tip_of(row))
        except (Damage, CheckpointCorrupted):
            return None

    def append_parts(self, guard: FromClause, *, several: bool = False) -> tuple[CTE, CTE, CTE]:
        """Return the parts of a PostgreSQL statement that appends a checkpoint, to be joined to other statements.

        The head moves by compare-and-set, and everything else is written only if it moved; so the statement appends all
        of a checkpoint or nothing. Its parameters are those of `plan_append`.

        Args:
            guard: What has a row, with the `run_id`, if the checkpoint may be written at all.
            several: It appends any number of checkpoints, all or none; its parameters are those of `plan_appends`.

        Returns:
            What has the `run_id` if the checkpoint is written; and what writes its rows, for `add_cte`.
        """
        return append_parts(self.tables, guard, several=several)

    def snapshot(self, state: CheckpointState) -> Snapshot:
        """Return a state as it is now, to be saved later.

        Args:
            state: The state.

        Raises:
            UnstorableValue: A part of the state would not come back equal and of its own type.
        """
        return Snapshot(self._record(state))

    def plan_append(self, state: CheckpointState | Snapshot) -> Append | None:
        """Return how a state follows the head that this store saw last, or None if that needs a look at the database.

        Args:
            state: The state, or a snapshot of it.

        Raises:
            UnstorableValue: A part of the state would not come back equal and of its own type.
        """
        return self._writer.plan(self._record(state))

    def plan_appends(self, snapshots: Sequence[Snapshot]) -> Append | None:
        """Return how snapshots that follow each other follow the head that this store saw last; None as `plan_append`.

        Args:
            snapshots: At least one, of one run, the oldest first.
        """
        return self._writer.plan_several([snapshot.record for snapshot in snapshots])

    def appended(self, append: Append) -> None:
        """Take note that a planned checkpoint was written.

        Args:
            append: What was planned.
        """
        self._writer.carried_out(append)

    def _record(self, state: CheckpointState | Snapshot) -> Record:
        return state.record if isinstance(state, Snapshot) else encode_state(state, self._cache.get(state.run_id))

    def close(self) -> None:
        """Release what the store itself opened: nothing, since the engine is the caller's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _summaries(self, run_id: str) -> Select[Any]:
        table = self.tables.checkpoints
        names = ("line", "seq", "parent_line", "step", "created_at", "version", "message_count")
        columns = (*(table.c[name] for name in names), func.length(table.c.head).label("head_bytes"))
        return select(*columns).where(table.c.run_id == run_id)

    def _head_state(self, connection: Connection | None, row: Row[Any], tip: Tip) -> CheckpointState:
        if row.checkpoint_run_id is None:
            raise Damage("its row is missing")
        return self._reader.state(connection, row, tip=tip)

    def _find(self, connection: Connection, run_id: str, seq: int, line: int | None) -> Row[Any]:
        row = None if line is None else self._reader.row(connection, run_id, line, seq)
        if row is not None:
            return row  # without a look at the head, which may be damaged
        tip = self._reader.tip(connection, run_id)
        if tip is None:
            raise CheckpointNotFound(run_id, seq, line, "the run has no checkpoint at all")
        if line is None and (found := line_of(tip.ancestry, seq)) is not None:
            row = self._reader.row(connection, run_id, found, seq)
        if row is None:
            raise CheckpointNotFound(run_id, seq, line, f"its head is at line {tip.line}, seq {tip.seq}")
        return row

    def _reading(self, connection: Connection, run_id: str, head: Row[Any] | None = None) -> Reading:
        """Return what reads older checkpoints from the database, also where this process knows their messages."""

        def read(line: int, seq: int, bad_places: frozenset[tuple[int, int]]) -> CheckpointState:
            if head is not None and (line, seq) == (head.head_line, head.head_seq):
                return self._head_state(connection, head, tip_of(head))
            row = self._reader.row(connection, run_id, line, seq)
            if row is None:
                raise Damage("its row is missing")
            return self._reader.state(connection, row, bad_places, stored=True)

        return read

    @contextmanager
    def _transaction(self, connection: Connection | None, isolation: str = "READ COMMITTED") -> Iterator[Connection]:
        if connection is not None:
            yield connection
            return
        with self._connect(isolation) as own, own.begin():
            self._begin(own, "BEGIN IMMEDIATE")  # a lock taken at the first write may come too late for SQLite
            yield own

    @contextmanager
    def _snapshot(self, connection: Connection | None) -> Iterator[Connection]:
        if connection is not None:
            yield connection
            return
        # One snapshot, so that a delete between two statements does not look like damage.
        with self._connect("REPEATABLE READ") as own, own.begin():
            self._begin(own, "BEGIN")
            yield own

    def _connect(self, isolation: str) -> Connection:
        connection = self._engine.connect()
        # SQLite knows one isolation only, and how a transaction begins there is decided by `_begin`.
        return connection if self._sqlite else connection.execution_options(isolation_level=isolation)

    def _begin(self, own: Connection, statement: str) -> None:
        # Python's driver begins only before a write; the caller's engine may have been told to begin by itself.
        if self._sqlite and not getattr(own.connection.dbapi_connection, "in_transaction", False):
            own.exec_driver_sql(statement)


def _summary(run_id: str, row: Row[Any]) -> CheckpointSummary:
    return CheckpointSummary(run_id, **{**row._asdict(), "created_at": moment(row.created_at)})
