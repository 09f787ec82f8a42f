"""What a plain task declares: looked at before anything of it runs, and in observe mode as in guard mode."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

from agent_tasks.declarations import Guard, checked, effect_of, refuse_lazy, refuse_unsent
from agent_tasks.enqueue import check_id
from agent_tasks.errors import ConfigurationError, UnguardedTool, did_you_mean
from agent_tasks.limits import LIMITS, check_limits, check_rate
from agent_tasks.options import GUARDS, OF_PLAIN_TASKS, check_task_options
from agent_tasks.retries import OPTIONS, refuse_near_misses, whole_number
from agent_tasks.task import AgentRequest, LedgerTask
from agent_tasks.tools import tools_of

if TYPE_CHECKING:
    from celery import Task

    from agent_tasks.tools import Tool


#: How doorbells are handled, which is the task's own whatever its user or his settings say.
_OF_MESSAGES = ("acks_late", "reject_on_worker_lost", "retry_on_worker_lost", "Strategy")


@dataclass(frozen=True)
class PlainDeclaration:
    """What was said of a plain task.

    Attributes:
        signature: of its body, without the task itself.
        dedupe_on: names of the parameters that make two calls the same job.
        tools: that its body may call.
        guard: of its effect; None for a task with ``tools=``, or with neither.
        said_of_self: what to say of the first parameter where the arguments of a call do not fit.
    """

    signature: inspect.Signature
    dedupe_on: tuple[str, ...]
    tools: tuple[Tool[..., Any], ...]
    guard: Guard | None
    said_of_self: str

    @classmethod
    def of(cls, task: type[Task], *, observed: bool = False) -> PlainDeclaration:
        """Read the declaration of a task.

        Args:
            task: its class, bound to its app.
            observed: it is in observe mode, where it need not say yet what its body may do. All else is looked at, so that
                what was observed can be guarded.

        Raises:
            UnguardedTool: it does not say how its effects are guarded.
            ConfigurationError: an option is misspelt, or of no use, or allows retries without an end.
        """
        _check_options(task)
        if not observed:
            _check_message_options(task)
        _check_kind(task, may_be_neither=observed)
        signature, subject = _signature_of(task), _subject(task)
        dedupe_on = _dedupe_on(task, signature)
        refuse_lazy(subject, inspect.unwrap(task.run))
        check_id("the name of a task with base=AgentTask", task.name)
        tools = () if task.tools is None else tuple(tools_of(task.tools, subject).values())
        guard = None if task.effect is None else _guard_of(task)
        return cls(signature, dedupe_on, tools, guard, _said_of_self(task))


def _guard_of(task: type[Task]) -> Guard:
    subject = _subject(task)
    given = {name: getattr(task, name) for name in GUARDS if getattr(task, name) is not None}
    guard = checked(subject, Guard(effect_of(subject, task.effect), **given))
    if isinstance(inspect.getattr_static(task, "run"), staticmethod):
        remedy = "add bind=True and take self, the task, first, also where an argument of its own is {own}"
        refuse_unsent(subject, guard.effect, remedy, "self.operation")
    return guard


def _subject(task: type[Task]) -> str:
    return f"task {str(task.name)!r}"


def _check_options(task: type[Task]) -> None:
    """Refuse an option that Celery would take and nobody read: a misspelt one, or retries without an end."""
    subject = _subject(task)
    *_, ours = (base for base in task.__mro__ if "job" in vars(base))  # this package's; before it stand the user's
    written = list(task.__mro__[: task.__mro__.index(ours)])
    own = {name for base in task.__mro__[1:] if base not in ours.__mro__ for name in vars(base)}
    if "_decorated" in vars(task):  # what was given to app.task stands in a class of its own
        options = [name for name in vars(written.pop(0)) if name[:1] != "_" and name not in ("app", "name", "run")]
        check_task_options(subject, options, own=own, words=vars(ours))
    given = [name for base in written for name, value in vars(base).items() if not hasattr(value, "__get__")]
    words = (*OPTIONS, *OF_PLAIN_TASKS, *LIMITS, "retry_kwargs", "rate_limit")
    refuse_near_misses(subject, [name for name in given if name[:1] != "_"], words)
    whole_number(subject, {"max_retries": task.max_retries}, "max_retries", 0)
    check_limits(subject, {name: getattr(task, name) for name in LIMITS})
    check_rate("task_default_rate_limit", task._get_app().conf.task_default_rate_limit)
    check_rate(f"rate_limit= of {subject}", task.rate_limit)


def _check_message_options(task: type[Task]) -> None:
    """Refuse another handling of messages: a killed child would be stored as the failure of a run that goes on."""
    for name in _OF_MESSAGES:
        given, ours = getattr(task, name), getattr(LedgerTask, name)
        if given != ours:
            raise ConfigurationError(
                f"{_subject(task)} cannot have {name}={given!r}: its runs go on when a process dies, which rests on {ours!r}. "
                "Leave it out, in task_annotations, too."
            )
    try:
        request = symbol_by_name(task.Request)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{_subject(task)} has Request={task.Request!r}, which cannot be loaded: {error}"
        ) from error
    if not (isinstance(request, type) and issubclass(request, AgentRequest)):
        raise ConfigurationError(
            f"{_subject(task)} cannot have Request={task.Request!r}: derive it from agent_tasks.task.AgentRequest, which knows "
            "that a doorbell's end is not its run's."
        )


def _said_of_self(task: type[Task]) -> str:
    """Return what is to be said of the first parameter where the arguments of a call do not fit."""
    run = inspect.getattr_static(task, "run")
    is_bound = not isinstance(run, staticmethod)
    first = next(iter(inspect.signature(task.run).parameters), None)
    if is_bound and first not in (None, "self", "task"):
        return f". With bind=True the first parameter of the body, {first!r}, is the task itself."
    return "" if is_bound or first != "self" else ". Its first parameter is 'self': bind=True is missing."


def _check_kind(task: type[Task], may_be_neither: bool) -> None:
    """Refuse a task that says neither, or both, of what its body may do."""
    if task.effect is None and task.tools is None and may_be_neither:
        return
    if (task.effect is None) == (task.tools is None):
        said = "neither effect= nor tools=" if task.effect is None else "both effect= and tools="
        raise UnguardedTool(
            f"task {task.name!r} has base=AgentTask and {said}: give it effect='keyed' (or read, repeatable, transactional, "
            "probed, manual) if its body is one call that touches the world, or tools=[…] (which may be empty) if it calls "
            "tools that do. A task without base=AgentTask stays plain Celery."
        )
    stray = [name for name in GUARDS if task.effect is None and getattr(task, name) is not None]
    if stray:
        raise UnguardedTool(
            f"task {task.name!r} has tools=, whose effects are guarded by their own declarations, and {stray[0]}=, which "
            "belongs to effect=. Leave it out, or give it to the tool."
        )


def _signature_of(task: type[Task]) -> inspect.Signature:
    run = inspect.getattr_static(task, "run")
    if isinstance(run, staticmethod):
        return inspect.signature(run.__func__)
    parameters = list(inspect.signature(run).parameters.values())
    return inspect.Signature(parameters[1:])


def _dedupe_on(task: type[Task], signature: inspect.Signature) -> tuple[str, ...]:
    names: object = task.dedupe_on
    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        raise UnguardedTool(
            f"dedupe_on= of task {task.name!r} must be a tuple of names of its parameters, got {names!r}."
        )
    for name in names:
        if name not in signature.parameters:
            raise UnguardedTool(
                f"dedupe_on= of task {task.name!r} must name its parameters ({', '.join(signature.parameters)}), "
                f"got {name!r}.{did_you_mean(str(name), signature.parameters)}"
            )
    return tuple(names)
