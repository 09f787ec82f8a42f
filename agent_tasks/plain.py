"""Plain Celery tasks as runs: the definition of one, which is an agent of one step, and how a call of it becomes a run."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery.exceptions import MaxRetriesExceededError, SoftTimeLimitExceeded
from celery.utils.functional import maybe_list

from agent_tasks.agent import Agent
from agent_tasks.around import call_before_start, call_body
from agent_tasks.current import attempt_of_this_context
from agent_tasks.enqueue import FollowedRunGone, check_id, make_run, saying_whether_made
from agent_tasks.errors import (
    AgentTasksError,
    ArgumentsNotStorable,
    BadOutcome,
    RunFailed,
    ToolFailed,
)
from agent_tasks.lines import NEXT_STEP
from agent_tasks.operations import recorded_failure
from agent_tasks.outcomes import Calls, Done, error_line
from agent_tasks.plain_declaration import PlainDeclaration
from agent_tasks.refusals import refused_argument
from agent_tasks.schema import MAX_ID_LENGTH
from agent_tasks.states import FINISHED, Effect, RunStatus
from agent_tasks.steps import Step
from agent_tasks.suspensions import Wait
from agent_tasks.tools import Tool, check_guarded
from agent_tasks.waits import Sleep, WaitUntil
from checkpoint import CheckpointState, codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery, Task
    from sqlalchemy import Connection, RowMapping

    from agent_tasks.attempt import Attempt
    from agent_tasks.declarations import Guard
    from agent_tasks.joining import CallersTransaction
    from agent_tasks.messages import Message
    from agent_tasks.operations import Operation
    from agent_tasks.runtime import Runtime

#: Name of the only step of a plain task's run.
STEP = "run"

#: In the input of a run: the run that does its job.
FOLLOWS = "follows"

#: Between two looks at a run that another one follows, at the longest.
LONGEST_LOOK_SECONDS = 10.0

_operation: ContextVar[Operation | None] = ContextVar("agent_tasks_operation", default=None)


class PlainJob(Agent):
    """What one plain task declares: its body is one operation (``effect=``), or a step that calls its ``tools=``.

    Args:
        task: the class of the Celery task.
        app: that it is bound to.

    Raises:
        UnguardedTool: it does not say how its effects are guarded.
        ConfigurationError: an option is misspelt, or allows retries without an end.
    """

    def __init__(self, task: type[Task], app: Celery) -> None:
        name, said = str(task.name), PlainDeclaration.of(task)
        self.signature, self._dedupe_on, self._said_of_self = said.signature, said.dedupe_on, said.said_of_self
        super().__init__(name, app=app, tools=said.tools)
        self.tool: Tool[..., Any] | None = None
        if said.guard is not None:
            self.tool = self._operation_of(name, said.guard)
            self.tools[name] = self.tool
        self.start = Step(STEP, name, self._work)
        self.steps[STEP] = self.start
        refused = {error for each in self.tools.values() for error in each.guard.refused}
        own = (MaxRetriesExceededError, SoftTimeLimitExceeded, ToolFailed, AgentTasksError)
        self.known_errors = (*maybe_list(task.throws or ()), *sorted(refused, key=repr), *own)
        if self.tool is not None:
            self.tool.known_errors = self.known_errors

    @property
    def subject(self) -> str:
        """What messages call it."""
        return f"task {self.name!r}"

    @property
    def task(self) -> Task:
        """The Celery task itself."""
        return self.app._tasks[self.name]

    @property
    def has_effects(self) -> bool:
        """Whether anything that its body may do changes the world."""
        return any(each.guard.effect is not Effect.READ for each in self.tools.values())

    def check_ready(self) -> None:
        """Refuse what can only be seen once the whole module is loaded.

        Raises:
            UnguardedTool: the task is ``probed`` and has no probe.
        """
        for each in self.tools.values():
            check_guarded(each, self.subject)

    # -- a call becomes a run ------------------------------------------------------------------------------------------

    def make(
        self,
        runtime: Runtime,
        run_id: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        message: Message,
        *,
        own_id: bool = True,
        joined: CallersTransaction | None = None,
        lock_timeout_ms: int | None = None,
        **values: Any,
    ) -> RowMapping:
        """Write the run of one call, or find the one that exists.

        A call that ``dedupe_on`` says is the job of an earlier one, and that is known by an id of its own or has
        something called after it, gets a run that does nothing but end as the earlier one does.

        Args:
            runtime: whose ledger gets it.
            run_id: the id of the Celery task.
            args: positional arguments.
            kwargs: keyword arguments.
            message: what else the call asks for.
            own_id: whether anybody knows the call by this id.
            joined: a transaction of the caller's, who commits it; the ledger's own if not given.
            lock_timeout_ms: see :func:`agent_tasks.enqueue.make_run`.
            **values: for ``runs.insert``.

        Raises:
            AgentTasksError: the id, or the name of the queue, is no text that every database stores.
            TypeError: the arguments do not fit the task.
            ArgumentsNotStorable: one of them cannot be stored; no run was made.
            DedupeConflict: the run that exists was started with other arguments.
            LedgerUnavailable: as for :func:`agent_tasks.enqueue.make_run`.
        """
        self.check_ready()
        check_id("task_id", run_id)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.task.__name__}() {error}{self._said_of_self}") from None
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        state = {"args": list(args), "kwargs": dict(kwargs)}
        try:
            codec.dumps(state)
            digest, dedupe_key = codec.digest(arguments), self._dedupe_key(arguments)
        except CheckpointError as error:
            said = refused_argument(error, arguments, self.subject, ", so no run was made")
            raise ArgumentsNotStorable(said) from error
        values |= {"next_step": STEP, "task": self.name, "message": message.encoded(self.name)}
        values |= {"keeps_result": int(message.is_awaited), "agent": self.name, "input_digest": digest}
        values |= {"id_is_new": not own_id, "lock_timeout_ms": lock_timeout_ms}
        followed = None
        if dedupe_key is not None and own_id:
            with saying_whether_made(run_id, dedupe_key):
                followed = self._followed(runtime, run_id, joined)
        while True:
            if followed is None:
                checkpoint = CheckpointState(run_id=run_id, seq=0, agent_state=state, metadata={NEXT_STEP: STEP})
                row = make_run(runtime, checkpoint, dedupe_key=dedupe_key, joined=joined, **values)
                unheard = message.is_awaited and not row["keeps_result"]  # the earlier call wanted no result
                if row["run_id"] == run_id or not (own_id or message.calls_something or unheard):
                    return row
                followed = str(row["run_id"])
            follower = {**state, FOLLOWS: followed}
            checkpoint = CheckpointState(run_id=run_id, seq=0, agent_state=follower, metadata={NEXT_STEP: STEP})
            try:
                return make_run(runtime, checkpoint, dedupe_key=None, follows=followed, joined=joined, **values)
            except FollowedRunGone:  # deleted since it was found: its key is free, and this call may be the job itself
                followed = None

    def _followed(self, runtime: Runtime, run_id: str, joined: CallersTransaction | None) -> str | None:
        """Return the run that an existing run follows, since a call may be made again."""

        def look(connection: Connection) -> CheckpointState | None:
            return runtime.store.load_latest(run_id, connection=connection)

        state = runtime.boundary.read(runtime.engine, look) if joined is None else joined.read(look)
        followed: str | None = None if state is None else state.agent_state.get(FOLLOWS)
        return followed

    def _dedupe_key(self, arguments: Mapping[str, Any]) -> str | None:
        if not self._dedupe_on:
            return None
        named = {name: arguments[name] for name in self._dedupe_on}
        readable = ", ".join(f"{name}={value!r}" for name, value in named.items())
        plain = all(isinstance(value, (str, int)) for value in named.values())
        return readable if plain and readable.isprintable() and len(readable) <= MAX_ID_LENGTH else codec.digest(named)

    # -- the run's only step -------------------------------------------------------------------------------------------

    def _work(self, state: Any) -> Done:
        attempt = attempt_of_this_context()
        assert attempt is not None  # noqa: S101 - the coordinator bound it
        # A copy, so that what a body does to its arguments is not what the next attempt gets.
        args, kwargs = codec.loads(codec.dumps([state["args"], state["kwargs"]]))
        if FOLLOWS in state:
            with self.task.answering(attempt.run, args, kwargs):
                return Done(self._follow(attempt, state[FOLLOWS]))
        with _no_operation(), self.task.answering(attempt.run, args, kwargs):
            call_before_start(self.task, args, kwargs)
            returned = call_body(self.task, args, kwargs) if self.tool is None else self.tool(*args, **kwargs)
            if isinstance(returned, Calls):
                raise BadOutcome(
                    f"run {attempt.run_id!r}: {self.subject} returned calls(…), and a plain task has no next step. Make them in "
                    "its body: return run_calls([…])."
                )
            if isinstance(returned, (Sleep, WaitUntil)):
                raise BadOutcome(
                    f"run {attempt.run_id!r}: {self.subject} returned a wait, and a plain task has no next step. Let it be tried "
                    "again later with self.retry(countdown=…), or make it an agent."
                )
            return Done(returned)

    def _follow(self, attempt: Attempt, run_id: str) -> Any:
        """End as another run does."""
        runtime = attempt.runtime
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, run_id))
        if row is None:
            raise RunFailed(f"run {run_id!r}, which did the same job, was deleted before its end was asked for.")
        if row["status"] not in FINISHED:
            pause = min(runtime.settings.backoff_seconds(attempt.number), LONGEST_LOOK_SECONDS)
            attempt.suspend(Wait(f"for run {run_id}, which does the same job", seconds=pause))
        if row["status"] == RunStatus.SUCCEEDED:
            return codec.loads(row["output"])
        raise self.failure(row, None) or RunFailed(f"run {run_id!r}: {error_line(codec.loads(row['error']))}")

    def _operation_of(self, name: str, guard: Guard) -> Tool[..., Any]:
        def body(operation: Operation, /, *args: Any, **kwargs: Any) -> Any:
            token = _operation.set(operation)
            try:
                return call_body(self.task, args, kwargs)
            finally:
                _operation.reset(token)

        first = inspect.Parameter("_operation_", inspect.Parameter.POSITIONAL_ONLY)
        setattr(body, "__signature__", _with_first(self.signature, first))  # noqa: B010 - of a function, to mypy
        return Tool(body, name, guard, bind=True, kind="task")

    # -- how it ended --------------------------------------------------------------------------------------------------

    def failure(self, row: RowMapping, original: BaseException | None) -> BaseException | None:
        """Return the exception that a failed run ended on, if its class is known here: the same in every answer."""
        return recorded_failure(codec.loads(row["error"]), self.known_errors, original)

    def _check_name(self, name: object) -> None:
        """Any name of a Celery task will do that the ledger can hold: its declaration was asked."""


def operation_of_this_context() -> Operation | None:
    """Return the operation that the body of a task with ``effect=`` is, or None outside of one."""
    return _operation.get()


@contextmanager
def _no_operation() -> Iterator[None]:
    # A body may run another task inline, which has no part in the body's operation.
    token = _operation.set(None)
    try:
        yield
    finally:
        _operation.reset(token)


def _with_first(signature: inspect.Signature, first: inspect.Parameter) -> inspect.Signature:
    return inspect.Signature([first, *signature.parameters.values()])
