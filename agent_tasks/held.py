"""A resource that is open, from its opening to its end."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from agent_tasks.loops import END_SECONDS, KeptLoop

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from agent_tasks.loops import Started


class Held:
    """One that is a plain function.

    Args:
        manager: opens and closes it.
        subject: what messages call it.
    """

    def __init__(self, manager: AbstractContextManager[Any], subject: str) -> None:
        self._manager = manager

    def open(self) -> Any:
        """Open it, and return what steps get."""
        return self._manager.__enter__()

    def close(self, error: BaseException | None) -> None:
        """Close it; it sees what ended the step."""
        try:
            self._manager.__exit__(None if error is None else type(error), error, getattr(error, "__traceback__", None))
        except BaseException as raised:
            if raised is not error:
                raise

    def abandon(self) -> None:
        """Nobody comes back to it; a generator that is dropped is closed by Python."""


class HeldAsync:
    """An async one: a task on the kept loop holds it from its opening to its end, as cancel scopes have to be.

    Args:
        manager: opens and closes it.
        subject: what messages call it.
    """

    def __init__(self, manager: AbstractAsyncContextManager[Any], subject: str) -> None:
        self._manager, self._subject = manager, subject
        self._ready, self._value = threading.Event(), None
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._task: Started | None = None

    def open(self) -> Any:
        """See :class:`Held`; not on the event loop."""
        self._task = task = KeptLoop.of_this_process().start(self._hold(), self._subject)
        try:
            self._ready.wait()
        except BaseException:
            self.abandon()
            raise
        if self._end is None:
            task.wait()
            task.result()
        return self._value

    def close(self, error: BaseException | None) -> None:
        """See :class:`Held`."""
        assert self._task is not None  # noqa: S101 - it is open
        assert self._loop is not None  # noqa: S101
        assert self._end is not None  # noqa: S101
        self._error = error
        self._loop.call_soon_threadsafe(self._end.set)
        self._task.wait()
        self._task.result()

    def abandon(self) -> None:
        """Nobody comes back to it: its task is not left behind on the loop."""
        if self._task is not None:
            self._task.cancel()
            self._task.wait(END_SECONDS)

    async def _hold(self) -> None:
        try:
            async with self._manager as value:
                self._value, self._loop, self._end = value, asyncio.get_running_loop(), asyncio.Event()
                self._ready.set()
                await self._end.wait()
                if self._error is not None:
                    raise self._error
        except BaseException as raised:
            if raised is not self._error:
                raise
        finally:
            self._ready.set()
