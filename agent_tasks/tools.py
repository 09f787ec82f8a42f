"""Tools: functions that touch the world or cost money, declared with their effect."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from agent_tasks.errors import OutsideRun, UnguardedTool, did_you_mean
from agent_tasks.recovery import Promise
from agent_tasks.states import Effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_tasks.operations import Operation

P = ParamSpec("P")
R = TypeVar("R")

#: Effects of which a lost answer is a doubt.
_DOUBTFUL = (Effect.KEYED, Effect.PROBED, Effect.MANUAL)

#: How long a transactional body may hold the ledger's rows, unless it says so itself.
TRANSACTIONAL_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True)
class Guard:
    """How a tool's effect is guarded; the arguments of :func:`tool` that promise something."""

    effect: Effect
    timeout: timedelta | None = None
    settle: timedelta = timedelta(0)
    visible_after: timedelta = timedelta(0)
    key_lifetime: timedelta | None = None
    refused: tuple[type[Exception], ...] = ()
    why: str | None = None
    record: bool = True


class Tool(Generic[P, R]):
    """A declared tool. Call it inside a step; see :func:`tool`."""

    def __init__(
        self,
        body: Callable[..., R],
        name: str,
        guard: Guard,
        *,
        bind: bool,
        identity: tuple[str, ...] | None = None,
        key: Callable[..., str] | None = None,
        kind: str = "tool",
    ) -> None:
        #: Whose declaration it is, for messages: the body of a plain task is guarded as a tool is, and called a task.
        self.kind, self.subject = kind, f"{kind} {name!r}"
        self.body, self.name, self.guard, self.bind = body, name, guard, bind
        self.identity, self.key = identity, key
        #: Exception classes, beside Python's own, that every attempt sees again as they were raised.
        self.known_errors: tuple[type[BaseException], ...] = guard.refused
        self.probe_body: Callable[[Operation], Any] | None = None
        self.probe_timeout: timedelta | None = None
        parameters = list(inspect.signature(body).parameters.values())
        if bind and not parameters:
            raise UnguardedTool(
                f"{self.subject} is declared with bind=True and must have a first parameter for its operation, got none."
            )
        self.signature = inspect.Signature(parameters[1:] if bind else parameters)
        unknown = [n for n in identity or () if n not in self.signature.parameters]
        if unknown:
            raise UnguardedTool(
                f"identity= of {self.subject} must name its parameters ({', '.join(self.signature.parameters)}), "
                f"got {unknown[0]!r}.{did_you_mean(unknown[0], self.signature.parameters)}"
            )
        functools.update_wrapper(self, body)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} effect={self.guard.effect}>"

    @property
    def _word(self) -> str:
        # A task is named by its module, too.
        return self.name.rpartition(".")[2]

    @property
    def promise(self) -> Promise:
        """The part of the declaration that the recovery decision table reads."""
        return Promise(self.guard.effect, self.probe_body is not None, self.guard.timeout is not None)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the tool: its result, from the body or, after it succeeded once, from the ledger.

        Raises:
            OutsideRun: the tool has an effect and this is not a step of a run.
            ArgumentsNotStorable: an argument cannot be stored; nothing was sent.
            ToolFailed: the body failed (or the class that ``refused=`` or Python names).
        """
        from agent_tasks.calls import call
        from agent_tasks.current import attempt_of_this_context

        attempt = attempt_of_this_context()
        if attempt is not None:
            return call(attempt, self, self.bind_arguments(args, kwargs))  # type: ignore[no-any-return]
        if self.guard.effect is Effect.READ and not self.bind:
            return self.body(*args, **kwargs)
        raise OutsideRun(
            f"{self.subject} has the effect {str(self.guard.effect)!r} and was called outside a run, where nothing "
            f"is recorded. Call it in a step, or write {self.name}.unguarded(…) to do it without any promise."
        )

    def unguarded(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body outside any run, with no record and no promise.

        Raises:
            OutsideRun: the tool is bound to its operation, which does not exist outside a run.
        """
        if self.bind:
            raise OutsideRun(f"{self.subject} is declared with bind=True and needs an operation; call it in a step.")
        return self.body(*args, **kwargs)

    def bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, defaults included, as they are recorded."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def run(self, operation: Operation, arguments: dict[str, Any]) -> R:
        """Run the body with recorded arguments."""
        bound = self.signature.bind_partial()
        bound.arguments.update(arguments)
        first = (operation,) if self.bind else ()
        return self.body(*first, *bound.args, **bound.kwargs)

    @overload
    def probe(self, function: Callable[[Operation], Any], /) -> Callable[[Operation], Any]: ...

    @overload
    def probe(
        self, /, *, timeout: timedelta | None = None
    ) -> Callable[[Callable[[Operation], Any]], Callable[[Operation], Any]]: ...

    def probe(self, function: Callable[[Operation], Any] | None = None, /, *, timeout: timedelta | None = None) -> Any:
        """Declare the function that asks the world whether an operation happened.

        It gets the operation and returns ``Happened``, ``NotHappened``, ``AskAgain``, ``PartlyHappened`` or
        ``CannotTell``. What it raises, and a probe that is still at work after its timeout, count as ``CannotTell``.

        Args:
            function: gets the operation and answers.
            timeout: of one question; the tool's own ``timeout=`` if not given.

        Raises:
            UnguardedTool: neither the probe nor the tool has a timeout.
        """
        if function is None:
            return functools.partial(self._set_probe, timeout=timeout)
        return self._set_probe(function, timeout=timeout)

    def _set_probe(self, function: Callable[[Operation], Any], *, timeout: timedelta | None) -> Callable[..., Any]:
        timeout = timeout or self.guard.timeout
        if timeout is None:
            raise UnguardedTool(
                f"the probe of {self.subject} must have a timeout, got none: write @{self._word}.probe(timeout="
                "timedelta(seconds=…)), since a probe that hangs would hold its run for ever."
            )
        self.probe_body, self.probe_timeout = function, timeout
        return function


