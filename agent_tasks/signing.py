"""Who decides something about a run, and why: an audit trail without a name or a reason is none (I12)."""

from __future__ import annotations

import reprlib

from agent_tasks.errors import AgentTasksError
from agent_tasks.texts import is_storable

#: Longest name of a person and longest reason, in characters.
MAX_WHO_LENGTH, MAX_WHY_LENGTH = 200, 4_000


def check_signed(who: object, why: object, kind: type[AgentTasksError]) -> None:
    """Refuse a name or a reason that is empty, or that no database stores.

    Raises:
        AgentTasksError: of the ``kind`` given; nothing was changed.
    """
    for name, value, longest in (("who", who, MAX_WHO_LENGTH), ("why", why, MAX_WHY_LENGTH)):
        if not (isinstance(value, str) and value.strip() and len(value) <= longest and is_storable(value)):
            raise kind(
                f"{name} must be a text of 1 to {longest} characters without NUL, got {reprlib.repr(value)}. "
                "Nothing was changed."
            )
