"""From the newest checkpoint to the newest that can be used, the same way in every store.

A checkpoint cannot be used if its bytes fail their checksum, if one of its messages is missing, if a newer release wrote
it in a format that this one does not know, or if the caller's health check speaks against it. The newest earlier one of
the head's ancestry that passes takes its place, and a warning names both.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from checkpoint.ancestry import line_of
from checkpoint.errors import CheckpointCorrupted, CheckpointUnhealthy
from checkpoint.verifying import Damage
from checkpoint.words import said, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpoint.state import CheckpointState
    from checkpoint.tip import Tip

    #: Answers whether a state may be gone on from: True or None if so; False, or why not as a text.
    HealthCheck = Callable[[CheckpointState], bool | str | None]

_logger = logging.getLogger(__name__)


class Reading(Protocol):
    """Reads one checkpoint of a run.

    Args of a call: its line, its seq, and the logs and positions of messages that are known to be damaged. It raises
    `Damage` if the checkpoint is damaged or missing.
    """

    def __call__(self, line: int, seq: int, bad_places: frozenset[tuple[int, int]], /) -> CheckpointState: ...


def newest_usable(
    run_id: str,
    tip: Tip,
    read: Reading,
    *,
    strict: bool = False,
    health_check: HealthCheck | None = None,
) -> CheckpointState:
    """Return the newest checkpoint of the head's ancestry that can be used.

    Args:
        run_id: The run.
        tip: Its head.
        read: Reads a checkpoint.
        strict: Raise what speaks against the head in place of looking for an older one.
        health_check: The caller's check.

    Raises:
        CheckpointCorrupted: The head is damaged, and no older one can be used, or `strict` says not to look.
        CheckpointUnhealthy: The same of a head that fails the health check.
        UnreadableValue: The newest that verifies needs code or a package that is missing here.
    """
    bad_places: set[tuple[int, int]] = set()
    newest: CheckpointCorrupted | CheckpointUnhealthy | None = None
    for seq in range(tip.seq, -1, -1):
        line = tip.line if seq == tip.seq else line_of(tip.ancestry, seq)
        if line is None:
            continue
        refused: CheckpointCorrupted | CheckpointUnhealthy
        try:
            state = read(line, seq, frozenset(bad_places))
        except Damage as damage:
            refused = CheckpointCorrupted(run_id, line, seq, damage.reason)
            if damage.place:
                bad_places.add(damage.place)
        else:
            why = what_speaks_against(state, health_check)
            if why is None:
                if newest is not None:
                    _logger.warning("%s; fell back to (line %d, seq %d)", newest, line, seq)
                return state
            refused = CheckpointUnhealthy(run_id, line, seq, why)
        if strict:
            raise refused
        newest = newest or refused
    if newest is None:
        raise CheckpointCorrupted(run_id, tip.line, tip.seq, "its head names no line that holds it")
    raise type(newest)(run_id, newest.line, newest.seq, f"{newest.reason}, and no older one verifies")


def newest_before(run_id: str, tip: Tip, seq: int, read: Reading) -> CheckpointState | None:
    """Return the newest checkpoint of the head's ancestry before `seq` that verifies, or None if none does.

    Raises:
        UnreadableValue: That checkpoint needs code or a package that is missing here.
    """
    bad_places: set[tuple[int, int]] = set()
    for older in range(min(seq - 1, tip.seq), -1, -1):
        line = line_of(tip.ancestry, older)
        if line is None:
            continue
        try:
            return read(line, older, frozenset(bad_places))
        except Damage as damage:
            if damage.place:
                bad_places.add(damage.place)
    return None


def what_speaks_against(state: CheckpointState, health_check: HealthCheck | None) -> str | None:
    """Return why a health check refuses a state, or None if it does not.

    Example:
        >>> from checkpoint import CheckpointState
        >>> what_speaks_against(CheckpointState("order-7", 0), lambda state: "cart" in state.agent_state)
        'its health check says no'
    """
    if health_check is None:
        return None
    try:
        answer = health_check(state)
    except Exception as error:  # noqa: BLE001 - a state that cannot be looked at is not healthy
        return f"its health check raised {said(error)}"
    if answer is None or answer is True:
        return None
    if answer is False:
        return "its health check says no"
    if isinstance(answer, str):
        return f"its health check says: {answer}"
    return f"its health check returned {shown(answer)}, and must return True, False or why not as a text"