def tool(
    bare: Callable[..., Any] | None = None,
    /,
    *,
    effect: str | None = None,
    timeout: timedelta | None = None,
    settle: timedelta = timedelta(0),
    visible_after: timedelta = timedelta(0),
    key_lifetime: timedelta | None = None,
    refused: tuple[type[Exception], ...] = (),
    why: str | None = None,
    record: bool = True,
    bind: bool = False,
    name: str | None = None,
    identity: tuple[str, ...] | None = None,
    key: Callable[..., str] | None = None,
) -> Callable[[Callable[..., R]], Tool[..., R]]:
    """Declare a tool.

    Args:
        bare: nothing; it is here for ``@tool`` without parentheses, which is told what is missing.
        effect: ``read``, ``repeatable``, ``transactional``, ``keyed``, ``probed`` or ``manual``; there is no default.
        timeout: deadline of the whole call; required for ``probed`` and ``manual``. The body reads what is left of it
            from ``operation.remaining()``.
        settle: how long after the deadline the vendor may still finish what it received.
        visible_after: how long after the horizon an effect may stay invisible to the probe.
        key_lifetime: how long the vendor honours an idempotency key, counted from the first intent; for ``keyed``.
        refused: exception classes which mean that this request did not happen.
        why: for ``repeatable``, the reason why doing it twice is the same as once; it is recorded.
        record: False for a cheap ``read`` that may be bought again after a crash.
        bind: hand the operation to the body as its first argument.
        name: keeps the tool's identity over a rename of the function.
        identity: names of the parameters that make two calls the same; all of them by default.
        key: gets the arguments and returns a key that identifies the call in its whole run, beyond the step.

    Returns:
        The decorator, which returns a :class:`Tool`.

    Raises:
        UnguardedTool: the declaration does not say how the effect is guarded; the message says what is missing.

    Example:
        >>> @tool(effect="read")
        ... def price(item):
        ...     return {"tea": 300}[item]
        >>> price("tea")
        300
    """

    def declare(body: Callable[..., R]) -> Tool[..., R]:
        tool_name = str(name or getattr(body, "__name__", repr(body)))
        subject = f"tool {tool_name!r}"
        guard = Guard(effect_of(subject, effect), timeout, settle, visible_after, key_lifetime, refused, why, record)
        guard = checked(subject, guard)
        refuse_lazy(subject, body)
        return Tool(body, tool_name, guard, bind=bind, identity=identity, key=key)

    if bare is not None:
        declare(bare)
        raise TypeError("tool(…) takes the declaration and returns a decorator: write tool(effect=…)(function).")
    return declare


