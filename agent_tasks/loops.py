"""The kept event loop: one a process, in a thread of its own, on which everything that is ``async def`` runs.

It outlives the steps, and with it the connections that async clients keep. It is made when it is first needed, so that a
worker's child makes its own; a child that is forked later has none of it.

Steps and the engine stay outside: what they start here, they wait for in their own threads. So whatever a body does to its
loop, the ledger's statements never run on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agent_tasks.children import EndingChildren
from agent_tasks.errors import AgentTasksError
from agent_tasks.slots import KILL_GRACE_SECONDS, KILLED_WITHIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long a body is waited for after it was cancelled at its deadline, in seconds. What it does then is in doubt anyway; but
#: its call must not end before the parent of a prefork child has seen that it overstays, and has killed it.
END_SECONDS = KILL_GRACE_SECONDS + KILLED_WITHIN_SECONDS


class NeverBegan(BaseException):
    """A cancel came before the body had begun: nothing was sent."""


class Started:
    """A coroutine that was handed to the loop.

    Args:
        loop: that runs it.
        coroutine: what runs.
        what: it is, for the log of a child that it forks.
        first: called in its task before it begins.
        with_threads: where it ends by an exception, it ends when what it does in threads of the loop has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        what: str,
        first: Callable[[], None] | None = None,
        with_threads: bool = False,
    ) -> None:
        self._with_threads = with_threads
        self._loop, self._coroutine, self._what, self._first = loop, coroutine, what, first
        self._ended, self._begun = threading.Event(), False
        self._value: Any = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._deciding, self._cancelled = threading.Lock(), False
        self._threads: set[concurrent.futures.Future[Any]] = set()
        self._left_to: Callable[[Callable[[], Any]], None] | None = None
        loop.call_soon_threadsafe(self._start)  # in a copy of this thread's context

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, and tell whether it has."""
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        """Ask it to end; from any thread. If it has not begun, it never will."""
        with self._deciding:
            self._cancelled = True
        self._loop.call_soon_threadsafe(self._cancel)

    @property
    def never_began(self) -> bool:
        """It was cancelled before it began, also where a loop that somebody blocks has not come to say so yet."""
        with self._deciding:
            return self._cancelled and not self._begun

    def leave_to(self, late: Callable[[Callable[[], Any]], None]) -> None:
        """Give it up: nobody waits for it any more, and ``late`` gets its :meth:`result` when it has ended, in a thread of its own."""
        with self._deciding:
            self._left_to = late
        if self._ended.is_set():
            self._hand_over()

    def _hand_over(self) -> None:
        with self._deciding:
            late, self._left_to = self._left_to, None
        if late is not None:
            threading.Thread(target=late, args=(self.result,), name="agent-late", daemon=True).start()

    def waits_for(self, thread: concurrent.futures.Future[Any]) -> None:
        """Note what it does in a thread of the loop, which no cancel stops: until that has ended, it has not."""
        self._threads.add(thread)
        thread.add_done_callback(self._threads.discard)

    def result(self) -> Any:
        """Return what it returned, or raise what it raised.

        Raises:
            NeverBegan: it was cancelled before it began.
        """
        if self._error is None:
            return self._value
        raise self._error

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._end)
        if self._cancelled:
            self._task.cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        # Nothing gets out: a SystemExit would end the loop, and with it what others have there.
        with self._deciding:
            if self._cancelled:
                return
            self._begun = True
        _running.set(self if self._with_threads else None)
        try:
            if self._first is not None:
                self._first()
            with EndingChildren(self._what):
                self._value = await self._coroutine
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
            while threads := list(self._threads):
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*map(asyncio.wrap_future, threads), return_exceptions=True)

    def _end(self, _task: asyncio.Task[None]) -> None:
        if not self._begun:
            self._coroutine.close()
            self._error = NeverBegan()
        self._ended.set()
        self._hand_over()


#: The coroutine that runs in this task, or that started it.
_running: ContextVar[Started | None] = ContextVar("agent_tasks_running", default=None)


class _Threads(ThreadPoolExecutor):
    """The threads of the loop (``asyncio.to_thread``): whose work they do waits for them."""

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> concurrent.futures.Future[T]:
        future = super().submit(function, *args, **options)
        running = _running.get()
        if running is not None:
            running.waits_for(future)
        return future


class KeptLoop:
    """The loop of this process.

    Example:
        >>> async def answer():
        ...     return 42
        >>> KeptLoop.of_this_process().run(answer(), "an example")
        42
    """

    _lock = threading.Lock()
    _kept: KeptLoop | None = None

    def __init__(self) -> None:
        self.pid, self._loop = os.getpid(), asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads(thread_name_prefix="agent-loop"))
        self._thread = threading.Thread(target=self._forever, name="agent-loop", daemon=True)
        self._thread.start()

    @classmethod
    def of_this_process(cls) -> KeptLoop:
        """Return it; the first call makes it."""
        with cls._lock:
            if cls._kept is None or cls._kept.pid != os.getpid():
                cls._kept = cls()
            return cls._kept

    @classmethod
    def is_running_here(cls) -> bool:
        """Tell whether the caller runs on it, so that whoever waits here stops everything on it."""
        kept = cls._kept
        return kept is not None and threading.current_thread() is kept._thread

    def start(
        self,
        coroutine: Coroutine[Any, Any, Any],
        what: str,
        *,
        first: Callable[[], None] | None = None,
        with_threads: bool = False,
    ) -> Started:
        """Hand a coroutine to the loop; it runs in a copy of the caller's context."""
        return Started(self._loop, coroutine, what, first, with_threads)

    def run(self, coroutine: Coroutine[Any, Any, T], what: str, *, first: Callable[[], None] | None = None) -> T:
        """Run a coroutine to its end; what strikes the waiting thread, such as a time limit, cancels it first.

        Args:
            coroutine: what to run.
            what: it is, for messages.
            first: called in its task before it begins.

        Raises:
            AgentTasksError: this is the loop itself, which would wait for itself.
        """
        if self.is_running_here():
            coroutine.close()
            raise AgentTasksError(
                f"{what} was called on the event loop that it is to run on, which would wait for itself. Call it in a thread: "
                "await asyncio.to_thread(…)."
            )
        started = self.start(coroutine, what, first=first)
        try:
            started.wait()
        except BaseException:
            started.cancel()
            started.wait(END_SECONDS)
            raise
        value: T = started.result()
        return value

    def _forever(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException as error:
                # A task that a step left behind raised SystemExit, say.
                logger.exception(
                    "a task on the event loop of this process raised %s; the loop goes on",
                    type(error).__name__,
                    extra={"action": "loop_interrupted"},
                )


def _forget() -> None:
    """A forked child has no thread that runs its parent's loop, nor one that gives back its lock."""
    KeptLoop._kept, KeptLoop._lock = None, threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


class Cancelling:
    """What a cancel of the waiting task is handed on to: the body that its call has begun, or would begin."""

    def __init__(self) -> None:
        self.asked, self._body = False, cast("Started | None", None)

    def ask(self) -> None:
        """Cancel the body, now or when it is about to begin."""
        self.asked = True
        if self._body is not None:
            self._body.cancel()

    def hand_to(self, body: Started) -> None:
        """Cancel this one from now on."""
        self._body = body
        if self.asked:
            body.cancel()


_cancelling: ContextVar[Cancelling | None] = ContextVar("agent_tasks_cancelling", default=None)


def run_body(
    coroutine: Coroutine[Any, Any, T],
    what: str,
    remaining_seconds: float,
    *,
    first: Callable[[], None] | None = None,
    with_threads: bool = False,
    late: Callable[[], Callable[[Callable[[], Any]], None]] | None = None,
) -> T:
    """Run an async body on the kept loop, and cancel it at its deadline; the calling thread waits for its end.

    Args:
        coroutine: the body.
        what: it is, for messages.
        remaining_seconds: until its deadline; may be infinite.
        first: called in its task before it begins.
        with_threads: where it ends by an exception, it ends when what it does in threads of the loop has ended.
        late: called where it is given up; what it returns is handed what it comes to all the same, see :meth:`Started.leave_to`.

    Raises:
        TimeoutError: it was cancelled at its deadline, and did not return all the same.
        NeverBegan: its deadline came, or whoever waits for the call gave up, before the body began.
    """
    cancelling = _cancelling.get()
    if cancelling is not None and cancelling.asked:
        coroutine.close()
        raise NeverBegan
    body = KeptLoop.of_this_process().start(coroutine, what, first=first, with_threads=with_threads)
    deadline = time.monotonic() + remaining_seconds
    if cancelling is not None:
        cancelling.hand_to(body)
    try:
        in_time = body.wait(None if not isfinite(remaining_seconds) else remaining_seconds)
    except BaseException:  # a time limit, say: until it has ended, or its process is killed, its call goes on
        body.cancel()
        left = deadline - time.monotonic()
        if not body.wait(END_SECONDS + (max(left, 0) if isfinite(left) else 0)) and late is not None:
            body.leave_to(late())
        raise
    if in_time:
        value: T = body.result()
        return value
    body.cancel()
    if not body.wait(END_SECONDS):
        if body.never_began:
            raise NeverBegan
        if late is not None:
            body.leave_to(late())
        raise TimeoutError(f"{what} did not end at its deadline, and goes on although it was cancelled")
    try:
        value = body.result()
    except (asyncio.CancelledError, TimeoutError) as error:
        raise TimeoutError(f"{what} was cancelled at its deadline") from error
    return value


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread of its own and wait for its end, also where the waiting task is cancelled meanwhile.

    A cancel is handed on to the async body that the function runs, and what the function returns or raises then counts: nobody
    leaves in the middle of an effect.
    """
    loop, cancelling = asyncio.get_running_loop(), Cancelling()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def work() -> None:
        _cancelling.set(cancelling)
        try:
            outcome: tuple[Any, BaseException | None] = (function(*args), None)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            outcome = (None, error)
        loop.call_soon_threadsafe(tell, outcome)

    # A thread each: of any number that were fixed, calls inside calls could wait for ever.
    threading.Thread(target=copy_context().run, args=(work,), name="agent-call", daemon=True).start()
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancelling.ask()
    value, error = ended.result()
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]
