"""What an attempt does with its run, from the lease to its end, and the end of a lease. The connection's transaction is the caller's; the run's row is locked first, always."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, String, and_, bindparam, case, null, or_, select, tuple_, update
from sqlalchemy.exc import OperationalError

from agent_tasks.schema import PLAIN_PROTOCOL, PROTOCOL, is_id
from agent_tasks.states import RunRequest, RunStatus
from agent_tasks.suspensions import Ask, Wait
from agent_tasks.texts import storable
from agent_tasks.troubles import is_out_of_time
from checkpoint import codec
from checkpoint.inserts import new_row, was_new
from checkpoint.mysql import is_mysql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table
    from sqlalchemy.sql.dml import ReturningUpdate, Update

    from agent_tasks.attempt import Attempt
    from agent_tasks.clock import Clock
    from agent_tasks.config import Settings
    from agent_tasks.lines import NewLine
    from agent_tasks.retries import Retry
    from agent_tasks.schema import Tables

#: How long a renewal waits for a row that is held, in milliseconds. The other leases of its worker wait with it.
HELD_WAIT_MS = 300

#: A run that no attempt owns.
NO_LEASE: dict[str, Any] = {"lease_owner": None, "lease_token": None}


@cache
def _inserting(table: Table, clock: Any, dialect: str, names: tuple[str, ...], waits: bool, expires: bool) -> Any:
    now = moment(clock, "now")
    values = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
    begin: dict[str, Any] = {"status": RunStatus.QUEUED, "due_at": moment(clock, "due")}
    if waits:
        begin.update(status=RunStatus.WAITING, waiting_for="the time that its caller named")
    numbers = dict.fromkeys(("line", "line_start_seq", "seq", "wakeups", "fence", "attempts", "crashes"), 0)
    return new_row(table, dialect).values(
        **values,
        **begin,
        **numbers,
        expires_at=moment(clock, "end") if expires else None,
        protocol=PLAIN_PROTOCOL,
        version=1,
        created_at=now,
        updated_at=now,
    )


@cache
def _finding(table: Table, clock: Any, lock: bool, wait: bool) -> Select[Any]:
    statement = select(table, moment(clock, "now").label("now")).where(table.c.run_id == bindparam("id"))
    return statement.with_for_update(skip_locked=not wait, key_share=True) if lock else statement


@cache
def _owning(table: Table, share: bool) -> Select[Any]:
    return select(table).where(*fence_of(table, OWNER)).with_for_update(read=share, key_share=not share)


@cache
def claiming(table: Table, clock: Any) -> ReturningUpdate[Any]:
    """Return the statement that takes the lease of a queued run, for clocks of a class; see :func:`claim_of`."""
    return _taking(table, clock).returning(table)


@cache
def _taking(table: Table, clock: Any) -> Update:
    c = table.c
    return (
        update(table)
        .where(
            c.run_id == bindparam("new_run_id"),
            # A doorbell is anybody's word, and two agents may have a step of one name.
            c.agent == bindparam("new_agent"),
            c.seq == bindparam("new_seq", type_=c.seq.type) - 1,
            c.next_step == bindparam("new_step"),
            c.status == RunStatus.QUEUED,
            c.protocol <= bindparam("new_protocol"),
            or_(c.expires_at.is_(None), c.expires_at > moment(clock, "now"), c.fence > 0),
        )
        .values(
            status=RunStatus.RUNNING,
            lease_owner=bindparam("new_owner"),
            lease_token=bindparam("new_token"),
            fence=c.fence + 1,
            attempts=c.attempts + 1,
            due_at=moment(clock, "lease_end"),
            waiting_for=None,
            updated_at=moment(clock, "now"),
        )
    )


def claim_of(
    clock: Clock, settings: Settings, run_id: str, seq: int, *, agent: str, step: str, owner: str, token: str
) -> dict[str, Any]:
    """Return the parameters of :func:`claiming`."""
    return {
        "new_run_id": run_id,
        "new_seq": seq,
        "new_agent": agent,
        "new_step": step,
        "new_protocol": PROTOCOL,
        "new_owner": owner,
        "new_token": token,
        "at_now": clock.offset(0),
        "at_lease_end": clock.offset(settings.lease_seconds),
    }


def moment(clock: type[Clock], name: str) -> ColumnElement[int]:
    """Return the moment that is a parameter, ``at_…``, of a statement that is built once for clocks of a class."""
    return clock.moment(bindparam(f"at_{name}", type_=BigInteger()))


@dataclass(frozen=True)
class Owner:
    """Whose lease it is, in the place of an attempt whose run has not got to its step yet.

    Attributes:
        run_id: of the run.
        fence, token: of the lease.
        seq: of the checkpoint that comes next.
    """

    run_id: str
    fence: int
    token: str
    seq: int


#: The parameters that say whose lease it is, in the place of an attempt.
OWNER = SimpleNamespace(
    run_id=bindparam("own_run_id", type_=String()),
    fence=bindparam("own_fence", type_=BigInteger()),
    token=bindparam("own_token", type_=String()),
    seq=bindparam("own_seq", type_=Integer()),
)


def owner_of(attempt: Attempt | Owner) -> dict[str, Any]:
    """Return the parameters that :data:`OWNER` stands for."""
    return {
        "own_run_id": attempt.run_id,
        "own_fence": attempt.fence,
        "own_token": attempt.token,
        "own_seq": attempt.seq,
    }


def fence_of(table: Table, attempt: Any) -> tuple[ColumnElement[bool], ...]:
    """Return the condition under which a run is an attempt's, or that of the parameters of a statement built once (I2)."""
    c = table.c
    return (
        c.run_id == attempt.run_id,
        c.fence == attempt.fence,
        c.lease_token == attempt.token,
        c.seq == attempt.seq - 1,
        c.status == RunStatus.RUNNING,
    )


