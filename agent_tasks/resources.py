"""Resources of an attempt: opened when they are first asked for, closed when it ends, never stored and never shared (I2).

What is opened belongs to one attempt in one process. It is closed before the step's commit, while the lease is still held,
so that two attempts never hold what only one may. A process that dies closes nothing; whatever it held ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_tasks.current import attempt_of_this_context, working_for
from agent_tasks.errors import ConfigurationError, NotAwaited, OutsideRun, StepSuspended
from agent_tasks.held import Held, HeldAsync
from agent_tasks.loops import KeptLoop, in_thread
from agent_tasks.operations import CRASHES, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from agent_tasks.attempt import Attempt

logger = logging.getLogger(__name__)

#: What stands in for resources in this context, such as that of a test.
_stand_ins: ContextVar[Mapping[Resource, Any]] = ContextVar("agent_tasks_stand_ins", default={})  # noqa: B039 - never changed

#: What is being opened here, outermost first.
_opening: ContextVar[tuple[Resource, ...]] = ContextVar("agent_tasks_opening", default=())


class Resource:
    """A declared resource; ``agent.resource`` makes it. Call it in a step, or in the body of a tool: ``db()``.

    Attributes:
        name: of the resource.
        is_async: it is asked for with ``await``.
    """

    def __init__(self, agent_name: str, name: str, function: Callable[[], Any]) -> None:
        self.name, self.agent_name, self.function = name, agent_name, function
        self.subject = f"resource {name!r} of agent {agent_name!r}"
        self.is_async, self._manager = _manager_of(self.subject, function)

    def __repr__(self) -> str:
        return f"<resource {self.name} of {self.agent_name}>"

    def __call__(self) -> Any:
        """Return what the attempt of this step has open; the first call opens it.

        Raises:
            OutsideRun: this is no step of the agent, or it has ended.
            NotAwaited: the resource is async and nothing can be awaited here; or it is not, and this is the event loop.
            InForkedProcess: the step has forked this process.
        """
        if self in (stand_ins := _stand_ins.get()):
            return _at_once(stand_ins[self]) if self.is_async else stand_ins[self]
        attempt = self._attempt()
        if self.is_async:
            return self._awaited(attempt, "()")
        if KeptLoop.is_running_here():
            raise NotAwaited(
                f"run {attempt.run_id!r}: {self.subject} is a plain function and was asked for on the event loop, which opening it "
                f"would stop. Write `await {self.name}.aio()`, or make it `async def`."
            )
        return attempt.resources.get(self)

    def aio(self) -> Coroutine[Any, Any, Any]:
        """Ask for it in an async step; one that is a plain function is opened in a thread.

        Raises:
            OutsideRun: as above.
            NotAwaited: nothing can be awaited here.
        """
        if self in (stand_ins := _stand_ins.get()):
            return _at_once(stand_ins[self])
        return self._awaited(self._attempt(), ".aio()")

    @contextlib.contextmanager
    def using(self, value: Any) -> Iterator[None]:
        """Let something stand in for it, in a test: steps and tools that are called meanwhile get ``value``.

        Args:
            value: what they get; it is neither opened nor closed.

        Example:
            >>> from celery import Celery
            >>> from agent_tasks import Agent, done
            >>> shop = Agent("resource-shop", app=Celery("shop", broker="memory://"))
            >>> @shop.resource
            ... def prices():
            ...     yield {"tea": 300}
            >>> @shop.step
            ... def look(state):
            ...     return done(prices()[state["item"]])
            >>> shop.run_inline({"item": "tea"})
            300
            >>> with prices.using({"tea": 250}):
            ...     look({"item": "tea"})
            Done(output=250)
        """
        token = _stand_ins.set({**_stand_ins.get(), self: value})
        try:
            yield
        finally:
            _stand_ins.reset(token)

    def made(self) -> Any:
        """Return a context manager that opens it and closes it."""
        return self._manager()

    def _attempt(self) -> Attempt:
        attempt = attempt_of_this_context()
        if attempt is None:
            raise OutsideRun(
                f"{self.subject} was asked for outside a run. Ask for it in a step; in a test of a step's function write "
                f"`with {self.name}.using(…):`."
            )
        attempt.check_process(f"{self.subject} was asked for")
        if attempt.agent.resources.get(self.name) is not self:
            raise OutsideRun(
                f"run {attempt.run_id!r}: {self.subject} was asked for in step {attempt.step!r} of {attempt.agent.subject}. Declare one "
                f"there: what a resource opens belongs to the attempts of its own agent."
            )
        return attempt

    def _awaited(self, attempt: Attempt, call: str) -> Coroutine[Any, Any, Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NotAwaited(
                f"run {attempt.run_id!r}: {self.subject} is asked for with await, and no event loop runs here. Make step "
                f"{attempt.step!r} `async def`, and write `await {self.name}{call}`."
            ) from None
        token = object()
        asked = self._ask(attempt, token)
        attempt.expect_await(token, self.subject, asked)
        return asked

    async def _ask(self, attempt: Attempt, token: object) -> Any:
        attempt.awaits(token)
        return await in_thread(attempt.resources.get, self)


class Resources:
    """What one attempt has open.

    Args:
        attempt: whose they are.

    Attributes:
        kept_out: what they are, by the identity of what was opened; none of it is stored.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt, self._lock, self._closed = attempt, threading.Lock(), False
        self._locks: dict[Resource, threading.Lock] = {}
        self._open: dict[Resource, tuple[Held | HeldAsync, Any]] = {}
        self.kept_out: dict[int, str] = {}

    def get(self, resource: Resource) -> Any:
        """Return what a resource opened in this attempt; open it if that was not done. Not on the event loop."""
        way = _opening.get()
        if resource in way:
            names = " → ".join(each.name for each in (*way, resource))
            raise ConfigurationError(
                f"{resource.subject} needs itself to be opened: {names}. Let one of them do without the other."
            )
        with self._lock:
            lock = self._locks.setdefault(resource, threading.Lock())
        with lock:
            if resource not in self._open:
                self._check_open(resource)
                self._keep(resource, *self._opened(resource, way))
            return self._open[resource][1]

    def _opened(self, resource: Resource, way: tuple[Resource, ...]) -> tuple[Held | HeldAsync, Any]:
        token = _opening.set((*way, resource))
        held = (HeldAsync if resource.is_async else Held)(resource.made(), resource.subject)
        try:
            return held, self._attempt.runtime.boundary.effect(f"{resource.name}.open", held.open)
        except BaseException:
            held.abandon()
            raise
        finally:
            _opening.reset(token)

    def _keep(self, resource: Resource, held: Held | HeldAsync, value: Any) -> None:
        with self._lock:
            if not self._closed:
                self._open[resource] = held, value
                self.kept_out[id(value)] = (
                    f"it is {resource.subject}, which is closed when its attempt ends; ask for it again where it is needed"
                )
                return
        held.close(None)  # the step ended meanwhile
        self._check_open(resource)

    def _check_open(self, resource: Resource) -> None:
        if self._closed:
            attempt = self._attempt
            raise OutsideRun(
                f"run {attempt.run_id!r}: {resource.subject} was asked for after step {attempt.step!r} had ended."
            )

    def close(self, error: BaseException | None) -> None:
        """Close all of them, the last one first; each sees what ended the step. One that fails keeps no other open.

        Args:
            error: what ended the step; None if it returned.

        Raises:
            BaseException: what ends the process came up in one of them. Anything else is logged: the step is done.
        """
        with self._lock:
            self._closed = True
        fatal: BaseException | None = None
        for resource, (held, _) in reversed(self._open.items()):
            shut = partial(held.close, error)
            try:
                with working_for(self._attempt):
                    self._attempt.runtime.boundary.effect(f"{resource.name}.close", shut)
            except (Exception, StepSuspended) as failure:  # noqa: BLE001 - the step has ended, however this does
                if isinstance(failure, CRASHES):
                    fatal = fatal or failure
                    continue
                logger.warning(
                    "run %s: step %s: %s could not be closed\n%s",
                    self._attempt.run_id,
                    self._attempt.step,
                    resource.subject,
                    traceback_of(failure),
                    extra={"action": "resource_not_closed", "run_id": self._attempt.run_id},
                )
            except BaseException as failure:  # noqa: BLE001 - raised below
                held.abandon()
                fatal = fatal or failure
        if fatal is not None:
            raise fatal


async def _at_once(value: Any) -> Any:
    return value


def _manager_of(subject: str, function: Any) -> tuple[bool, Callable[[], Any]]:
    """Return whether a resource is async, and what makes its context manager."""
    yields: Any = inspect.unwrap(function) if callable(function) else None
    is_async = inspect.isasyncgenfunction(yields)
    if not is_async and not inspect.isgeneratorfunction(yields):
        raise ConfigurationError(
            f"{subject} must be a generator function, plain or async, or one with @contextmanager, got {function!r}. Yield what it "
            "opens, and close it after that."
        )
    try:
        inspect.signature(yields).bind()
    except TypeError as error:
        raise ConfigurationError(f"{subject} must be a function without arguments: {error}.") from None
    if yields is not function:
        return is_async, function
    return is_async, (contextlib.asynccontextmanager if is_async else contextlib.contextmanager)(function)
