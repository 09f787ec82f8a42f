"""What each kind of tool is promised, in the words that the command line and the pages show."""

from __future__ import annotations

from typing import NamedTuple

from agent_tasks.states import Effect


class Words(NamedTuple):
    """A promise in words.

    Attributes:
        promise: what holds for the effect.
        after_crash: what a crash in the middle of the call leads to.
    """

    promise: str
    after_crash: str


#: Never a bare "exactly once": each promise names what it rests on.
PROMISES: dict[Effect, Words] = {
    Effect.READ: Words("at least once", "run again"),
    Effect.REPEATABLE: Words("at least once", "run again"),
    Effect.TRANSACTIONAL: Words("exactly once, in the ledger's own database", "nothing was committed: run again"),
    Effect.KEYED: Words(
        "once, while the key lives", "run again with the same key; after its life: probe, else a person"
    ),
    Effect.PROBED: Words("once, within the limits", "wait for the horizon, probe, then reuse or run"),
    Effect.MANUAL: Words("at most once, within the limits", "a person decides"),
}
