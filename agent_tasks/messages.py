"""What Celery's own features need of a plain task's call: kept with its run, and put back into each doorbell's request.

Callbacks, chains and chords stay in the ledger and are read from there by the worker that ends the run, so that no lost,
stale or forged message decides what is called next (I1). Only what the worker's parent and Flower look at goes with the
doorbell: names, representations of the arguments, time limits, stamps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqp.serialization import dumps as amqp_dumps
from celery.canvas import maybe_signature
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.functional import maybe_list
from kombu.utils import json as kombu_json

from agent_tasks.errors import ArgumentsNotStorable
from agent_tasks.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery, Task

_json: Any = kombu_json  # untyped; it keeps dates, decimals and bytes apart, and names no code to import

#: Headers of Celery's message protocol that the worker's parent or Flower reads, by the name that the request has them by.
_HEADERS = (
    "shadow",
    "group",
    "group_index",
    "timelimit",
    "root_id",
    "parent_id",
    "argsrepr",
    "kwargsrepr",
    "origin",
    "replaced_task_nesting",
    "stamped_headers",
    "stamps",
)

#: Most bytes of the headers of a doorbell: a frame of AMQP has 128 KiB.
MAX_HEADERS_BYTES = 64 * 1024


@dataclass
class Message:
    """One call of a plain task, but for its arguments.

    Attributes:
        headers: that go with each doorbell.
        callbacks, errbacks: signatures to call when the run has succeeded or failed.
        chain: signatures that follow, the next one last.
        chord: signature of the body of the chord that the call is a part of.
        reply_to: where results go that are sent as messages.
    """

    headers: dict[str, Any]
    callbacks: list[Any] = field(default_factory=list)
    errbacks: list[Any] = field(default_factory=list)
    chain: list[Any] = field(default_factory=list)
    chord: Any = None
    reply_to: str | None = None

    @classmethod
    def of_call(
        cls,
        app: Celery,
        task: Task,
        run_id: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: dict[str, Any],
    ) -> Message:
        """Return what a call with these options of ``apply_async`` asks for.

        Args:
            app: of the task.
            task: that is called.
            run_id: of the call's run, which is its task id.
            args: positional arguments.
            kwargs: keyword arguments.
            options: of ``apply_async``.
        """
        parent = app.current_worker_task
        above = {} if parent is None else {"root_id": parent.request.root_id or parent.request.id}
        above |= {} if parent is None else {"parent_id": parent.request.id}
        given = {name: options.get(name) for name in ("root_id", "parent_id") if options.get(name)}
        stamped = options.get("stamped_headers") or []
        made = app.amqp.as_task_v2(
            run_id,
            task.name,
            tuple(args),
            dict(kwargs),
            **{**above, **given},
            **{
                name: options.get(name)
                for name in (
                    "group_id",
                    "group_index",
                    "time_limit",
                    "soft_time_limit",
                    "shadow",
                    "argsrepr",
                    "kwargsrepr",
                )
            },
            origin=options.get("origin"),
            ignore_result=options.get("ignore_result"),
            replaced_task_nesting=options.get("replaced_task_nesting", 0),
            stamped_headers=stamped,
            **{stamp: options[stamp] for stamp in stamped},
        )
        headers = {name: made.headers[name] for name in (*_HEADERS, "ignore_result")}
        return cls(
            {**(options.get("headers") or {}), **headers},
            *_frozen(app, options.get("link"), options.get("link_error"), options.get("chain"), options.get("chord")),
            reply_to=options.get("reply_to") or app.thread_oid,
        )

    @classmethod
    def of_request(cls, app: Celery, task: Task) -> Message:
        """Return what somebody's own message asked for, which the task has as its request.

        Raises:
            ArgumentsNotStorable: what it calls when the run has ended cannot be read; it is taken out of the request, where
                Celery would stumble over it, too.
        """
        request = task.request
        headers = {name: request.get(name) for name in _HEADERS}
        headers["ignore_result"] = _ignores_result(task)
        own = dict(request.headers or {})
        wrong = [
            name for name in ("callbacks", "errbacks", "chain", "chord") if not _is_readable(app, request.get(name))
        ]
        if wrong:
            request.update(dict.fromkeys(wrong))
            raise ArgumentsNotStorable(
                f"task {task.name!r} was called by a message whose {' and '.join(wrong)} cannot be read, so no run was made."
            )
        parts = _frozen(app, request.callbacks, request.errbacks, request.chain, request.chord)
        return cls({**own, **headers}, *parts, reply_to=request.reply_to)

    @property
    def is_awaited(self) -> bool:
        """Whether Celery has something to do when the run has ended: a result to store, something to call."""
        return not self.headers["ignore_result"] or self.calls_something

    @property
    def calls_something(self) -> bool:
        """Whether something is called when the run has ended."""
        return bool(self.callbacks or self.errbacks or self.chain or self.chord)

    def encoded(self, task: str) -> bytes:
        """Return this as it is stored.

        Raises:
            ArgumentsNotStorable: a header or the argument of a signature is no JSON, or no broker takes the headers of the
                doorbells; no run was made.
        """
        try:
            stored = str(_json.dumps(vars(self))).encode()
        except Exception as error:
            raise ArgumentsNotStorable(
                f"task {task!r}: a header, or an argument of its callbacks, chain or chord, cannot be sent as JSON, so no "
                f"run was made: {error}"
            ) from error
        try:
            _check_headers(self.headers)
        except Exception as error:
            raise ArgumentsNotStorable(
                f"task {task!r}: its headers and stamps cannot be sent by every broker, so no run was made: {error}"
            ) from error
        return stored

    def put_into(self, request: Any) -> None:
        """Let Celery see in a request what was asked for when the run was made."""
        request.update({name: self.headers.get(name) for name in _HEADERS})
        request.update(
            callbacks=self.callbacks or None,
            errbacks=self.errbacks or None,
            chain=self.chain or None,
            chord=self.chord,
            reply_to=self.reply_to,
        )


def read_message(stored: bytes) -> Message:
    """Return the message of a run."""
    return Message(**_json.loads(stored.decode()))


def headers_of(stored: bytes | None) -> dict[str, Any]:
    """Return the headers that go with a doorbell."""
    return {} if stored is None else read_message(stored).headers


def show_run(request: Any, run: Mapping[Any, Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Let a request be that of a run: what was called, what follows it, and how often it was retried.

    Args:
        request: of the task that works on the run.
        run: its row.
        args: the recorded ones.
        kwargs: the recorded ones.
    """
    # In place, since Celery's tracer hands the same list and the same dict to the task's hooks.
    if isinstance(request.args, list) and isinstance(request.kwargs, dict):
        request.args[:] = args
        request.kwargs.clear()
        request.kwargs.update(kwargs)
    request.update(retries=int(run["retries"]))
    Progress.of(request).shown = True
    read_message(run["message"]).put_into(request)


