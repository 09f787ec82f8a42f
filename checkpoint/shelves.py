"""What the stores have in common that are no database: all but where the bytes are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Protocol

from checkpoint.ancestry import line_of
from checkpoint.cache import KnownRun, RunCache
from checkpoint.envelope import refuse_large
from checkpoint.errors import CheckpointCorrupted, CheckpointNotFound, CheckpointUnhealthy, CorruptedBytes
from checkpoint.falling_back import newest_before, newest_usable
from checkpoint.kept import Kept
from checkpoint.record import decode_head, decode_items, encode_state, moment
from checkpoint.snapshot import Snapshot
from checkpoint.state import CheckpointState, CheckpointSummary, Position
from checkpoint.succession import other_content, succeed
from checkpoint.verifying import Damage, Message, holds, verified

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from checkpoint.falling_back import HealthCheck
    from checkpoint.record import Record
    from checkpoint.segments import Segments
    from checkpoint.succession import Succession
    from checkpoint.tip import Tip

_PAGE = 200  # checkpoints of a list that are looked at together; nobody waits while the caller looks at them


class Shelf(Protocol):
    """Where the checkpoints of one run stand, for as long as nobody else changes them."""

    def tip(self) -> Tip | None:
        """Return the head of the run, or None if it has no checkpoint.

        Raises:
            CheckpointCorrupted: What says where it is is damaged.
        """

    def kept(self, line: int, seq: int) -> Kept | None:
        """Return a checkpoint without its messages, or None if there is none.

        Raises:
            Damage: Its bytes fail their checksum.
        """

    def messages(self, segments: Segments, start: int) -> Iterator[Message]:
        """Yield the messages that segments hold from `start` on.

        Raises:
            Damage: The bytes of one fail.
        """

    def places(self) -> list[tuple[int, int]]:
        """Return line and seq of each checkpoint."""

    def append(self, record: Record, tip: Tip | None, succession: Succession) -> None:
        """Write a checkpoint and its new messages, and move the head: all of it or nothing."""

    def clear(self) -> None:
        """Remove everything."""


class ShelfStore(ABC):
    """A store that keeps each run on a shelf of its own; see `CheckpointStore`."""

    def __init__(self) -> None:
        self._cache = RunCache()

    @abstractmethod
    def _reading(self, run_id: str) -> AbstractContextManager[Shelf]:
        """Return the shelf of a run, which nobody writes to meanwhile."""

    @abstractmethod
    def _writing(self, run_id: str) -> AbstractContextManager[Shelf]:
        """Return the shelf of a run, which nobody else reads or writes meanwhile."""

    def save(self, state: CheckpointState | Snapshot) -> None:
        """Append a checkpoint to its run; see `CheckpointStore.save`.

        Args:
            state: The state, or a snapshot of it.

        Raises:
            CheckpointConflict: The head is elsewhere, or holds other content; nothing was written.
            CheckpointCorrupted: The ancestor that a new line would start from is damaged; nothing was written.
            UnstorableValue: A part of the state would not come back equal and of its own type.
            StoreUnavailable: The disk refuses it.
        """
        record = self._record(state)
        with self._writing(record.run_id) as shelf:
            tip = shelf.tip()
            if tip is not None and (record.line, record.seq) == (tip.line, tip.seq):
                self._refuse_other_content(shelf, record)
                return
            succession = succeed(record, tip, _History(shelf, record.run_id))
            for raw in (record.head, *record.items[succession.written_from :]):
                refuse_large(raw)
            shelf.append(record, tip, succession)
        self._cache.put(record.run_id, KnownRun(succession.moved, record.items, record.chain))

    def snapshot(self, state: CheckpointState) -> Snapshot:
        """Return a state as it is now, to be saved later.

        Args:
            state: The state.

        Raises:
            UnstorableValue: A part of the state would not come back equal and of its own type.
        """
        return Snapshot(self._record(state))

    def load_latest(
        self, run_id: str, *, strict: bool = False, health_check: HealthCheck | None = None
    ) -> CheckpointState | None:
        """Return the newest checkpoint of the head's ancestry that verifies, or None if the run has none.

        Args:
            run_id: The run.
            strict: Raise what speaks against the head in place of looking for an older one.
            health_check: Gets a state that verifies, and returns True or None if it may be used, else False or why not.

        Raises:
            CheckpointCorrupted: It has checkpoints and not one verifies, or the head does not and `strict` is set.
            CheckpointUnhealthy: The same of the health check.
            UnreadableValue: The newest that verifies needs code or a package that is missing here.
        """
        with self._reading(run_id) as shelf:
            tip = shelf.tip()
        if tip is None:
            return None

        def read(line: int, seq: int, bad_places: frozenset[tuple[int, int]]) -> CheckpointState:
            is_head = (line, seq) == (tip.line, tip.seq)
            with self._reading(run_id) as shelf:
                return self._read(shelf, line, seq, bad_places, tip=tip if is_head else None)

        try:
            # Nothing is locked while the health check looks, whatever it does with the store.
            return newest_usable(run_id, tip, read, strict=strict, health_check=health_check)
        except (CheckpointCorrupted, CheckpointUnhealthy):
            if self.head(run_id) is None:
                return None  # it was deleted meanwhile
            raise

    def load(self, run_id: str, seq: int, line: int | None = None) -> CheckpointState:
        """Return one checkpoint.

        Args:
            run_id: The run.
            seq: Its number.
            line: Its line; None follows the head's ancestry.

        Raises:
            CheckpointNotFound: There is none.
            CheckpointCorrupted: Its bytes fail their checksum.
            UnreadableValue: It needs code or a package that is missing here.
        """
        with self._reading(run_id) as shelf:
            tip = shelf.tip()
            if tip is None:
                raise CheckpointNotFound(run_id, seq, line, "the run has no checkpoint at all")
            found = line_of(tip.ancestry, seq) if line is None else line
            try:
                kept = None if found is None else shelf.kept(found, seq)
                if kept is not None:
                    return self._state(shelf, kept)
            except Damage as damage:
                raise CheckpointCorrupted(run_id, found or 0, seq, damage.reason) from damage
            raise CheckpointNotFound(run_id, seq, line, f"its head is at line {tip.line}, seq {tip.seq}")

    def load_before(self, run_id: str, seq: int) -> CheckpointState | None:
        """Return the newest checkpoint of the head's ancestry before `seq` that verifies, or None if none does.

        Args:
            run_id: The run.
            seq: The number that it must lie before.

        Raises:
            CheckpointCorrupted: Nobody can tell the head's ancestry.
            UnreadableValue: That checkpoint needs code or a package that is missing here.
        """
        with self._reading(run_id) as shelf:
            tip = shelf.tip()
            return None if tip is None else newest_before(run_id, tip, seq, partial(self._read, shelf))

    def head(self, run_id: str) -> Position | None:
        """Return where the run stands, or None if it has no checkpoint.

        Args:
            run_id: The run.
        """
        with self._reading(run_id) as shelf:
            tip = shelf.tip()
        return None if tip is None else Position(run_id, tip.line, tip.seq)

    def list_checkpoints(self, run_id: str) -> Iterator[CheckpointSummary]:
        """Yield every checkpoint of every line, newest first, without decoding states; one that is damaged is left out.

        Args:
            run_id: The run.
        """
        with self._reading(run_id) as shelf:
            places = sorted(shelf.places(), reverse=True)
        for start in range(0, len(places), _PAGE):
            with self._reading(run_id) as shelf:
                page = [_summary(shelf, *place) for place in places[start : start + _PAGE]]
            yield from filter(None, page)

    def delete(self, run_id: str) -> None:
        """Remove everything of a run; no error if there is nothing.

        Args:
            run_id: The run.
        """
        with self._writing(run_id) as shelf:
            shelf.clear()
        self._cache.forget(run_id)

    def close(self) -> None:  # noqa: B027 - there is nothing to do, here and in those who are built on it
        """Release what the store itself opened: nothing stays open between two calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _record(self, state: CheckpointState | Snapshot) -> Record:
        return state.record if isinstance(state, Snapshot) else encode_state(state, self._cache.get(state.run_id))

    @staticmethod
    def _refuse_other_content(shelf: Shelf, record: Record) -> None:
        try:
            kept = shelf.kept(record.line, record.seq)
        except Damage:
            kept = None
        if kept is None or not kept.is_of(record):
            raise other_content(record)

    def _read(
        self,
        shelf: Shelf,
        line: int,
        seq: int,
        bad_places: frozenset[tuple[int, int]] = frozenset(),
        *,
        tip: Tip | None = None,
    ) -> CheckpointState:
        """Return a state; that of the head without a look at the messages that this process knows.

        Raises:
            Damage: Bytes fail, or are missing.
        """
        kept = shelf.kept(line, seq)
        if kept is None:
            raise Damage("it is missing")
        return self._state(shelf, kept, bad_places, tip=tip)

    def _state(
        self,
        shelf: Shelf,
        kept: Kept,
        bad_places: frozenset[tuple[int, int]] = frozenset(),
        *,
        tip: Tip | None = None,
    ) -> CheckpointState:
        if any(holds(kept.segments, place) for place in bad_places):
            raise Damage("it shares a damaged message with a newer one")
        known = None if tip is None else self._cache.get(kept.run_id)
        items, chain = verified(kept.segments, kept.chain, known, partial(shelf.messages, kept.segments))
        if tip is not None and (tip.segments, tip.chain) == (kept.segments, kept.chain):
            self._cache.put(kept.run_id, KnownRun(tip, items, chain))
        try:
            agent_state, metadata = decode_head(kept.head)
            messages = decode_items(items)
        except CorruptedBytes as error:  # whole, but not written by this codec
            raise Damage(error.reason) from error
        return CheckpointState(
            run_id=kept.run_id,
            seq=kept.seq,
            step=kept.step,
            line=kept.line,
            messages=messages,
            agent_state=agent_state,
            metadata=metadata,
            created_at=moment(kept.created_at),
            version=kept.version,
        )


def _summary(shelf: Shelf, line: int, seq: int) -> CheckpointSummary | None:
    try:
        kept = shelf.kept(line, seq)
    except Damage:
        return None
    return None if kept is None else kept.summary()


class _History:
    """What a shelf says; see `checkpoint.succession.History`."""

    def __init__(self, shelf: Shelf, run_id: str) -> None:
        self._shelf = shelf
        self._run_id = run_id

    def parent(self, line: int, seq: int) -> tuple[Segments, bytes] | None:
        try:
            kept = self._shelf.kept(line, seq)
            if kept is None:
                return None
            verified(kept.segments, kept.chain, None, partial(self._shelf.messages, kept.segments))
        except Damage as damage:
            raise CheckpointCorrupted(self._run_id, line, seq, damage.reason) from damage
        return kept.segments, kept.chain

    def unchanged(self, segments: Segments, chain: list[bytes]) -> int:
        count = 0
        try:
            for message, ours in zip(self._shelf.messages(segments, 0), chain[1:], strict=False):
                if message.link != ours:
                    break
                count += 1
        except Damage:
            pass  # what cannot be read is not the same
        return count
