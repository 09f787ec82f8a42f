"""Starting a run: its row and its input in one commit; the doorbell after it."""

from __future__ import annotations

import reprlib
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from agent_tasks.cures import cure_of
from agent_tasks.errors import (
    AgentTasksError,
    ArgumentsNotStorable,
    DedupeConflict,
    LedgerUnavailable,
    did_you_mean,
)
from agent_tasks.handle import RunHandle
from agent_tasks.joining import join
from agent_tasks.lines import NEXT_STEP
from agent_tasks.refusals import refusal
from agent_tasks.schema import MAX_ID_LENGTH, is_id
from agent_tasks.states import Recovery
from agent_tasks.troubles import first_line, is_refused, lost_a_race
from agent_tasks.unwritable import values_refused
from checkpoint import CheckpointState, codec
from checkpoint.errors import CheckpointError
from checkpoint.mysql import is_mysql, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, RowMapping

    from agent_tasks.agent import Agent
    from agent_tasks.joining import CallersTransaction
    from agent_tasks.runtime import Runtime

#: Highest priority; AMQP carries it in a byte.
MAX_PRIORITY = 255

#: Longest id of a message, and longest name of a queue, in bytes.
MAX_SENT_BYTES = 255

#: Sends of an enqueue whose answer was lost, and the pause between them in seconds.
_TRIES, _PAUSE_SECONDS = 3, 0.2

#: How long one try waits for another transaction that has written the same id or dedupe key, in milliseconds; see
#: ``MAX_LOCK_RETRIES``.
_LOCK_TIMEOUT_MS = 2_000

#: The same where a worker would wait, whose place others need.
WORKERS_LOCK_TIMEOUT_MS = 100


class FollowedRunGone(Exception):
    """The run that another one was to follow was deleted."""


def enqueue(
    agent: Agent,
    state: dict[str, Any],
    *,
    run_id: str | None,
    dedupe_key: str | None,
    priority: int,
    recovery: str,
    connection: object = None,
) -> RunHandle:
    """See ``Agent.enqueue``."""
    id_is_new = run_id is None
    run_id = uuid.uuid4().hex if run_id is None else run_id
    check_id("run_id", run_id)
    if dedupe_key is not None:
        check_id("dedupe_key", dedupe_key)
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise AgentTasksError(f"priority must be a whole number from 0 to {MAX_PRIORITY}, got {priority!r}.")
    if not isinstance(state, dict):
        raise AgentTasksError(
            f"the input of a run must be a dict, the state that its first step gets, got {type(state).__name__}."
        )
    mode = recovery_mode(recovery)
    step = agent.first_step()
    try:
        follows = {NEXT_STEP: step.name}
        checkpoint = CheckpointState(run_id=run_id, seq=0, agent_state=dict(state), metadata=follows)
        digest = codec.digest(state)
        codec.dumps(state)
    except CheckpointError as error:
        raise ArgumentsNotStorable(
            refusal(error, f"the input of agent {agent.name!r}", ", so no run was made")
        ) from error
    runtime = agent.runtime
    joined = join(connection, runtime)
    row = make_run(
        runtime,
        checkpoint,
        joined=joined,
        id_is_new=id_is_new,
        agent=agent.name,
        dedupe_key=dedupe_key,
        input_digest=digest,
        next_step=step.name,
        queue=runtime.bell.queue_for(f"{agent.name}.{step.name}"),
        priority=priority,
        recovery=mode,
    )
    run_id = str(row["run_id"])
    if joined is None:
        runtime.ring_as(row)
    else:
        joined.ring_after_commit(run_id)
    return RunHandle(runtime, run_id, in_transaction=joined is not None)


