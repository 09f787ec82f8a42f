"""Options of declarations: which ones a step and a plain task have, and where those of others belong.

Celery makes an attribute of whatever it is given, so that a misspelt option would be taken and read by nobody.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING

from celery import Task

from agent_tasks.errors import ConfigurationError, did_you_mean, nearest
from agent_tasks.retries import OPTIONS as RETRIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Options of a task with ``effect=`` that say how the effect is guarded, as those of :func:`agent_tasks.tool` do.
GUARDS = ("timeout", "settle", "visible_after", "key_lifetime", "refused", "why")

#: What a plain task says beside what Celery knows.
OF_PLAIN_TASKS = ("effect", "tools", "dedupe_on", "agent_mode", *GUARDS)

#: Celery's hooks: methods that a user writes.
_HOOKS = frozenset(
    {"before_start", "after_return", "on_failure", "on_replace", "on_retry", "on_success", "shadow_name"}
)

#: What Celery reads of a task by name, or knows in some of its releases only.
_READ = frozenset(
    {
        *("queue", "routing_key", "exchange", "exchange_type", "priority", "expires", "serializer", "delivery_mode"),
        *("compression", "time_limit", "soft_time_limit", "immediate", "mandatory", "store_eager_result"),
        *("acks_on_failure", "acks_on_timeout", "retry_on_worker_lost"),
    }
)

#: Arguments of ``app.task`` itself.
_OF_APP_TASK = frozenset(
    {
        *("name", "bind", "base", "shared", "lazy", "filter", "pydantic", "pydantic_strict", "pydantic_context"),
        *("pydantic_dump_kwargs", "retry_kwargs"),
    }
)

#: What Celery and this package set on a task, and nobody else.
_INNER = frozenset({"Request", "Strategy", "abstract", "app", "from_config", "name", "request", "request_stack"})


def _is_method(name: str) -> bool:
    kinds = (FunctionType, classmethod, staticmethod, property, type)
    return isinstance(inspect.getattr_static(Task, name), kinds)


#: Those that mean something on every task, in the release of Celery that is here.
OF_CELERY = _HOOKS | _READ | {
    name for name in dir(Task) if name[:1] != "_" and name not in _INNER and not _is_method(name)
}  # fmt: skip

#: Where an option belongs that is the agent's.
_AGENTS = {
    name: f"It belongs to the agent: Agent(…, {name}=…)."
    for name in ("coalesce", "tools", "max_steps", "recovery", "health_check", "check_messages")
}

#: And where one belongs that no step has.
_NOT_OF_STEPS = {
    **_AGENTS,
    **{
        name: f"It belongs to the tool that the step calls: @tool({name}=…)."
        for name in ("effect", *GUARDS, "record", "identity", "key")
    },
    "timeout": "It belongs to the tool that the step calls: @tool(timeout=…). A step has time_limit= and soft_time_limit=.",
    **{
        name: f"It belongs to the call: enqueue(…, {name}=…)." for name in ("dedupe_key", "run_id")
    },
    "dedupe_on": "It belongs to plain tasks; a run of an agent has enqueue(…, dedupe_key=…).",
    "agent_mode": "It belongs to plain tasks, whose base is AgentTask.",
    **dict.fromkeys(
        _OF_APP_TASK - {"name", "retry_kwargs"}, "It belongs to app.task(…): a step is a plain function of the state."
    ),
    "retries": "Write max_retries=….",
    "before_start": "It would be called for each doorbell, and what it raises would begin the step again for ever: begin its body with it.",
}  # fmt: skip

#: And no plain task. Its options may be a user's own attributes, so these are few.
_NOT_OF_TASKS = {
    **{
        name: f"It belongs to an agent, which has several steps: Agent(…, {name}=…)." for name in _AGENTS.keys() - {"tools"}
    },
    "record": "It belongs to a tool: @tool(record=…). What a plain task did is always recorded.",
    "identity": "It belongs to a tool; a plain task has dedupe_on=.",
    "dedupe_key": "It belongs to a run of an agent; a plain task has dedupe_on=.",
    "retries": "Write max_retries=….",
}  # fmt: skip

_OF_STEPS = (OF_CELERY | set(RETRIES) | {"start", "name"}) - {"before_start"}
_OF_TASKS = OF_CELERY | set(RETRIES) | _OF_APP_TASK | set(OF_PLAIN_TASKS)


def check_step_options(subject: str, given: Iterable[str]) -> None:
    """Refuse an option that no step has.

    Args:
        subject: whose options they are, for the message.
        given: their names.

    Raises:
        ConfigurationError: neither Celery nor this package would read one of them.

    Example:
        >>> check_step_options("step 'pay'", ["time_limt"])
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: step 'pay' has no option time_limt=. Did you mean 'time_limit'?
        >>> check_step_options("step 'pay'", ["coalesce"])
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: step 'pay' has no option coalesce=. It belongs to the agent: Agent(…, coalesce=…).
    """
    for name in given:
        if name not in _OF_STEPS:
            said = _remedy(name, _OF_STEPS, _NOT_OF_STEPS) or (
                " It has those about retries, such as max_retries=, and those of Celery's tasks, such as queue=, rate_limit= and "
                "time_limit=."
            )
            raise ConfigurationError(f"{subject} has no option {name}=.{said}")


def check_task_options(
    subject: str, given: Iterable[str], own: Collection[str] = (), words: Collection[str] = ()
) -> None:
    """Refuse an option of a plain task that is nearly one, or that agents have; any other may be a user's attribute.

    Args:
        subject: whose options they are, for the message.
        given: their names.
        own: names of attributes of the base class that the user wrote.
        words: names that this package's class has for itself.

    Raises:
        ConfigurationError: nobody would read one of them.

    Example:
        >>> check_task_options("task 'pay'", ["team", "queu"])
        Traceback (most recent call last):
        agent_tasks.errors.ConfigurationError: task 'pay' has no option queu=. Did you mean 'queue'?
    """
    for name in given:
        if name in _OF_TASKS or name in own or hasattr(Task, name):
            continue
        if name in words:
            raise ConfigurationError(
                f"{subject} cannot have {name}=, a word of AgentTask itself: give it another name."
            )
        said = _remedy(name, _OF_TASKS, _NOT_OF_TASKS)
        if said:
            raise ConfigurationError(f"{subject} has no option {name}=.{said}")


def _remedy(name: str, known: Iterable[str], elsewhere: dict[str, str]) -> str:
    if name in elsewhere:
        return f" {elsewhere[name]}"
    words = sorted({*known, *elsewhere})
    near = nearest(name, words)
    where = f" {elsewhere[near]}" if near in elsewhere else ""
    return f"{did_you_mean(name, words)}{where}" if near else ""
