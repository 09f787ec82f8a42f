"""Operations: recorded calls of tools, as bodies, probes and persons read them."""

from __future__ import annotations

import builtins
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS, microseconds
from agent_tasks.errors import NotKept, ToolFailed, is_a
from agent_tasks.recovery import Recorded
from agent_tasks.states import Effect, OperationStatus
from agent_tasks.texts import storable
from checkpoint import codec
from checkpoint.words import class_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from agent_tasks.clock import Clock
    from agent_tasks.declarations import Guard
    from agent_tasks.interim import Awaited, Interim
    from agent_tasks.tools import Tool

#: What of a vendor's words is kept, in characters.
MAX_SAID = 4000

#: An exception's arguments are kept up to so many bytes; a client may put a whole answer there.
MAX_ARGS_BYTES = 64 * 1024

#: Who settled an operation where a probe did; a person gives a reason, too.
PROBE = "probe"

#: These end a process and say nothing about a tool, so they are no failure of it: the step's lease ends instead.
CRASHES = (MemoryError, SystemExit)


@dataclass(repr=False)
class Operation:
    """One recorded call of a tool; the first argument of bound bodies and of probes.

    Attributes:
        operation_id: its identity; the same in every attempt.
        idempotency_key: what to send to a vendor; a function of the operation, never of the attempt.
        run_id, seq: the run, and the number of the checkpoint that the calling step makes.
        tool, effect: what was called.
        status, attempts: where it stands, and how many requests were begun.
        external_id: the vendor's name of the effect, from the moment at which the body, or the probe, has it.
        first_started_at, started_at, horizon_at: microseconds since 1970 on the database's clock, or None.
        connection: in the body of a ``transactional`` tool, the connection whose commit records it.
    """

    row: Mapping[Any, Any]
    clock: Clock
    read_at: float  # local clock when the row was read
    deadline: float | None = None  # local clock; of the request under way
    connection: Connection | None = None
    interim: Interim | None = None  # while its body runs

    def __repr__(self) -> str:
        return f"<operation {self.tool} {self.effect!s} {self.status!s} attempts={self.attempts}>"

    operation_id = property(lambda self: str(self.row["operation_id"]))
    idempotency_key = property(lambda self: str(self.row["idempotency_key"]))
    run_id = property(lambda self: str(self.row["run_id"]))
    seq = property(lambda self: int(self.row["seq"]))
    tool = property(lambda self: str(self.row["tool"]))
    effect = property(lambda self: Effect(self.row["effect"]))
    status = property(lambda self: OperationStatus(self.row["status"]))
    attempts = property(lambda self: int(self.row["attempts"]))
    unsettled = property(lambda self: int(self.row["unsettled"]))
    external_id = property(lambda self: self.row["external_id"])
    first_started_at = property(lambda self: self.row["first_started_at"])
    started_at = property(lambda self: self.row["started_at"])
    horizon_at = property(lambda self: self.row["horizon_at"])

    @property
    def args(self) -> dict[str, Any]:
        """The recorded arguments by parameter name."""
        return dict(codec.loads(self.row["args"]))

    @property
    def result(self) -> Any:
        """The recorded result, decoded anew, so that nobody's change of it is seen by others."""
        return None if self.row["result"] is None else codec.loads(self.row["result"])

    @property
    def progress(self) -> Any:
        """What the body of this or an earlier attempt saved last, decoded anew; None if nothing was saved."""
        stored = self.row.get("progress")
        return None if stored is None else codec.loads(stored)

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """What probes, late outcomes and persons said, oldest first."""
        return [] if self.row["evidence"] is None else list(codec.loads(self.row["evidence"]))

    @property
    def error(self) -> dict[str, Any] | None:
        """The recorded failure: ``type``, ``text``, ``args``."""
        return None if self.row["error"] is None else dict(codec.loads(self.row["error"]))

    def save_progress(self, value: Any) -> None:
        """Note how far the body came, in a commit of its own; the next body of this call reads it as ``operation.progress``.

        Not for ``read`` and ``transactional`` tools: nothing of these is left after a crash, and they begin anew. An async
        body writes ``await operation.aio.save_progress(…)``.

        Args:
            value: replaces what was saved before; as large as any stored value.

        Raises:
            NotKept: it cannot be stored, or there is nowhere to keep it; what was saved before stays.
            NotAwaited: this is the event loop.
            LeaseLost: another attempt owns the run; nothing was written, and this body should end.
            StepSuspended: the ledger gave no answer until the step's time limit, or a time limit struck.
        """
        body = self._body("save_progress")
        body.check_place("save_progress")
        body.save_progress(value)

    def record_external_id(self, external_id: str) -> None:
        """Record the vendor's name of the effect, in a commit of its own, as soon as the vendor says it.

        The probe of a call whose answer never came, and the person who is asked, read it. After a lost lease it is kept as
        evidence. An async body writes ``await operation.aio.record_external_id(…)``.

        Args:
            external_id: a text of at most 400 characters. A call has one: the same again changes nothing. A later request has
                another one where the earlier one is known not to have happened, or may be repeated.

        Raises:
            NotKept: it is no such text, or another one than was recorded; the message names both.
            NotAwaited: this is the event loop.
            StepSuspended: the ledger gave no answer until the step's time limit, or a time limit struck.
        """
        body = self._body("record_external_id")
        body.check_place("record_external_id")
        body.record_external_id(external_id)

    @property
    def aio(self) -> Awaited:
        """What an async body awaits: ``await operation.aio.save_progress(…)``, ``.record_external_id(…)``."""
        return self._body("aio").awaited

    def _body(self, said: str) -> Interim:
        if self.interim is not None:
            return self.interim
        call = f"operation.{said} of {self.tool!r} (operation {self.operation_id})"
        if self.effect is Effect.READ:
            raise NotKept(
                f"{call} has nowhere to write: of a 'read' nothing is recorded before its result. Nothing was written; declare "
                "the tool effect='repeatable', which may go on where it was, or leave the call out."
            )
        if self.effect is Effect.TRANSACTIONAL:
            raise NotKept(
                f"{call} has nothing to keep: a 'transactional' body that does not come to its end is rolled back, and begins "
                "anew. Nothing was written; leave the call out."
            )
        raise NotKept(
            f"{call} was used outside of the call's body. Nothing was written; use it in the body, while it runs."
        )

    def remaining(self) -> float:
        """Return the seconds left for the request under way; counted from before its intent was sent.

        Give it to your client as the deadline of the *whole* call. 0 when nothing is left.
        """
        return float("inf") if self.deadline is None else max(0.0, self.deadline - self.clock.local())

    def now(self) -> int:
        """Return the database's time, as read with the row and carried on by the local clock."""
        return int(self.row["now"]) + int((self.clock.local() - self.read_at) * MICROSECONDS)

    def in_(self, seconds: float) -> int:
        """Return the moment that many seconds from now, on the database's clock."""
        return self.now() + int(seconds * MICROSECONDS)

    def recorded(self, digest: str | None, guard: Guard, timeout_us: int) -> Recorded:
        """Return what the decision table reads.

        Args:
            digest: of the arguments asked for now, or None if the line does not ask for this operation.
            guard: the tool's.
            timeout_us: how long one more request may take.
        """
        now, row = self.now(), self.row
        life_us = microseconds(guard.key_lifetime)
        return Recorded(
            status=self.status,
            attempts=self.attempts,
            same_args=digest is None or digest == row["args_digest"],
            same_effect=self.effect is guard.effect,
            asked=digest is not None,
            horizon_passed=row["horizon_at"] is None or row["horizon_at"] <= now,
            may_ask=row["ask_at"] is None or row["ask_at"] <= now,
            key_lives=row["first_started_at"] is None or row["first_started_at"] + life_us - now > timeout_us,
            result_missing=bool(row["result_missing"]),
            probe_said_no=row["resolved_by"] == PROBE and row["resolved_why"] is None,
        )


