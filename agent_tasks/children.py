"""Processes that a step's code forks: such a child works for no run, and never comes back into the engine (I2, I3, I7).

It has its parent's memory: the attempt with its fence and token, the thread's number and context, the connections. In the
ledger nobody could tell its writes from its parent's. So an attempt refuses whatever another process asks of it
(``Attempt.check_process``), and the engine ends a child that returns, or raises, out of the code that forked it: else it
would commit the step, answer the doorbell and free the slot once more, beside its parent.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from agent_tasks.errors import is_a

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)

#: Exit status of a child that came back; its parent may look at it.
CAME_BACK = 1


class EndingChildren:
    """While code runs that is not the engine's: a process that it forks, and that comes back from it, ends here.

    It ends without a finally, a finalizer or a flush, as ``multiprocessing`` ends its children: all that it would close is
    its parent's. ``sys.exit`` in it ends it quietly and with that status, anything else is logged.

    Args:
        what: was running, for the log.

    Example:
        >>> with EndingChildren("step 'pay'"):
        ...     child = os.fork()
        >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        1
    """

    def __init__(self, what: str) -> None:
        self._what, self._pid = what, os.getpid()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if os.getpid() == self._pid:
            return
        status = CAME_BACK
        try:
            if is_a(error, SystemExit):
                status = _status_of(error)
            else:
                logger.error(
                    "process %s, which %s had forked from process %s, came back from it and was ended: it works for no run. "
                    "End such a child with os._exit(), and return its results to its parent",
                    os.getpid(),
                    self._what,
                    self._pid,
                    exc_info=error,
                    extra={"action": "child_came_back"},
                )
        finally:
            os._exit(status)


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else CAME_BACK