def effect_of(subject: str, effect: str | None) -> Effect:
    """Return the effect of this name."""
    known = [str(e) for e in Effect]
    if effect is None:
        raise UnguardedTool(
            f"{subject} has no effect=: say what it does to the world, one of {', '.join(known)}. "
            "A query is a read; a payment with an idempotency key is keyed; one that can be looked up is probed; "
            "a message that can do neither is manual."
        )
    if effect not in known:
        raise UnguardedTool(
            f"effect= of {subject} must be one of {', '.join(known)}, got {effect!r}."
            + did_you_mean(str(effect), known)
        )
    return Effect(effect)


def checked(subject: str, guard: Guard) -> Guard:
    """Return the guard with its defaults if it is whole."""
    for field in ("timeout", "settle", "visible_after", "key_lifetime"):
        value = getattr(guard, field)
        if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
            raise UnguardedTool(f"{field}= of {subject} must be a timedelta of 0 or more, got {value!r}.")
    if guard.timeout is not None and not guard.timeout:
        raise UnguardedTool(f"timeout= of {subject} must be more than 0, got {guard.timeout!r}.")
    if guard.effect in (Effect.PROBED, Effect.MANUAL) and guard.timeout is None:
        raise UnguardedTool(
            f"{subject} is {str(guard.effect)!r} and has no timeout=: without a deadline for the whole call nobody "
            "can ever ask whether it happened. Give timeout=timedelta(seconds=…) and stop the body by it."
        )
    if guard.effect is Effect.KEYED and not guard.key_lifetime:
        raise UnguardedTool(
            f"{subject} is 'keyed' and has no key_lifetime=: how long does the vendor honour an idempotency key? "
            "After that time the same key would act again."
        )
    if guard.effect is not Effect.KEYED and guard.key_lifetime is not None:
        raise UnguardedTool(f"key_lifetime= of {subject} belongs to effect='keyed', got {str(guard.effect)!r}.")
    if guard.effect is Effect.REPEATABLE and not guard.why:
        raise UnguardedTool(
            f"{subject} is 'repeatable' and has no why=: say in a sentence why doing it twice is the same as once."
        )
    if not guard.record and guard.effect is not Effect.READ:
        raise UnguardedTool(f"record=False of {subject} is for effect='read' only, got {str(guard.effect)!r}.")
    declared: object = guard.refused
    if not isinstance(declared, tuple):
        raise UnguardedTool(f"refused= of {subject} must be a tuple of exception classes, got {declared!r}.")
    for refusal in declared:
        if not (isinstance(refusal, type) and issubclass(refusal, Exception)):
            raise UnguardedTool(f"refused= of {subject} must hold exception classes, got {refusal!r}.")
        if guard.effect in _DOUBTFUL and issubclass(TimeoutError, refusal):
            raise UnguardedTool(
                f"refused= of {subject} holds {refusal.__name__}, which a lost answer raises too: the effect may have "
                "happened then. List the exceptions that you raise where the vendor said no."
            )
    return _with_defaults(guard)


def refuse_lazy(subject: str, body: Callable[..., Any]) -> None:
    """Refuse a body whose call does nothing yet: it would be recorded as done without having begun."""
    for is_lazy, kind in (
        (inspect.iscoroutinefunction, "async"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "an async generator"),
    ):
        if is_lazy(body):
            raise UnguardedTool(
                f"{subject} must be a plain function, got {kind}: calling it does nothing yet, and would be recorded "
                "as done. Wrap it, for example in a function that calls asyncio.run(…)."
            )


def _with_defaults(guard: Guard) -> Guard:
    if guard.effect is Effect.TRANSACTIONAL and guard.timeout is None:
        return replace(guard, timeout=TRANSACTIONAL_TIMEOUT)
    return guard


def check_guarded(candidate: object, owner: str) -> Tool[..., Any]:
    """Return the tool if its owner, an agent or a plain task, may start with it.

    Raises:
        UnguardedTool: it is no tool, or ``probed`` without a probe.
    """
    if not isinstance(candidate, Tool):
        name = getattr(candidate, "__name__", repr(candidate))
        raise UnguardedTool(f"{owner}: {name!r} is in tools= and not declared as a tool. Put @tool(effect=…) above it.")
    if candidate.guard.effect is Effect.PROBED and candidate.probe_body is None:
        said = owner if candidate.subject == owner else f"{owner}: {candidate.subject}"
        raise UnguardedTool(
            f"{said} is 'probed' and has no probe. Declare one with @{candidate._word}.probe, or make it effect='manual', where a person is asked."
        )
    return candidate
