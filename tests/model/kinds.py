"""The ways in which a protocol can be wrong."""

from __future__ import annotations

DOUBLED = "an effect happened twice"
DENIED = "an operation failed, but its effect happened"
INVENTED = "an operation succeeded, but nothing happened"
SKIPPED = "a run succeeded without one of its effects"
LEFT_IN_DOUBT = "a run ended with an operation in doubt"
REWRITTEN = "a settled operation changed"
RETURNED = "a run that had ended changed"
ZOMBIE = "an attempt that does not own the run wrote as its owner"
ORPHANED = "a run succeeded with an effect that nobody asks for"
OVERWRITTEN = "an old copy came after a newer write"
TWO_RUNS = "one job became two runs"
CANCEL_IGNORED = "a call began, or the run succeeded, after its cancel"
COPIES = "one due date, and more than one doorbell"
BEGAN_LATE = "a body began after its operation had succeeded"
