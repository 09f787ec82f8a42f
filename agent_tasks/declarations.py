"""Declarations: what may be said of a tool, and what must be, looked at before anything runs."""

from __future__ import annotations

import functools
import inspect
import reprlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agent_tasks.errors import ConfigurationError, UnguardedTool, did_you_mean, is_a
from agent_tasks.limits import LONGEST
from agent_tasks.schema import MAX_ID_LENGTH, is_id
from agent_tasks.states import Effect
from agent_tasks.texts import is_storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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

    def refuses(self, error: BaseException) -> bool:
        """Tell whether an exception means that the request did not happen; what it says of its own class does not count.

        Example:
            >>> Guard(Effect.MANUAL, refused=(PermissionError,)).refuses(PermissionError("declined"))
            True
        """
        return is_a(error, self.refused)


def in_seconds(given: object) -> str:
    """Return `` Write timedelta(seconds=10).`` where a number stands for a duration, else the empty string.

    Example:
        >>> in_seconds(10), in_seconds("10")
        (' Write timedelta(seconds=10).', '')
    """
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0
    return f" Write timedelta(seconds={given})." if is_number else ""


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
    """Return the guard with its defaults if it is whole, and holds nothing that its effect has no use for."""
    for field in ("timeout", "settle", "visible_after", "key_lifetime"):
        value = getattr(guard, field)
        if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
            raise UnguardedTool(
                f"{field}= of {subject} must be a timedelta of 0 or more, got {value!r}.{in_seconds(value)}"
            )
        if value is not None and value > LONGEST:
            raise UnguardedTool(
                f"{field}= of {subject} must be a hundred years at most, since no database counts further, got {value!r}."
            )
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
    if guard.why is not None and not isinstance(guard.why, str):
        raise UnguardedTool(f"why= of {subject} must be a sentence, got {guard.why!r}.")
    if guard.why is not None and not is_storable(guard.why):
        raise UnguardedTool(
            f"why= of {subject} must be a text without NUL and whole surrogate pairs, got {reprlib.repr(guard.why)}."
        )
    _refuse_useless(subject, guard)
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


def _refuse_useless(subject: str, guard: Guard) -> None:
    """Refuse what nobody would read: whoever wrote it believes in it."""
    if guard.effect is not Effect.REPEATABLE and guard.why is not None:
        raise UnguardedTool(f"why= of {subject} belongs to effect='repeatable', got {str(guard.effect)!r}.")
    if guard.settle and guard.effect in (Effect.READ, Effect.TRANSACTIONAL):
        raise UnguardedTool(
            f"settle= of {subject} belongs to effect='probed', 'manual', 'keyed' or 'repeatable', got {str(guard.effect)!r}."
        )
    if guard.settle and guard.effect is Effect.REPEATABLE and guard.timeout is None:
        raise UnguardedTool(f"settle= of {subject} is counted from a deadline, and there is none: give timeout=, too.")
    if guard.visible_after and guard.effect not in _DOUBTFUL:
        raise UnguardedTool(
            f"visible_after= of {subject} belongs to a probe, which effect={str(guard.effect)!r} does without."
        )


def refuse_without_probe(said: str, word: str, guard: Guard) -> None:
    """Refuse what only a probe, or the moment at which somebody is asked, gives a meaning to, where there is none.

    Args:
        said: whose declaration it is, for the message.
        word: the name that a probe is declared with.
        guard: of it.

    Raises:
        UnguardedTool: so it is.
    """
    if guard.effect is Effect.PROBED:
        raise UnguardedTool(
            f"{said} is 'probed' and has no probe. Declare one with @{word}.probe, or make it effect='manual', where a "
            "person is asked."
        )
    if guard.visible_after:
        raise UnguardedTool(
            f"visible_after= of {said} says when its probe is believed, and it has none. Declare one with @{word}.probe, or "
            "leave the option out."
        )
    if guard.settle and guard.effect is Effect.KEYED and guard.timeout is None:
        raise UnguardedTool(
            f"settle= of {said} is counted from the deadline of a call that a probe or a person is asked about, and it has "
            f"none. Give timeout=, or declare a probe with @{word}.probe, or leave the option out."
        )


def refuse_lazy(
    subject: str,
    body: Callable[..., Any],
    error: type[ConfigurationError] = UnguardedTool,
    then: str = "recorded as done",
    *,
    may_be_async: bool = False,
) -> None:
    """Refuse a function whose call does nothing yet: it would be recorded as done without having begun.

    Args:
        subject: whose it is, for the message.
        body: the function, or an object that is called as one.
        error: what to raise.
        then: what a call of it would be taken for.
        may_be_async: it is awaited.
    """
    if may_be_async and is_async(body):
        return
    for is_lazy, kind in (
        (inspect.iscoroutinefunction, "async"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "an async generator"),
    ):
        if is_lazy(body) or is_lazy(type(body).__call__):
            raise error(
                f"{subject} must be a plain function, got {kind}: calling it does nothing yet, and would be {then}. "
                "Wrap it, for example in a function that calls asyncio.run(…)."
            )


def is_async(body: Callable[..., Any]) -> bool:
    """Tell whether a function, or an object that is called as one, is ``async def``."""
    return inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(type(body).__call__)


