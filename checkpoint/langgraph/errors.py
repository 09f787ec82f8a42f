"""What can go wrong with a thread of LangGraph's, beside what LangGraph itself says."""

from __future__ import annotations

from checkpoint.errors import CheckpointError


class ThreadConflict(CheckpointError):
    """Another writer went on with the thread, or removed it; nothing was written.

    Args:
        thread_id: The thread.
        checkpoint_ns: The namespace in it.
        checkpoint_id: The refused checkpoint.
        reason: Where the thread stands and what to do.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, reason: str) -> None:
        super().__init__(thread_id, checkpoint_ns, checkpoint_id, reason)
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.checkpoint_id = checkpoint_id
        self.reason = reason

    def __str__(self) -> str:
        where = f"thread {self.thread_id!r}" + (f", namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else "")
        return f"checkpoint {self.checkpoint_id} of {where} was not saved: {self.reason}"


class ThreadCorrupted(CheckpointError):
    """Stored bytes of a thread fail their checksum, or are missing; they never become state.

    Args:
        where: The place of what failed.
        reason: What is wrong with it.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.where} is corrupted: {self.reason}"