def make_run(
    runtime: Runtime,
    checkpoint: CheckpointState,
    *,
    agent: str,
    dedupe_key: str | None,
    input_digest: str,
    follows: str | None = None,
    joined: CallersTransaction | None = None,
    id_is_new: bool = False,
    lock_timeout_ms: int | None = None,
    **values: Any,
) -> RowMapping:
    """Write a run and its input in one commit, or find the one that has its id or its dedupe key.

    Args:
        runtime: whose ledger gets the run.
        checkpoint: the input.
        agent: name of the definition.
        dedupe_key: unique for an agent.
        input_digest: of what makes two inputs the same.
        follows: the id of a run that must be there, and stays for as long as the new one has not ended.
        joined: a transaction of the caller's, who commits it; the ledger's own if not given.
        id_is_new: nobody else can have written this id.
        lock_timeout_ms: how long one try waits for another transaction, in milliseconds; as long as a caller does if not given.
        **values: for ``runs.insert``.

    Raises:
        AgentTasksError: the name of the queue is no text that every database stores and every broker knows.
        DedupeConflict: the run that exists was started with another input.
        FollowedRunGone: there is no such run to follow; no run was made.
        LedgerUnavailable: the database did not answer, or somebody has written the id or the key in a transaction that he
            has not ended.
        NotWritable: the ledger's database refuses a value, such as an input that is too long for it; no run was made.
    """
    run_id = checkpoint.run_id
    only_new = id_is_new and dedupe_key is None
    may_wait = joined is None and not (only_new and follows is None)
    shares = joined is not None and not only_new and is_mysql(runtime.engine)
    check_sent_id(f"the queue of run {run_id!r}", values["queue"])

    def there_is(connection: Connection) -> RowMapping | None:
        row = runtime.runs.find(connection, run_id)
        if row is None and dedupe_key is not None:
            row = runtime.runs.find_by_dedupe_key(connection, agent, dedupe_key)
        return row

    def committed() -> RowMapping | None:
        # A caller's transaction may read what stood at its beginning, as MySQL's do unless told otherwise, and its inserts meet
        # rows then that its reads do not see. A lock would see them, and keep the run's worker off until the caller's end.
        return runtime.boundary.read(runtime.engine, there_is)

    def found_before(connection: Connection) -> RowMapping | None:
        """Look before the insert: one that fails leaves a lock on the key, and the gap beside it, until the caller's end."""
        row = committed()
        if row is None and (row := there_is(connection)) is not None:
            # His own, which he holds in any case, or one that was deleted since his snapshot or committed since the first look.
            row = committed() or (row if runtime.runs.keep(connection, row["run_id"]) else None)
        return row

    def work(connection: Connection) -> RowMapping:
        if may_wait:
            _bound_the_wait(connection, _LOCK_TIMEOUT_MS if lock_timeout_ms is None else lock_timeout_ms)
        own = {"agent": agent, "dedupe_key": dedupe_key, "input_digest": input_digest}
        # Its deletion waits for this commit, and sees the follower then.
        if follows is not None and not runtime.runs.keep(connection, follows):
            there = runtime.runs.find(connection, run_id)
            if there is None:
                raise FollowedRunGone(follows)
            return there
        if shares and (row := found_before(connection)) is not None:
            return row
        while True:
            if runtime.runs.insert(connection, **{**values, **own, "run_id": run_id}):
                runtime.store.save(checkpoint, connection=connection)
            row = there_is(connection)
            if row is None and joined is not None and is_mysql(connection):
                row = committed()
            if row is not None:
                return row  # else the run that refused the insert was deleted since

    with saying_whether_made(run_id, dedupe_key):
        row = _send(runtime, run_id, work) if joined is None else joined.write(work)
    if (
        row["agent"] != agent
        or row["input_digest"] != input_digest
        or (row["run_id"] == run_id and row["dedupe_key"] != dedupe_key)
    ):
        subject = f"dedupe key {dedupe_key!r}" if row["run_id"] != run_id else f"run id {run_id!r}"
        owner = f"{'agent' if row['task'] is None else 'task'} {row['agent']!r}"
        raise DedupeConflict(
            f"{subject} belongs to run {row['run_id']!r} of {owner}, which was started with another input; no "
            "run was made. Use the run that exists, or another key for another job."
        )
    return row


@contextmanager
def saying_whether_made(run_id: str, dedupe_key: str | None) -> Iterator[None]:
    """Let a database that does not answer say what is true of the run that it was asked for.

    Args:
        run_id: of the run that was to be made.
        dedupe_key: the same.

    Raises:
        LedgerUnavailable: with the words for a caller who wants to know whether to call again.
    """
    try:
        yield
    except LedgerUnavailable as error:
        cause = error.__cause__
        if cause is None:
            raise
        known_by = f"the same id ({run_id!r})" + (f" or dedupe key ({dedupe_key!r})" if dedupe_key is not None else "")
        said, found = "No run was made", ""
        if error.ambiguous:
            said, found = (
                "The run may have been made, since only the answer is missing",
                f" with {known_by}, which finds it",
            )
        if not error.ambiguous and isinstance(cause, DBAPIError) and lost_a_race(cause):
            held = f"id {run_id!r}" if dedupe_key is None else f"dedupe key {dedupe_key!r} or id {run_id!r}"
            if number_of(cause) is not None:
                held += ", or a key beside it,"  # MySQL may lock the gap between two
            raise LedgerUnavailable(
                f"the ledger's database waited in vain for another transaction: {first_line(cause)}. {said}. Perhaps somebody has "
                f"enqueued {held} in a transaction that he has not ended; call again when he has."
            ) from cause
        what = "refused to write" if is_refused(cause) else "did not answer"
        raise LedgerUnavailable(
            f"the ledger's database {what}: {first_line(cause)}. {said}: {cure_of(cause)}, then call again{found}.",
            ambiguous=error.ambiguous,
        ) from cause


def _bound_the_wait(connection: Connection, milliseconds: int) -> None:
    """Let an insert wait so long for a caller who has written the same key in a transaction that he does not end.

    On MySQL and SQLite no statement waits for long.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")


def _send(runtime: Runtime, run_id: str, work: Any) -> RowMapping:
    """Commit, and ask again where the answer was lost: the run's id is the caller's, so a retry is the same run."""
    for tried in range(_TRIES):
        try:
            with values_refused(run_id, "enqueue"):
                row: RowMapping = runtime.boundary.commit("enqueue", runtime.engine, work)
        except LedgerUnavailable as error:
            if not error.ambiguous or tried == _TRIES - 1:
                raise
            runtime.clock.pause(_PAUSE_SECONDS)
        else:
            return row
    raise AssertionError("unreachable")


def recovery_mode(mode: object) -> Recovery:
    """Return the recovery mode of this name.

    Raises:
        AgentTasksError: there is none.
    """
    known = [str(word) for word in Recovery]
    if mode not in known:
        raise AgentTasksError(
            f"recovery must be one of {', '.join(known)}, got {mode!r}.{did_you_mean(str(mode), known)}"
        )
    return Recovery(mode)


def check_sent_id(name: str, value: object) -> None:
    """Refuse what cannot be the id of a message, or the name of a queue, in every database and with every broker."""
    check_id(name, value)
    if len(str(value).encode()) > MAX_SENT_BYTES:  # AMQP has one byte for its length, so nobody could ever ring for it
        raise AgentTasksError(
            f"{name} must be a text of at most {MAX_SENT_BYTES} bytes in UTF-8, got {reprlib.repr(value)}."
        )


def check_id(name: str, value: object) -> None:
    """Refuse what cannot be an id in every database."""
    if not is_id(value):
        raise AgentTasksError(
            f"{name} must be a text of 1 to {MAX_ID_LENGTH} characters without NUL, got {reprlib.repr(value)}."
        )