def parameters_of(signature: inspect.Signature) -> str:
    """Return a signature as it is said to people: without annotations, which may be long."""
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))


def check_function(
    subject: str,
    function: object,
    takes: str,
    *,
    named: Iterable[str] | None = None,
    error: type[ConfigurationError] = UnguardedTool,
    then: str = "taken for its answer",
    may_be_async: bool = False,
) -> None:
    """Refuse what cannot be called as it will be: now, and not in the run that needs it.

    Args:
        subject: what the declaration calls it: ``key= of tool 'greet'``.
        function: what was given.
        takes: what it gets, in words.
        named: names that it gets its arguments by; one argument without a name if not given.
        error: what to raise.
        then: what a call that does nothing yet would be.
        may_be_async: it is awaited.
    """
    if not callable(function):
        raise error(f"{subject} must be a function of {takes}, got {function!r}.")
    refuse_lazy(subject, function, error, then, may_be_async=may_be_async)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C do not say what they take
        return
    try:
        if named is None:
            signature.bind(None)
        else:
            signature.bind(**dict.fromkeys(named))
    except TypeError as wrong:
        raise error(
            f"{subject} must be a function of {takes}, got one of {parameters_of(signature)}: {wrong}."
        ) from None


def check_name(subject: str, name: object) -> None:
    """Refuse what no row of the ledger holds as a name."""
    if not is_id(name):
        raise UnguardedTool(
            f"name= of {subject} must be a text of 1 to {MAX_ID_LENGTH} characters without NUL, got {name!r}."
        )


def check_identity(subject: str, identity: object, signature: inspect.Signature) -> None:
    """Refuse an ``identity=`` that is no tuple of names of parameters."""
    if identity is None:
        return
    if not isinstance(identity, (tuple, list)):
        tip = f" Write identity=({identity!r},)." if isinstance(identity, str) else ""
        raise UnguardedTool(
            f"identity= of {subject} must be a tuple of names of its parameters, got {identity!r}.{tip}"
        )
    for name in identity:
        if name not in signature.parameters:
            raise UnguardedTool(
                f"identity= of {subject} must name its parameters ({', '.join(signature.parameters)}), "
                f"got {name!r}.{did_you_mean(str(name), signature.parameters)}"
            )


#: What the body of a tool has to send the vendor, and whose place an argument may take, where it is not handed its operation.
_SENT = {
    Effect.KEYED: ("idempotency_key", "the vendor's key"),
    Effect.PROBED: ("operation_id, by which the probe finds the effect", "what the probe asks by"),
}


def refuse_unsent(subject: str, effect: Effect, remedy: str, operation: str = "operation") -> None:
    """Refuse a body that nobody hands the key, or the reference, on which the promise of its effect rests.

    Args:
        subject: whose it is, for the message.
        effect: of it.
        remedy: what to write; ``{own}`` in it becomes what an argument of the user's may be instead.
        operation: how the body gets at its operation.

    Raises:
        UnguardedTool: the effect is ``keyed`` or ``probed``.
    """
    if effect not in _SENT:
        return
    sent, own = _SENT[effect]
    raise UnguardedTool(
        f"{subject} is {str(effect)!r} and does not get its operation, so it cannot send {operation}.{sent}: {remedy.format(own=own)}."
    )


def check_bind(subject: str, body: Callable[..., Any], bind: object, effect: Effect) -> bool:
    """Return whether the body gets its operation; refuse a declaration that forgets to say so.

    Args:
        subject: whose it is, for the message.
        body: the function.
        bind: as it was declared; None if nothing was said.
        effect: what it was declared with.

    Raises:
        UnguardedTool: ``bind=`` and the first parameter do not fit each other.
    """
    if bind is not None and not isinstance(bind, bool):
        raise UnguardedTool(f"bind= of {subject} must be True or False, got {bind!r}.")
    parameters = list(inspect.signature(body).parameters.values())
    first = parameters[0] if parameters else None
    if bind and (first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD)):
        got = "none" if first is None else f"{str(first)!r}, which is given by name only"
        raise UnguardedTool(
            f"{subject} is declared with bind=True and must have a first parameter for its operation, got {got}."
        )
    if bind is None and first is not None and first.name.strip("_") in ("operation", "self"):
        raise UnguardedTool(
            f"the first parameter of {subject} is {first.name!r}, and bind=True is missing: with it the body gets its "
            "operation there, and callers do not pass it. Write bind=False if they do."
        )
    if bind is None:
        refuse_unsent(
            subject,
            effect,
            "add bind=True and take the operation first, or bind=False if an argument of its own is {own}",
        )
    return bool(bind)


def refuse_unknown(subject: str, remedy: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of a declaration so that an option which it does not have is answered with a near one.

    Args:
        subject: what it declares, for the message.
        remedy: what to do where no option is near.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]

        @functools.wraps(function)
        def checked_first(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise ConfigurationError(
                        f"{subject} has no option {name}=.{did_you_mean(name, known) or remedy} It has: {', '.join(known)}."
                    )
            return function(*args, **kwargs)

        return checked_first

    return decorate


def _with_defaults(guard: Guard) -> Guard:
    if guard.effect is Effect.TRANSACTIONAL and guard.timeout is None:
        return replace(guard, timeout=TRANSACTIONAL_TIMEOUT)
    return guard
