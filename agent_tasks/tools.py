"""Tools: functions that touch the world or cost money, declared with their effect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from agent_tasks.declarations import (
    Guard,
    check_bind,
    check_function,
    check_identity,
    check_name,
    checked,
    effect_of,
    in_seconds,
    is_async,
    parameters_of,
    refuse_lazy,
    refuse_unknown,
    refuse_without_probe,
)
from agent_tasks.errors import OutsideRun, UnguardedTool
from agent_tasks.limits import LONGEST
from agent_tasks.recovery import Promise
from agent_tasks.states import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent_tasks.operations import Operation
    from agent_tasks.planned_calls import Call

P = ParamSpec("P")
R = TypeVar("R")


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
        #: Its call is awaited, and its body runs on the kept event loop.
        self.is_async = is_async(body)
        #: Exception classes, beside Python's own, that every attempt sees again as they were raised.
        self.known_errors: tuple[type[BaseException], ...] = guard.refused
        self.probe_body: Callable[[Operation], Any] | None = None
        self.probe_timeout: timedelta | None = None
        parameters = list(inspect.signature(body).parameters.values())
        self.signature = inspect.Signature(parameters[1:] if bind else parameters)
        check_identity(self.subject, identity, self.signature)
        if key is not None:
            names = ", ".join(self.signature.parameters)
            said = f"what the tool is called with, by name ({names})" if names else "nothing"
            check_function(f"key= of {self.subject}", key, said, named=self.signature.parameters)
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

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the tool: its result, from the body or, after it succeeded once, from the ledger.

        Raises:
            OutsideRun: the tool has an effect and this is not a step of a run.
            ArgumentsNotStorable: an argument cannot be stored; nothing was sent.
            ToolFailed: the body failed (or the class that ``refused=`` or Python names).
            NotAwaited: the tool is async and nothing can be awaited here; or it is not, and this is the kept event loop.
            TypeError: the arguments do not fit the tool; nothing was sent.
        """
        from agent_tasks.awaiting import awaited, check_place
        from agent_tasks.calling import call
        from agent_tasks.current import attempt_of_this_context

        attempt = attempt_of_this_context()
        if attempt is not None:
            check_place(attempt, self)
            arguments = self.bind_arguments(args, kwargs)
            return awaited(attempt, self, arguments) if self.is_async else call(attempt, self, arguments)  # type: ignore[return-value]
        if self.guard.effect is Effect.READ and not self.bind:
            return self.body(*args, **kwargs)
        raise OutsideRun(
            f"{self.subject} has the effect {str(self.guard.effect)!r} and was called outside a run, where nothing "
            f"is recorded. Call it in a step, or write {self.name}.unguarded(…) to do it without any promise."
        )

    def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Any]:
        """Call a tool that is a plain function, in an async step: ``await charge.aio(order)``; its body runs in a thread.

        For an async tool it is the call itself.

        Raises:
            OutsideRun: this is not a step of a run.
            NotAwaited: nothing can be awaited here.
            TypeError: the arguments do not fit the tool; nothing was sent.
        """
        from agent_tasks.awaiting import awaited, check_loop
        from agent_tasks.current import attempt_of_this_context

        attempt = attempt_of_this_context()
        if attempt is None:
            raise OutsideRun(
                f"{self.subject} was called as {self._word}.aio(…) outside a run. Call it in an async step."
            )
        check_loop(attempt, self, f"{self._word}.aio(…)")
        return awaited(attempt, self, self.bind_arguments(args, kwargs))

    def unguarded(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body outside any run, with no record and no promise.

        Raises:
            OutsideRun: the tool is bound to its operation, which does not exist outside a run.
        """
        if self.bind:
            raise OutsideRun(f"{self.subject} is declared with bind=True and needs an operation; call it in a step.")
        return self.body(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Make a call that has not happened, for ``run_calls([…])`` and ``return calls([…], then=…)``.

        Its arguments are looked at now, as those of a real call.

        Raises:
            ArgumentsNotStorable: an argument cannot be stored, or ``key=`` returns no key.
            TypeError: the arguments do not fit the tool.

        Example:
            >>> @tool(effect="read")
            ... def price(item):
            ...     return {"tea": 300}[item]
            >>> price.call("tea")
            <call price(item='tea')>
        """
        from agent_tasks.planned_calls import make_call

        return make_call(self, self.bind_arguments(args, kwargs))

    def bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, defaults included, as they are recorded."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            by_itself = " Its operation is passed by itself, since it has bind=True." if self.bind else ""
            raise TypeError(
                f"{self.subject} is called as {self._word}{parameters_of(self.signature)}: {error}. Nothing was sent.{by_itself}"
            ) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def run(self, operation: Operation, arguments: dict[str, Any]) -> R:
        """Run the body with recorded arguments."""
        bound = self.signature.bind_partial()
        bound.arguments.update(arguments)
        first = (operation,) if self.bind else ()
        returned = self.body(*first, *bound.args, **bound.kwargs)
        if not self.is_async:
            return returned
        from agent_tasks.awaiting import run_here

        return run_here(self, returned, operation)  # type: ignore[no-any-return,arg-type]

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
            UnguardedTool: neither the probe nor the tool has a timeout, or it is no function of an operation.
        """
        if function is None:
            return functools.partial(self._set_probe, timeout=timeout)
        return self._set_probe(function, timeout=timeout)

    def _set_probe(self, function: Callable[[Operation], Any], *, timeout: timedelta | None) -> Callable[..., Any]:
        given: object = timeout
        if given is not None and not (isinstance(given, timedelta) and given > timedelta(0)):
            raise UnguardedTool(
                f"timeout= of the probe of {self.subject} must be a timedelta of more than 0, got {given!r}.{in_seconds(given)}"
            )
        if isinstance(given, timedelta) and given > LONGEST:
            raise UnguardedTool(
                f"timeout= of the probe of {self.subject} must be a hundred years at most, got {given!r}."
            )
        check_function(f"the probe of {self.subject}", function, "an operation", may_be_async=True)
        timeout = timeout or self.guard.timeout
        if timeout is None:
            raise UnguardedTool(
                f"the probe of {self.subject} must have a timeout, got none: write @{self._word}.probe(timeout="
                "timedelta(seconds=…)), since a probe that hangs would hold its run for ever."
            )
        self.probe_body, self.probe_timeout = function, timeout
        return function


@refuse_unknown("tool(…)", " Retries are declared at the step.")
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
    bind: bool | None = None,
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
        bind: hand the operation to the body as its first argument. ``keyed`` and ``probed`` tools, and a first parameter
            named ``operation`` or ``self``, have to say True or False: False if an argument is the vendor's key, or
            what the probe asks by.
        name: keeps the tool's identity over a rename of the function.
        identity: names of the parameters that make two calls the same; all of them by default.
        key: gets the arguments and returns a key that identifies the call in its whole run, beyond the step.

    Returns:
        The decorator, which returns a :class:`Tool`.

    Raises:
        UnguardedTool: the declaration does not say how the effect is guarded, or says what nobody would read; the message
            says what is wrong.
        ConfigurationError: there is no such option.

    Example:
        >>> @tool(effect="read")
        ... def price(item):
        ...     return {"tea": 300}[item]
        >>> price("tea")
        300
    """

    def declare(body: Callable[..., R]) -> Tool[..., R]:
        tool_name = str(getattr(body, "__name__", repr(body))) if name is None else name
        check_name(f"tool {tool_name!r}" if name is None else "a tool", tool_name)
        subject = f"tool {tool_name!r}"
        if not callable(body):
            raise UnguardedTool(f"{subject} must be a function, got {body!r}.")
        if not isinstance(record, bool):
            raise UnguardedTool(f"record= of {subject} must be True or False, got {record!r}.")
        guard = Guard(effect_of(subject, effect), timeout, settle, visible_after, key_lifetime, refused, why, record)
        guard = checked(subject, guard)
        refuse_lazy(subject, body, may_be_async=guard.effect is not Effect.TRANSACTIONAL)
        bound = check_bind(subject, body, bind, guard.effect)
        return Tool(body, tool_name, guard, bind=bound, identity=identity, key=key)

    if bare is not None:
        declare(bare)
        raise TypeError("tool(…) takes the declaration and returns a decorator: write tool(effect=…)(function).")
    return declare


def listed(tools: object, owner: str) -> list[object]:
    """Return what stands in a ``tools=``.

    Raises:
        UnguardedTool: it is no list, such as one tool by itself.
    """
    if isinstance(tools, (Tool, str)) or not isinstance(tools, Iterable):
        one = tools.name if isinstance(tools, Tool) else getattr(tools, "__name__", None)
        remedy = f"Write tools=[{one}]." if one else "It may be empty: tools=[]."
        raise UnguardedTool(f"tools= of {owner} must be a list of tools, got {tools!r}. {remedy}")
    return list(tools)


def check_guarded(candidate: object, owner: str) -> Tool[..., Any]:
    """Return the tool if its owner, an agent or a plain task, may start with it.

    Raises:
        UnguardedTool: it is no tool, or has no probe and is ``probed`` or declares what a probe needs.
    """
    if not isinstance(candidate, Tool):
        name = getattr(candidate, "__name__", repr(candidate))
        raise UnguardedTool(f"{owner}: {name!r} is in tools= and not declared as a tool. Put @tool(effect=…) above it.")
    if candidate.probe_body is None:
        said = owner if candidate.subject == owner else f"{owner}: {candidate.subject}"
        refuse_without_probe(said, candidate._word, candidate.guard)
    return candidate


def tools_of(given: object, owner: str) -> dict[str, Tool[..., Any]]:
    """Return what stands in a ``tools=``, by name.

    Raises:
        UnguardedTool: it is no list, something in it is no tool that its owner may start with, or two have one name.
    """
    found: dict[str, Tool[..., Any]] = {}
    for candidate in listed(given, owner):
        each = check_guarded(candidate, owner)
        if each.name in found:
            raise UnguardedTool(f"{owner} has two tools named {each.name!r}: give one of them name=.")
        found[each.name] = each
    return found
