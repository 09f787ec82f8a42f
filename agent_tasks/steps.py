"""Steps: named units of a run, and the state that they work on."""

from __future__ import annotations

import inspect
import logging
import reprlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_tasks.errors import AgentTasksError, nearest
from agent_tasks.retries import NO_RETRIES, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from checkpoint import CheckpointState

logger = logging.getLogger(__name__)

#: What newcomers call on an agent or a step, as if it were a Celery task.
CELERYS_VERBS = frozenset({"delay", "apply_async", "apply", "s", "si", "signature"})

#: Places where a step called another one, which were warned of.
_warned: set[tuple[str, int]] = set()


#: Stands for a state that was not given.
_MISSING: Any = object()


#: What stands beside the state, and not in it.
_BESIDE = ("messages", "metadata")


@dataclass(frozen=True)
class Step:
    """A step of an agent; calling it calls the plain function, as a unit test does.

    Attributes:
        name: of the step.
        agent_name: of its agent; the step's Celery task is ``agent_name.name``.
        function: gets the state, and the results of calls if it takes them, and returns an outcome.
        retry: what becomes of it when it raises.
        takes_results: it has a second parameter, for the results of calls that a step before it returned.
        needs_results: and cannot run without.
    """

    name: str
    agent_name: str
    function: Callable[..., Any]
    retry: RetryPolicy = NO_RETRIES
    takes_results: bool = False
    needs_results: bool = False

    def __call__(self, state: Any = _MISSING, *results: Any, **more: Any) -> Any:
        """Call the function, as a unit test does; a step that calls another one is warned of, once a place.

        Raises:
            AgentTasksError: a step calls it with something that is no state: the tool of the same name may be meant.
            TypeError: the arguments do not fit.
        """
        _refuse_no_state(self, state, more)
        _warn_if_a_step_calls(self, sys._getframe(1))
        given = () if state is _MISSING else (state,)
        return self.function(*given, *results, **more)

    if not TYPE_CHECKING:  # which would take it for a word on every name

        def __getattr__(self, name: str) -> Any:
            """Say what to write in place of Celery's own verbs."""
            raise AttributeError(
                f"'Step' object has no attribute {name!r}"
                if name not in CELERYS_VERBS
                else f"step {self.name!r} has no {name!r}, since it works for a run: start one with {self.agent_name}.enqueue({{…}})."
            )


class StepState(MutableMapping[str, Any]):
    """The state as a step sees it: ``state["x"]`` is ``agent_state``; ``messages`` and ``metadata`` stand beside it.

    Example:
        >>> from checkpoint import CheckpointState
        >>> state = StepState(CheckpointState(run_id="r", seq=0, agent_state={"cart": 3}))
        >>> state["cart"], state.messages
        (3, [])
    """

    _checkpoint: CheckpointState

    def __init__(self, checkpoint: CheckpointState) -> None:
        self.__dict__["_checkpoint"] = checkpoint

    @property
    def messages(self) -> list[Any]:
        """The conversation; stored as an append log, so that it may grow."""
        return self._checkpoint.messages

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about the run beside its state."""
        return self._checkpoint.metadata

    def __getitem__(self, key: str) -> Any:
        return self._checkpoint.agent_state[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._checkpoint.agent_state[key] = dict(value) if isinstance(value, StepState) else value

    def __delitem__(self, key: str) -> None:
        del self._checkpoint.agent_state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.agent_state)

    def __len__(self) -> int:
        return len(self._checkpoint.agent_state)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: no attribute is stored."""
        if name in _BESIDE:
            change = "state.messages[:] = …" if name == "messages" else f"state.{name}.update(…)"
            raise AttributeError(f"state.{name} is changed in place: write {change}.")
        raise AttributeError(f"an attribute of the state is not stored: write state[{name!r}] = ….")

    def __delattr__(self, name: str) -> None:
        """Refuse: there are no attributes."""
        raise AttributeError(
            f"state.{name} is emptied in place: write state.{name}.clear()."
            if name in _BESIDE
            else f"the state has no attribute {name!r}: write del state[{name!r}]."
        )

    if not TYPE_CHECKING:  # which would take it for a word on every name

        def __getattr__(self, name: str) -> Any:
            """Say how the state is read."""
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name == "copy":
                said += ": write dict(state)."
            elif name[:1] != "_":
                said += f": write state[{name!r}]."
            raise AttributeError(said)

    def __repr__(self) -> str:
        return f"StepState({self._checkpoint.agent_state!r})"


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Tell whether a function can be called with so many arguments; of some functions of C nobody knows.

    Example:
        >>> takes(lambda state: None, 1), takes(lambda state, results: None, 1)
        (True, False)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return arguments == 1
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _refuse_no_state(step: Step, state: object, more: Mapping[str, object]) -> None:
    """Refuse what a step gives to another one as if that were a tool: its body would take an argument for the state."""
    from agent_tasks.current import attempt_of_this_context

    attempt = attempt_of_this_context()
    if attempt is None or (isinstance(state, Mapping) and not more):
        return
    word = getattr(step.function, "__name__", step.name)
    said = f"run {attempt.run_id!r}: step {attempt.step!r} called {word}, which is step {step.name!r} of agent {step.agent_name!r}, "
    said += (
        "without a state."
        if state is _MISSING
        else f"with {reprlib.repr(state)}, which is no state."
        if not more
        else "with keywords."
    )
    if step.name in attempt.agent.tools or word in attempt.agent.tools:
        said += " The agent has a tool of this name, too, which the step's function hides: give one of the two functions another name."
    else:
        said += f" To go on with it, return the step itself: return {word}."
    raise AgentTasksError(said)


def _warn_if_a_step_calls(step: Step, caller: FrameType) -> None:
    from agent_tasks.current import attempt_of_this_context

    attempt = attempt_of_this_context()
    if attempt is None:
        return
    place = (caller.f_code.co_filename, caller.f_lineno)
    if place in _warned:
        return
    _warned.add(place)
    word = getattr(step.function, "__name__", step.name)
    logger.warning(
        "run %s: step %s called step %s as a function (%s:%s), so it is a part of this step, without a checkpoint of its own. To go on "
        "with it, return the step itself: return %s",
        attempt.run_id,
        attempt.step,
        step.name,
        *place,
        word,
        extra={"action": "step_called", "run_id": attempt.run_id},
    )


def what_is_wrong(returned: Any, steps: Mapping[str, Step]) -> str:
    """Say what a step should have returned instead of this, which is no outcome."""
    if returned is None:
        return "returned nothing; end it with return done(…), return fail(…) or the next step's function."
    near = None
    if isinstance(returned, str):
        by_lower = {name.lower(): name for name in steps}
        short = returned.lower().rpartition(".")[2]  # 'order.pay' is the name of a step's task
        near = nearest(returned, steps) or by_lower.get(short) or by_lower.get(nearest(short, by_lower) or "")
    if near is None:
        known = f" The steps are {', '.join(steps)}: return the function itself." if isinstance(returned, str) else ""
        return f"must return done(…), fail(…) or a step, got {returned!r}.{known}"
    function = getattr(steps[near].function, "__name__", "")
    name = function if function.isidentifier() else near
    if returned in steps:
        return f"returned the name {returned!r}; return the function itself: return {name}."
    return f"returned {returned!r}, which is no step. Did you mean {near!r}? Return the function itself: return {name}."
