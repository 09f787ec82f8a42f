"""What the protocol does to protect itself, and what it has to assume of the world; each can be taken out alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Statement = Literal["intent", "outcome", "commit"]
Compared = Literal["status and attempts", "status", "nothing"]

EFFECTS = ("read", "transactional", "keyed", "probed", "manual")


@dataclass(frozen=True)
class Rules:
    """One variation of the protocol; the defaults are the design. The number of the invariant stands beside each."""

    effects: tuple[str, ...]
    """The effect of the tool that each step calls."""

    # what the protocol does
    intent_first: bool = True  # I3: the body starts after its operation was committed as executing
    fenced: frozenset[Statement] = frozenset({"intent", "outcome", "commit"})  # I2: fence in these WHEREs
    position_in_where: bool = True  # I2: status='running' and seq in the same WHEREs
    intent_locks_run: bool = True  # the intent's look at the run row and its insert are one
    owner_compares: Compared = "status and attempts"  # I14, for the intents and outcomes of the owner
    late_outcome_compares: Compared = "status and attempts"  # I14, for what a fenced-out attempt brings
    answer_compares: Compared = "status and attempts"  # I14, for a person's answer
    ambiguous_end: Literal["unknown", "success", "failure", "shown to code"] = "unknown"  # I6, I15
    horizon: bool = True  # I6: nobody is asked about an operation before it
    deadline_checked: bool = True  # I6: the wrapper starts no body past its deadline
    first_deadline_kept: bool = True  # an intent found again after a lost answer keeps the deadline it was made with
    key_lifetime: bool = True  # a key is not used after its life
    visible_after: bool = True  # an empty answer of a lagging vendor is AskAgain
    refused_with_care: bool = True  # "refused" settles only if every earlier request is settled
    late_outcome_requeues: bool = True  # I2
    sweeper: bool = True  # I9
    step_timeout: bool = True  # no lease is renewed past it
    renewed_by_fence: bool = True  # heartbeats name the leases whose claims returned, not the owner

    # what the world does
    requests_land_in_time: bool = True  # a request that was sent has landed or never will when its horizon passes
    never_frozen: bool = True  # nobody is frozen past the horizon between the last check and the send
    vendor_voids: bool = False  # who asks voids the reference, so that NotHappened stays true
    keys_expire: bool = False
    view_lags: bool = False  # a probe may not see an effect that has happened
    answers_get_lost: bool = False  # a commit may succeed although the worker saw an error
    children_hang: bool = False

    # bounds: crashes, losses and redeliveries are unlimited, the number of claims ends the search
    max_fence: int = 3
    max_crashes: int = 2


def same(compared: Compared, current: tuple[str, int], known: tuple[str, int]) -> bool:
    """The compare-and-set of an operation (I14), on its (status, attempts)."""
    if compared == "nothing":
        return True
    return current == known if compared == "status and attempts" else current[0] == known[0]