def advanced(seq: Any, step: Any, queue: Any, ring_again: Any) -> dict[str, Any]:
    """Return what the row of a run says whose step has made a checkpoint, and that has a next step."""
    return {
        "status": RunStatus.QUEUED,
        "seq": seq,
        "next_step": step,
        "queue": queue,
        "attempts": 0,
        "crashes": 0,
        "retries": 0,
        "due_at": ring_again,
    }


def gone_on(seq: Any, step: Any, queue: Any, lease_end: Any) -> dict[str, Any]:
    """Return what the row of a run says that has made a checkpoint, and whose owner goes on: the next attempt has begun."""
    return {**advanced(seq, step, queue, lease_end), "status": RunStatus.RUNNING, "attempts": 1}


def ended(due_at: Any, now: Any) -> dict[str, Any]:
    """Return what the row of a run says that has ended, however it did."""
    return {"next_step": None, "due_at": due_at, "finished_at": now}


def due_for_result(table: Table, ring_again: Any) -> ColumnElement[int]:
    """Return when to ring for a run that ends now; Celery has to hear of the end of those that keep a result."""
    return case((table.c.keeps_result == 1, ring_again), else_=null())


class Runs:
    """Statements on the runs of one table prefix."""

    def __init__(self, tables: Tables, clock: Clock, settings: Settings) -> None:
        self.table, self.clock, self.settings = tables.runs, clock, settings
        self._kind: Any = type(clock)  # statements are built once for each

    # -- making and reading ------------------------------------------------------------------------------------------

    def insert(
        self, connection: Connection, *, begins_in: float | None = None, ends_in: float | None = None, **values: Any
    ) -> bool:
        """Write a run; False if its id or its dedupe key is taken.

        Args:
            connection: whose transaction is the caller's.
            begins_in: seconds until it may be claimed; at once if not given.
            ends_in: seconds until it is too late for its first attempt; never if not given.
            **values: of its columns.
        """
        statement = _inserting(
            self.table, self._kind, connection.dialect.name, (*values,), begins_in is not None, ends_in is not None
        )
        due_in = self.settings.ring_again_seconds if begins_in is None else begins_in
        parameters = {f"new_{name}": value for name, value in values.items()}
        parameters.update(at_now=self.clock.offset(0), at_due=self.clock.offset(due_in))
        if ends_in is not None:
            parameters["at_end"] = self.clock.offset(ends_in)
        return was_new(connection, statement, parameters)

    def find(self, connection: Connection, run_id: str, *, lock: bool = False, wait: bool = True) -> RowMapping | None:
        """Return a run's row with the database's time beside it; ``lock`` holds it until the transaction ends.

        Without ``wait`` a row that somebody else holds is not found: the threads of a worker's parent wait for no row,
        since one process that is frozen in a transaction would hold up the sweepers of a whole fleet.
        """
        if not is_id(run_id):
            return None
        statement = _finding(self.table, self._kind, lock, wait)
        return connection.execute(statement, {"id": run_id, "at_now": self.clock.offset(0)}).mappings().one_or_none()

    def keep(self, connection: Connection, run_id: str) -> bool:
        """Keep a run from being deleted until the transaction ends; False if there is none.

        It hinders nobody who works on the run: a caller may hold this for as long as his transaction is open, so whoever
        locks the run's row does so with ``key_share``, which keeps everybody out but those who only keep it.
        """
        statement = select(self.table.c.run_id).where(self.table.c.run_id == run_id)
        return connection.execute(statement.with_for_update(read=True, key_share=True)).one_or_none() is not None

    def find_by_dedupe_key(self, connection: Connection, agent: str, dedupe_key: str) -> RowMapping | None:
        """Return the run of an agent that owns a dedupe key."""
        c = self.table.c
        statement = select(self.table).where(c.agent == agent, c.dedupe_key == dedupe_key)
        return connection.execute(statement).mappings().one_or_none()

    # -- the lease ---------------------------------------------------------------------------------------------------

    def claim(
        self, connection: Connection, run_id: str, seq: int, *, agent: str, step: str, owner: str, token: str
    ) -> RowMapping | None:
        """Take the lease of a queued run of this agent whose next step this is: fence + 1, attempts + 1.

        Returns:
            The claimed row, also when an earlier sending of this very claim took it; None if it is not claimable.
        """
        values = claim_of(self.clock, self.settings, run_id, seq, agent=agent, step=step, owner=owner, token=token)
        if is_mysql(
            connection
        ):  # no RETURNING; its clock is read as a statement begins, so another one waits for the row
            self.find(connection, run_id, lock=True)
            taken = connection.execute(_taking(self.table, self._kind), values).rowcount == 1
            row = self.find(connection, run_id) if taken else None
        else:
            row = connection.execute(claiming(self.table, self._kind), values).mappings().one_or_none()
        if row is None:
            found = self.find(connection, run_id)
            if found is not None and found["lease_token"] == token and found["status"] == RunStatus.RUNNING:
                return found
        return row

    def owned(self, connection: Connection, attempt: Attempt | Owner, *, share: bool = False) -> RowMapping | None:
        """Lock the run's row and return it if the attempt owns it (I2).

        The lock is what makes the answer hold until the transaction ends: without it a claim slips between this look
        and the write that relies on it. ``share`` lets other intents pass.
        """
        return connection.execute(_owning(self.table, share), owner_of(attempt)).mappings().one_or_none()

    @staticmethod
    def is_owner(row: RowMapping, attempt: Attempt) -> bool:
        """Tell whether a locked row is the attempt's."""
        return bool(
            row["fence"] == attempt.fence
            and row["lease_token"] == attempt.token
            and row["seq"] == attempt.seq - 1
            and row["status"] == RunStatus.RUNNING
        )

    def _fence(self, attempt: Attempt) -> tuple[ColumnElement[bool], ...]:
        return fence_of(self.table, attempt)

    def renew(self, connection: Connection, leases: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Renew the leases of the (run_id, fence) pairs that are still running.

        Returns:
            Those pairs whose rows others held, or that are not running under that fence any more.
        """
        c = self.table.c
        named = c.run_id.in_([run_id for run_id, _ in leases])  # MariaDB looks pairs up by no index
        mine = and_(named, tuple_(c.run_id, c.fence).in_(leases), c.status == RunStatus.RUNNING)
        if is_mysql(connection):
            free: Sequence[Any] = connection.execute(self._unheld(mine)).scalars().all()
            connection.execute(update(self.table).where(mine, c.run_id.in_(free)).values(due_at=self._lease_end()))
        else:
            renewing = update(self.table).where(mine, c.run_id.in_(self._unheld(mine)))
            free = connection.execute(renewing.values(due_at=self._lease_end()).returning(c.run_id)).scalars().all()
        return [lease for lease in leases if lease[0] not in free]

    def renew_held(self, connection: Connection, lease: tuple[str, int]) -> bool:
        """Renew a lease whose row others hold, and wait for it for a moment: a run's own calls can hold it one after another.

        Returns:
            False if the moment was too short.
        """
        if connection.dialect.name != "postgresql":
            return not self.renew(connection, [lease])  # its locks are queued for, so that the row is free now and then
        c, (run_id, fence) = self.table.c, lease
        renewing = update(self.table).where(c.run_id == run_id, c.fence == fence, c.status == RunStatus.RUNNING)
        # Not lock_timeout, which begins anew with each of the others.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {HELD_WAIT_MS}")
        try:
            with connection.begin_nested():
                connection.execute(renewing.values(due_at=self._lease_end()))
        except OperationalError as error:
            if not is_out_of_time(error):
                raise
            return False
        return True

    # -- the end of an attempt ---------------------------------------------------------------------------------------

    def advance(
        self,
        connection: Connection,
        attempt: Attempt,
        *,
        step: str,
        queue: str,
        protocol: int | None = None,
        until: int | None = None,
        waiting_for: str | None = None,
    ) -> bool:
        """Move the run to the next step; False if the attempt does not own it.

        Args:
            connection: whose transaction is the caller's.
            attempt: whose step made its checkpoint.
            step: the next one.
            queue: of its doorbell.
            protocol: of the releases that know such a step; the run is nothing for a worker of an older one from now on, since
                a line may begin before such a step again. None leaves that as it is.
            until: the run waits until then, in microseconds on the database's clock.
            waiting_for: in words.
        """
        values = advanced(attempt.seq, step, queue, self.ring_again())
        if until is not None:
            values.update(status=RunStatus.WAITING, due_at=until, waiting_for=waiting_for)
        known_to = {} if protocol is None else {"protocol": protocol}
        return self._leave(connection, attempt, **values, **known_to)

    def ask_again(self, connection: Connection, attempt: Attempt, until: int, reason: str) -> bool:
        """Let the run wait for the next question of a check that said no; False if the attempt does not own it.

        A question that came to its end is progress: neither crashes nor retries of earlier ones count any more.
        """
        begun_anew = {"attempts": 0, "crashes": 0, "retries": 0}
        waits = {"status": RunStatus.WAITING, "due_at": until, "waiting_for": reason}
        return self._leave(connection, attempt, **waits, **begun_anew)

    def go_on(
        self,
        connection: Connection,
        owner: Attempt | Owner,
        *,
        seq: int,
        step: str,
        queue: str,
        protocol: int | None = None,
    ) -> bool:
        """Move the run to its next step and keep the lease, whose time begins anew; False if it is not the owner's.

        Args:
            connection: whose transaction is the caller's.
            owner: of the run.
            seq: of the checkpoint that the run stands at from now on.
            step: the next one.
            queue: that it is routed to.
            protocol: the run is for releases that know it, from now on; None leaves that as it is.
        """
        known_to = {} if protocol is None else {"protocol": protocol}
        values = {**gone_on(seq, step, queue, self._lease_end()), **known_to, "updated_at": self.clock.now()}
        statement = update(self.table).where(*fence_of(self.table, owner))
        return connection.execute(statement.values(**values)).rowcount == 1

    def retry(self, connection: Connection, attempt: Attempt, retry: Retry) -> bool:
        """Let the run wait for the next try of its step; False if the attempt does not own it."""
        return self._leave(
            connection,
            attempt,
            status=RunStatus.WAITING,
            due_at=self.clock.in_(retry.seconds),
            waiting_for=retry.reason,
            retries=self.table.c.retries + (1 if retry.spends else 0),
        )

    def finish(
        self,
        connection: Connection,
        attempt: Attempt,
        status: RunStatus,
        *,
        output: bytes | None = None,
        error: dict[str, Any] | None = None,
        advance: bool,
    ) -> bool:
        """End the run, with its output as it is stored; ``advance`` says whether the step's checkpoint counts. False if the attempt does not own it."""
        return self._leave(
            connection,
            attempt,
            status=status,
            seq=attempt.seq if advance else attempt.seq - 1,
            output=output,
            error=None if error is None else codec.dumps(error),
            **ended(self.result_due(), self.clock.now()),
        )

    def begin_line(self, connection: Connection, attempt: Attempt, line: NewLine) -> bool:
        """Queue the run on a new line from an older checkpoint; False if the attempt does not own it.

        ``crashes`` stay: nothing was committed since, and a check that takes its workers along must be parked too.
        """
        queued = {"status": RunStatus.QUEUED, "due_at": self.ring_again(), "waiting_for": None}
        return self._leave(connection, attempt, **line.columns(), **queued)

    def suspend(self, connection: Connection, attempt: Attempt, suspension: Wait | Ask) -> RunStatus | None:
        """Give the run back without a checkpoint.

        A wait is only written with the count of wake-ups that the attempt saw: whatever came in meanwhile makes the
        run claimable at once, so that it looks again (I9).

        Returns:
            The status written, or None if the attempt does not own the run.
        """
        row = self.owned(connection, attempt)
        if row is None:
            return None
        values: dict[str, Any] = {"status": RunStatus.QUEUED, "due_at": self.ring_again(), "waiting_for": None}
        if row["wakeups"] == attempt.wakeups:
            if isinstance(suspension, Wait):
                due_at = self._end_of(suspension)
                values = {"status": RunStatus.WAITING, "due_at": due_at, "waiting_for": suspension.reason}
            elif isinstance(suspension, Ask):
                values = {"status": RunStatus.NEEDS_ATTENTION, "due_at": None, "waiting_for": suspension.reason}
        if isinstance(suspension, Wait) and suspension.retried:
            values["retries"] = self.table.c.retries + 1
        self._leave(connection, attempt, **values)
        return RunStatus(values["status"])

    def _end_of(self, wait: Wait) -> ColumnElement[int]:
        pause = self.clock.in_(wait.seconds)
        return pause if wait.until is None else case((pause > wait.until, pause), else_=wait.until)

    def give_back(self, connection: Connection, attempt: Attempt) -> bool:
        """Make the attempt's run claimable at once; False if the attempt does not own it."""
        return self._leave(connection, attempt, status=RunStatus.QUEUED, due_at=self.ring_again(), waiting_for=None)

    def _leave(self, connection: Connection, attempt: Attempt, **values: Any) -> bool:
        statement = update(self.table).where(*self._fence(attempt))
        values = {**NO_LEASE, "updated_at": self.clock.now(), **values}
        if isinstance(values.get("waiting_for"), str):  # a reason may repeat what anybody said
            values["waiting_for"] = storable(values["waiting_for"])
        return connection.execute(statement.values(**values)).rowcount == 1

    # -- a lease that ends without its owner's word ------------------------------------------------------------------

    def release_dead(self, connection: Connection, run_id: str, token: str, *, wait: bool = True) -> RowMapping | None:
        """End the lease of an attempt whose process is dead; the row before it, or None if the lease is gone.

        Without ``wait``, None also stands for a row that somebody else holds.
        """
        row = self.find(connection, run_id, lock=True, wait=wait)
        if row is None or row["lease_token"] != token or row["status"] != RunStatus.RUNNING:
            return None
        self.take_over(connection, row)
        return row

    def expire(
        self, connection: Connection, run_id: str, lives_until: Callable[[RowMapping], int] = lambda _row: 0
    ) -> RowMapping | None:
        """End a lease that ran out; the row before it, or None if it was renewed, ended, or is being written to.

        Args:
            connection: whose transaction is the caller's.
            run_id: of the run.
            lives_until: says of a row until when its owner is known to live, as microseconds since 1970; the lease goes on
                until then.
        """
        row = self.find(connection, run_id, lock=True, wait=False)
        if row is None or row["status"] != RunStatus.RUNNING or row["due_at"] > row["now"]:
            return None
        until = lives_until(row)
        if until > row["now"]:
            c = self.table.c
            connection.execute(
                update(self.table).where(c.run_id == run_id, c.fence == row["fence"]).values(due_at=until)
            )
            return None
        self.take_over(connection, row)
        return row

    def take_over(self, connection: Connection, row: RowMapping) -> None:
        """Requeue a run whose lease ended without its owner's word."""
        c = self.table.c
        connection.execute(
            update(self.table)
            .where(c.run_id == row["run_id"], c.status == RunStatus.RUNNING, c.fence == row["fence"])
            .values(
                **NO_LEASE,
                status=RunStatus.QUEUED,
                crashes=c.crashes + 1,
                due_at=self.ring_again(),
                updated_at=self.clock.now(),
            )
        )

    def result_due(self) -> ColumnElement[int]:
        """When to ring for a run that ends now; Celery has to hear of the end of those that keep a result."""
        return due_for_result(self.table, self.ring_again())

    def requeue(self, connection: Connection, *where: ColumnElement[bool]) -> bool:
        """Make the run that fits claimable now; False if none does."""
        statement = (
            update(self.table)
            .where(*where)
            .values(
                **NO_LEASE,
                status=RunStatus.QUEUED,
                due_at=self.ring_again(),
                waiting_for=None,
                updated_at=self.clock.now(),
            )
        )
        return connection.execute(statement).rowcount == 1

    def unheld(self, connection: Connection, where: ColumnElement[bool]) -> ColumnElement[bool]:
        """Lock the rows that nobody else holds, and pass the others over; see :meth:`find`."""
        free = self._unheld(where)
        if is_mysql(connection):  # which reads no table in an update of it
            return self.table.c.run_id.in_(connection.scalars(free).all())
        return self.table.c.run_id.in_(free)

    def _unheld(self, where: ColumnElement[bool]) -> Select[tuple[str]]:
        c = self.table.c
        return select(c.run_id).where(where).order_by(c.run_id).with_for_update(skip_locked=True, key_share=True)

    def _lease_end(self) -> ColumnElement[int]:
        return self.clock.in_(self.settings.lease_seconds)

    def ring_again(self) -> ColumnElement[int]:
        return self.clock.in_(self.settings.ring_again_seconds)


def steps_allowed(run: Mapping[Any, Any], more: int) -> int:
    """Return how many steps a run may take, whose row this is; ``more`` without a person's word."""
    return max(run["steps_allowed"] or 0, more)


def is_cancelled(run: Mapping[Any, Any]) -> bool:
    """Tell whether somebody has asked for the end of a run, of whose row this is a copy."""
    return bool(run["request"] == RunRequest.CANCEL)