def _ignores_result(task: Task) -> bool:
    """Tell what a message says of its result, else its task; Celery's own function for it stands elsewhere in each version."""
    said = vars(task.request).get("ignore_result")  # where nothing was said, the request's class says False
    return bool(task.ignore_result if said is None else said)


def _frozen(app: Celery, *parts: Any) -> tuple[list[Any], list[Any], list[Any], Any]:
    """Give each callback its id now, so that one that is sent again is sent under the same."""
    callbacks, errbacks, chain = ([_freeze(app, each) for each in maybe_list(part) or ()] for part in parts[:3])
    return callbacks, errbacks, chain, None if parts[3] is None else _freeze(app, parts[3])


def _check_headers(headers: Mapping[str, Any]) -> None:
    """Refuse what RabbitMQ does not take: with each doorbell it would end the connection, and other doorbells with it.

    Raises:
        Exception: of whatever class, since it is that of the encoder.
    """
    _json.dumps(headers, allow_nan=False)
    size = len(amqp_dumps("F", [headers]))
    if size > MAX_HEADERS_BYTES:
        raise ValueError(f"they have {size} bytes, {MAX_HEADERS_BYTES} at the most fit beside a doorbell")


def _is_readable(app: Celery, part: Any) -> bool:
    """Tell whether Celery can call this: nothing, a signature, or a list of them."""
    try:
        return all(isinstance(_freeze(app, each).task, str) for each in maybe_list(part) or ())
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # noqa: BLE001 - somebody's own message may hold anything
        return False


def _freeze(app: Celery, signature: Any) -> Any:
    frozen = maybe_signature(signature, app=app).clone()
    frozen.freeze()
    return frozen
