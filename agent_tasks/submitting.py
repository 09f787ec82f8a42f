"""``apply_async`` of a plain task: what each of Celery's options becomes in the run of the call."""

from __future__ import annotations

import reprlib
from datetime import datetime
from math import nan
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware

from agent_tasks.enqueue import MAX_PRIORITY, check_sent_id
from agent_tasks.errors import AgentTasksError, did_you_mean
from agent_tasks.handle import not_committed
from agent_tasks.integration import AppState
from agent_tasks.joining import is_database, join
from agent_tasks.limits import LONGEST_SECONDS, check_limits
from agent_tasks.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery, Task

    from agent_tasks.plain import PlainJob
    from agent_tasks.runtime import Runtime

#: Options that become part of the run, its doorbells or its result.
_HONOURED = frozenset(
    {"countdown", "eta", "expires", "ignore_result", "priority", "queue", "route_name", "shadow"}
    | {"link", "link_error", "chain", "chord", "group_id", "group_index", "root_id", "parent_id", "add_to_parent"}
    | {"argsrepr", "kwargsrepr", "headers", "stamped_headers", "origin", "reply_to", "replaced_task_nesting"}
    | {"time_limit", "soft_time_limit"}
)

#: Options about how one message is sent. The call is in the ledger, and a doorbell has next to nothing in it.
_WITHOUT_MEANING = frozenset(
    {"connection", "producer", "publisher", "retry", "retry_policy"}
    | {"compression", "delivery_mode", "serializer", "result_cls", "task_type"}
)


#: Options about where one message goes, or what becomes of it there, which a call in the ledger has no use for.
_OF_A_MESSAGE = frozenset(
    {"exchange", "exchange_type", "routing_key", "mandatory", "immediate", "declare", "retries", "timeout"}
)

#: Names of headers that say what a message is; a caller's own must not stand in for them.
_HEADERS_OF_THE_PROTOCOL = frozenset(
    {
        "lang",
        "task",
        "id",
        "shadow",
        "eta",
        "expires",
        "group",
        "group_index",
        "retries",
        "timelimit",
        "root_id",
        "parent_id",
    }
    | {"argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps"}
)


#: The option that says in whose transaction a call is written; Celery's own ``connection`` is one to the broker.
CONNECTION = "ledger_connection"


def submit(
    task: Task,
    job: PlainJob,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str | None,
    options: dict[str, Any],
    connection: object = None,
) -> AsyncResult:
    """See ``AgentTask.apply_async``."""
    app, runtime = task.app, AppState.of(task.app).runtime
    run_id = uuid() if task_id is None else task_id
    check_sent_id("task_id", run_id)
    options = {**task._get_exec_options(), **options}
    _check(task, options)
    joined = join(connection, runtime, CONNECTION)
    dump_models = getattr(task, "_dump_pydantic_arguments", None)
    if dump_models is not None:
        args, kwargs = dump_models(args, kwargs)
    options["shadow"] = options.get("shadow") or task.shadow_name(args, kwargs, options)
    ignored = task.ignore_result if options.get("ignore_result") is None else options["ignore_result"]
    options["ignore_result"] = ignored or isinstance(task.backend, DisabledBackend)
    queue, priority = _route(app, task, args, kwargs, options)
    begins_in = _seconds_of(task, options, "countdown") or _seconds_of(task, options, "eta")
    row = job.make(
        runtime,
        run_id,
        args,
        kwargs,
        Message.of_call(app, task, run_id, args, kwargs, options),
        own_id=task_id is not None,
        joined=joined,
        queue=queue,
        priority=priority,
        begins_in=begins_in if begins_in is not None and begins_in > 0 else None,
        ends_in=_seconds_of(task, options, "expires"),
    )
    run_id = str(row["run_id"])
    if joined is None:
        runtime.ring_as(row)
        result = task.AsyncResult(run_id)
    else:
        joined.ring_after_commit(run_id)
        result = ResultInTransaction(run_id, task, runtime)
    result.ignored = ignored
    parent = app.current_worker_task
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)
    return result


