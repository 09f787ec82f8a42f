"""What is given where a step is meant and is none, though it is callable and may have a step's name: it is called, not returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Task
from celery.canvas import Signature

from agent_tasks.outcomes import calls, done, fail
from agent_tasks.tools import Tool
from agent_tasks.waits import sleep, sleep_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

#: The functions that make outcomes.
_MAKERS = {
    id(done): "done(…)",
    id(fail): "fail(…)",
    id(calls): "calls([…], then=…)",
    id(sleep): "sleep(…, then=…)",
    id(sleep_until): "sleep_until(…, then=…)",
    id(wait_until): "wait_until(…, then=…)",
}


def what_is_mistaken(given: object, steps: Collection[str]) -> str | None:
    """Return what to say of something that cannot be meant as a step; None of anything else.

    Args:
        given: what a step has returned, or named.
        steps: names of the agent's steps.

    Example:
        >>> what_is_mistaken(done, ["pay"])
        'the function done itself, and not its outcome: write done(…).'
        >>> what_is_mistaken(lambda state: None, ["pay"])
    """
    if (call := _MAKERS.get(id(given))) is not None:
        return f"the function {call.partition('(')[0]} itself, and not its outcome: write {call}."
    if isinstance(given, Tool):
        word = str(getattr(given.body, "__name__", given.name))
        said = f"tool {given.name!r} itself, which is no step: call it, and return what follows, as in return done({word}(…))."
        return said + _of_that_name(word, steps)
    if isinstance(given, Signature):
        return f"a signature of Celery task {given.task!r}, which is no step: a run goes on with a step of its agent."
    if isinstance(given, Task):
        word = str(given.name).rpartition(".")[2]
        said = f"Celery task {given.name!r}, which is no step: a run goes on with a step of its agent. To call the task, write {word}.delay(…)."
        return said + _of_that_name(word, steps)
    return None


def _of_that_name(word: str, steps: Collection[str]) -> str:
    if word not in steps:
        return ""
    return f" The agent also has a step {word!r}: if that is meant, give the two functions different names."