def text_of(said: object) -> str:
    """Return what an exception or an answer says, as a text that every database stores; it may come from anywhere."""
    try:
        text = str(said)
    except BaseException:  # noqa: BLE001 - what cannot be said must not hide that it was said
        return f"<{class_name(said)} without a text>"
    return storable(text[:MAX_SAID])


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as a text that every database stores; of a long one, its end."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an exception may do anything when it is looked at
        text = f"{name_of(error)}: {text_of(error)}"
    return text_of(text[-MAX_SAID:])


def name_of(error: BaseException) -> str:
    """Return the qualified name of an exception's class; Python's own go without their module."""
    return qualified(type(error))


def qualified(kind: type[BaseException]) -> str:
    """Return the name of a class of exceptions as records have it.

    Example:
        >>> qualified(KeyError), qualified(ToolFailed)
        ('KeyError', 'agent_tasks.errors.ToolFailed')
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def describe_failure(error: BaseException, known: tuple[type[BaseException], ...]) -> dict[str, Any]:
    """Return a failure as it is recorded; ``as`` names the class that every attempt sees.

    Args:
        error: what was raised.
        known: the classes that the definition names, beside Python's own.
    """
    fitting = sorted((c for c in known if is_a(error, c)), key=lambda c: type(error) is not c)
    seen_as = f"refused:{fitting[0].__module__}.{fitting[0].__qualname__}" if fitting else None
    if seen_as is None and getattr(builtins, type(error).__name__, None) is type(error):
        seen_as = f"builtin:{type(error).__name__}"
    try:
        args: tuple[Any, ...] | None = tuple(error.args)
        if len(codec.dumps(args)) > MAX_ARGS_BYTES:
            args = None
    except BaseException:  # noqa: BLE001 - an argument that cannot be stored must not hide the failure
        args = None
    failure = {"type": name_of(error), "text": text_of(error), "as": seen_as, "args": args}
    if recorded_failure(failure, known) is None:
        failure["as"] = None  # a later attempt cannot make an exception of this class, so this one raises none
    return failure


def failure_seen_by_step(
    failure: dict[str, Any], tool: Tool[..., Any], original: BaseException | None = None
) -> BaseException:
    """Return the exception that a step sees for a recorded failure: of the same class in every attempt."""
    seen = recorded_failure(failure, tool.known_errors, original)
    return seen or ToolFailed(tool.name, failure["type"], failure["text"], tool.kind)


def recorded_failure(
    failure: Mapping[str, Any], known: tuple[type[BaseException], ...], original: BaseException | None = None
) -> BaseException | None:
    """Return the exception that a record stands for, or None if its class is not known here.

    Classes come from the definition, such as a tool's ``refused=``, and from Python's built-ins; the record names no
    code to import (I11).
    """
    seen_as = failure.get("as")
    if seen_as is None:
        return None
    kind, _, name = seen_as.partition(":")
    if kind == "builtin":
        cls = getattr(builtins, name)
    else:
        cls = next((c for c in known if f"{c.__module__}.{c.__qualname__}" == name), None)
        if cls is None:  # the class left the definition since
            return None
    if original is not None and type(original) is cls:
        return original
    return _rebuilt(cls, failure["args"], failure["text"])


def _rebuilt(cls: type[BaseException], stored: Any, text: str) -> BaseException | None:
    args = (text,) if stored is None else tuple(stored)
    with suppress(Exception):  # a constructor with other parameters
        return cls(*args)
    try:
        rebuilt = cls.__new__(cls)
        rebuilt.args = args
    except Exception:  # noqa: BLE001 - ExceptionGroup, which insists on its exceptions
        return None
    return rebuilt
