"""A function in a child that was forked, as a pool's are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

#: After that the child is ended, in seconds.
_LIMIT_SECONDS = 60


def forked(function: Callable[[], object]) -> int | str:
    """Call a function in a forked child and wait for its end.

    Returns:
        0, the name of the exception's class that it raised, or the signal that killed the child, below 0; that of an
        alarm if it did not end.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LIMIT_SECONDS)
            function()
        except BaseException as error:  # noqa: BLE001 - the child must never go on as a second test process
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        raised = pipe.read()
    _, status = os.waitpid(pid, 0)
    return raised or os.waitstatus_to_exitcode(status)