class ResultInTransaction(AsyncResult):
    """The result of a call that was written in a transaction of its caller, who may not have committed it.

    Args:
        run_id: of the call.
        task: that was called.
        runtime: whose ledger will have the run.
    """

    def __init__(self, run_id: str, task: Task, runtime: Runtime) -> None:
        super().__init__(run_id, backend=task.backend, task_name=task.name, app=task.app)
        self._runtime = runtime

    def get(self, *args: Any, **options: Any) -> Any:
        """Wait for the result, as Celery's own does; not for a run that nobody can begin.

        Raises:
            RunNotFound: the caller has not committed the transaction, or has rolled it back.
        """
        runtime = self._runtime
        if runtime.boundary.read(runtime.engine, lambda own: runtime.runs.find(own, self.id)) is None:
            raise not_committed(self.id)
        return super().get(*args, **options)

    wait = get

    def __reduce__(self) -> Any:
        return AsyncResult, self.__reduce_args__()


def _seconds_of(task: Task, options: Mapping[str, Any], name: str) -> float | None:
    given = options.get(name)
    if given is None:
        return None
    try:
        seconds = seconds_until(task.app, given)
    except (TypeError, ValueError, AttributeError, OverflowError):
        seconds = nan
    return check_seconds(f"{name}= of task {task.name!r}", seconds, given)


def check_seconds(subject: str, seconds: float, given: object) -> float:
    """Refuse a time that no clock of a database reaches.

    Raises:
        AgentTasksError: so it is; nothing was sent.
    """
    if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise AgentTasksError(
            f"{subject} must be a number of seconds, or a date and time, less than a hundred years away, got "
            f"{reprlib.repr(given)}. Nothing was sent."
        )
    return seconds


def seconds_until(app: Celery, moment: float | datetime | str) -> float:
    """Return how far away a moment is, given as Celery takes it: in seconds, or as a date and time."""
    if isinstance(moment, (int, float)):
        return float(moment)
    return float((maybe_make_aware(maybe_iso8601(moment), app.timezone) - app.now()).total_seconds())


def _check(task: Task, options: dict[str, Any]) -> None:
    check_limits(f"task {task.name!r}", options, " Nothing was sent.", AgentTasksError)
    if task.soft_time_limit and task.time_limit and task.soft_time_limit > task.time_limit:
        raise ValueError("soft_time_limit must be less than or equal to time_limit")
    if is_database(options.get("connection")):
        raise AgentTasksError(
            f"task {task.name!r} was called with a connection= to a database. For Celery that is the connection to the "
            f"broker; a call is written in your transaction with {CONNECTION}=. Nothing was sent."
        )
    for name in options.get("headers") or {}:
        if name in _HEADERS_OF_THE_PROTOCOL or str(name).startswith("agent_"):
            raise AgentTasksError(
                f"task {task.name!r} was called with a header {name!r}, which says what its messages are. Nothing was sent; "
                "give your header another name."
            )
    stamps = set(options.get("stamped_headers") or ())
    given = [name for name, value in options.items() if value is not None and not (name == "retries" and value == 0)]
    for name in given:
        if name not in _HONOURED | _WITHOUT_MEANING | stamps:
            if name in ("dedupe_key", "run_id", "idempotency_key", "dedupe_on"):
                raise AgentTasksError(
                    f"task {task.name!r} was called with {name}=, which agents have. Nothing was sent. To make a job once, declare "
                    "at the task which parameters name it, dedupe_on=(…), or give the call a task_id= of your own."
                )
            near = did_you_mean(name, _HONOURED | {CONNECTION})
            if near and name not in _OF_A_MESSAGE:
                raise AgentTasksError(
                    f"task {task.name!r} was called with {name}=, which is no option of a call. Nothing was sent.{near}"
                )
            raise AgentTasksError(
                f"task {task.name!r} was called with {name}=, which cannot be honoured: the call is kept in the ledger, and "
                f"its doorbells go to a queue by its name. Nothing was sent."
            )


def _route(
    app: Celery, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> tuple[str, int]:
    wanted = {name: options[name] for name in ("queue", "priority") if options.get(name) is not None}
    route = app.amqp.router.route(wanted, options.get("route_name") or task.name, args, kwargs, task)
    queue, priority = route.get("queue"), route.get("priority") or 0
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise AgentTasksError(
            f"priority of task {task.name!r} must be a whole number from 0 to {MAX_PRIORITY}, got {priority!r}."
        )
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue), priority
