"""What every checkpoint store can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from checkpoint.falling_back import HealthCheck
    from checkpoint.snapshot import Snapshot
    from checkpoint.state import CheckpointState, CheckpointSummary, Position


class CheckpointStore(Protocol):
    """Keeps the checkpoints of many runs.

    Each save is atomic and lasting when it returns. History is never rewritten: a run goes back by starting a new
    line, and its older lines stay readable.
    """

    def save(self, state: CheckpointState | Snapshot) -> None:
        """Append a checkpoint to its run.

        Args:
            state: The state, or a snapshot of it. Its seq must be one more than the head's on the head's line (or 0 for a new run), or it starts a
                new, greater line after any ancestor of the head. Saving the head again is a no-op.

        Raises:
            CheckpointConflict: The head is elsewhere, or holds other content; nothing was written.
            CheckpointCorrupted: The ancestor that a new line would start from is damaged; nothing was written.
            UnstorableValue: A part of the state would not come back equal and of its own type.
        """

    def snapshot(self, state: CheckpointState) -> Snapshot:
        """Return a state as it is now, to be saved later.

        Raises:
            UnstorableValue: A part of the state would not come back equal and of its own type.
        """

    def load_latest(
        self, run_id: str, *, strict: bool = False, health_check: HealthCheck | None = None
    ) -> CheckpointState | None:
        """Return the newest checkpoint that can be used, or None if the run has none.

        If it is not the head, a warning names both.

        Args:
            run_id: The run.
            strict: Raise what speaks against the head in place of looking for an older one.
            health_check: Gets a state that verifies, and returns True or None if it may be used, else False or why not.

        Raises:
            CheckpointCorrupted: It has checkpoints and not one verifies, or the head does not and `strict` is set.
            CheckpointUnhealthy: The same of the health check.
            UnreadableValue: The newest that verifies needs code or a package that is missing here.
        """

    def load(self, run_id: str, seq: int, line: int | None = None) -> CheckpointState:
        """Return one checkpoint.

        Args:
            run_id: The run.
            seq: Its number.
            line: Its line; None follows the head's ancestry.

        Raises:
            CheckpointNotFound: There is none.
            CheckpointCorrupted: Its bytes fail their checksum.
        """

    def load_before(self, run_id: str, seq: int) -> CheckpointState | None:
        """Return the newest checkpoint of the head's ancestry before `seq` that verifies, or None if none does."""

    def head(self, run_id: str) -> Position | None:
        """Return where the run stands, or None if it has no checkpoint."""

    def list_checkpoints(self, run_id: str) -> Iterator[CheckpointSummary]:
        """Yield every checkpoint of every line, newest first, without decoding states."""

    def delete(self, run_id: str) -> None:
        """Remove everything of a run; no error if there is nothing."""

    def close(self) -> None:
        """Release what the store itself opened."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
