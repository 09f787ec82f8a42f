"""Signing a checkpoint anew that a person edited in its file, so that it is used again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from checkpoint.ancestry import line_of
from checkpoint.errors import CheckpointCorrupted, CheckpointNotFound, CorruptedBytes, UnstorableValue
from checkpoint.kept import Reseal
from checkpoint.record import decode_head, encode_state, microseconds, moment
from checkpoint.segments import length_of
from checkpoint.state import CheckpointState, Position
from checkpoint.verifying import Damage, verified

if TYPE_CHECKING:
    from checkpoint.file import FileStore
    from checkpoint.file_shelf import FileShelf
    from checkpoint.kept import Kept


def reseal(store: FileStore, run_id: str, seq: int, *, reason: str, line: int | None = None) -> Position | None:
    """Sign a checkpoint anew whose file was edited by hand.

    `agent_state`, `metadata`, `step`, `version` and `created_at` may be edited. Messages may not: later checkpoints share
    them; save the changed conversation on a new line. The reason, the moment and the checksum that stood there are kept
    in the file.

    Args:
        store: Where the run is.
        run_id: The run.
        seq: The number of the checkpoint.
        reason: Why it was edited, for whoever reads the file later.
        line: Its line; None follows the head's ancestry.

    Returns:
        Where the checkpoint stands; None if it was not edited, and nothing was done.

    Raises:
        CheckpointNotFound: There is none.
        CheckpointCorrupted: It is damaged in another way than by such an edit; nothing was written.
        UnstorableValue: The edit, or the reason, cannot be stored; nothing was written.
        UnreadableValue: It needs code or a package that is missing here.

    Example:
        >>> from checkpoint import CheckpointState, FileStore, reseal
        >>> store = FileStore(directory + "/edited")
        >>> store.save(CheckpointState("order-7", 0, agent_state={"cart": ["tea"]}))
        >>> path = store.directory / "order-7" / "0.json"
        >>> _ = path.write_text(path.read_text().replace("tea", "milk"))
        >>> reseal(store, "order-7", 0, reason="kim: they are out of tea")
        Position(run_id='order-7', line=0, seq=0)
        >>> store.load_latest("order-7").agent_state
        {'cart': ['milk']}
    """
    if type(reason) is not str or not reason.strip():
        raise UnstorableValue("reason", "it must be a text that says why the checkpoint was edited")
    with store._writing(run_id) as shelf:
        tip = shelf.tip()
        if tip is None:
            raise CheckpointNotFound(run_id, seq, line, "the run has no checkpoint at all")
        found = line_of(tip.ancestry, seq) if line is None else line
        if found is None or (found, seq) not in shelf.places():
            raise CheckpointNotFound(run_id, seq, line, f"its head is at line {tip.line}, seq {tip.seq}")
        try:
            kept, told = shelf.stored(found, seq)
            if kept.checksum() == told:
                return None
            _check(shelf, kept)
        except (Damage, CorruptedBytes) as error:
            raise CheckpointCorrupted(run_id, found, seq, error.reason) from error
        edit = Reseal(microseconds(None), reason, told)
        shelf.rewrite(replace(kept, reseals=(*kept.reseals, edit)))
    return Position(run_id, found, seq)


def _check(shelf: FileShelf, kept: Kept) -> None:
    """Refuse what is more than an edit of what may be edited.

    Raises:
        Damage: The place of the checkpoint or its messages do not fit.
    """
    parent = None if kept.parent_line is None else (kept.parent_line, kept.seq - 1)
    if parent not in (None, *shelf.places()) or (parent is None) != (kept.seq == 0):
        raise Damage(f"its parent_line must not be edited, got {kept.parent_line}")
    if kept.message_count != length_of(kept.segments):
        raise Damage(f"its message_count must not be edited, got {kept.message_count}")
    verified(kept.segments, kept.chain, None, partial(shelf.messages, kept.segments))
    agent_state, metadata = decode_head(kept.head)
    state = CheckpointState(kept.run_id, kept.seq, kept.step, kept.line, [], agent_state, metadata)
    encode_state(replace(state, created_at=moment(kept.created_at), version=kept.version))
