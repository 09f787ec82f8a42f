"""Exceptions that say more about the code which raised them than about the world."""

from __future__ import annotations

from agent_tasks.errors import NotAwaited, NotKept, is_a

#: Raised by code that is wrong, and hardly ever by a vendor or on the way to him. A ``KeyError`` is not among them: an
#: answer may lack what it should hold.
_OF_THE_CODE = (AttributeError, NameError, TypeError, ImportError, SyntaxError, NotImplementedError, RecursionError)
_OF_OURS = (NotAwaited, NotKept)


def looks_like_a_bug(error: BaseException) -> bool:
    """Tell whether an exception is nearly always a bug of the code. What it was raised on may have happened all the same.

    Example:
        >>> looks_like_a_bug(AttributeError("post")), looks_like_a_bug(ConnectionError("reset"))
        (True, False)
    """
    return is_a(error, (*_OF_THE_CODE, *_OF_OURS))
