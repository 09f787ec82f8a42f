"""The attacks that the protocol was built against, and the variations that carry each of them out."""

from __future__ import annotations

from .variation import Variation
from .variations import TABLE

VARIATIONS: dict[str, Variation] = {v.name: v for variations in TABLE.values() for v in variations}

ATTACKS: dict[str, tuple[str, ...]] = {
    "as designed: every effect, pairs of steps, lost answers of commits": (
        "read",
        "repeatable",
        "transactional, from its enqueue on",
        "keyed",
        "probed",
        "manual",
        "probed, then manual",
        "transactional, then probed",
        "manual, then keyed",
    ),
    "no intent": (
        "no intent before the body, probed",
        "no intent before the body, manual",
        "no intent before the body, keyed",
    ),
    "commit unfenced": (
        "the commit without its fence",
        "the commit without its fence, past the zombie's write",
        "no statement with its fence",
    ),
    "no horizon": ("no horizon, probed", "no horizon, manual"),
    "key used after its life": ("a key is used after its life",),
    "intent or outcome unfenced: a zombie writes, no effect doubles": (
        "the intent without its fence",
        "the intent without its fence, past the zombie's write",
        "the outcome without its fence",
        "the outcome without its fence, past the zombie's write",
    ),
    "FOR SHARE out of the intent": (
        "the intent looks at the run, but does not lock it",
        "the intent does not lock the run, past the zombie's write",
    ),
    "an outcome recorded for a parked run, and nobody requeues it": (
        "a late outcome does not requeue the run",
        "a late outcome does not requeue the run, which has a probe beside it",
    ),
    "status and seq out of the WHERE, the commit's answer lost and retried": (
        "no status and seq beside the fence",
        "no status and seq beside the fence, past the zombie's write",
        "no status and seq beside the fence, and a commit that counts up, retried",
        "a commit that counts up",
    ),
    "attempts out of the compare-and-set": (
        "the owner's writes compare nothing, probed",
        "the owner's writes compare nothing, keyed",
        "the owner's writes compare nothing and count no wake-ups, keyed",
        "a late outcome names no attempt, probed",
        "a late outcome names no attempt, manual",
    ),
    "a request in the air past the horizon": (
        "a request lands after its horizon, probed",
        "a request lands after its horizon, manual",
        "a request lands after its horizon, keyed",
    ),
    "frozen between intent and send, longer than the horizon": (
        "frozen between the last look and the send, probed",
        "frozen between the last look and the send, manual",
        "frozen between the last look and the send, keyed",
        "frozen between the last look and the send, a key that expires",
        "a body may start past its deadline, probed",
        "a body may start past its deadline, manual",
    ),
    "frozen, with the lease read again just before the send": (
        "frozen, though the lease was read again just before the send",
    ),
    "frozen, with check and send indivisible": ("frozen, if look and send were one",),
    "frozen and in the air, and a vendor that refuses, keeps unique, or voids": (
        "both, keyed",
        "both, and the probe voids the reference",
        "both, and the person voids the reference",
        "both, and the vendor refuses late requests, probed",
        "both, and the vendor refuses late requests, manual",
        "both, and the vendor keeps references unique, probed",
        "both, and the vendor keeps references unique, manual",
        "both, and the vendor keeps references unique, probed, past a late one",
        "both, and the vendor keeps references unique, manual, past a late one",
    ),
    "a lagging view": (
        "a lagging vendor's empty answer is believed",
        "probed, while the vendor's view lags and children die",
        "probed, with a lagging probe beside the workers",
    ),
    "an answer that is not bound to its attempt": (
        "a person's answer compares nothing",
        "a person's answer names no attempt",
        "a reconciling probe's answer compares nothing",
        "a reconciling probe's answer names no attempt",
        "manual, with four claims",
    ),
    "`refused` settles earlier tries": ('"refused" speaks for earlier requests too',),
    "a zombie's outcome accepted": ("manual", "keyed", "probed", "both, and the probe voids the reference"),
    "a fresh deadline for a found intent": ("an intent found again gets a new deadline", "probed"),
    "a child hangs": (
        "leases of a hung child are renewed for ever",
        "manual, while children die",
        "a child is frozen, and killed at its deadline",
        "a frozen child is not killed at its deadline",
        "a hung call outlasts its deadline, on a host that is not frozen",
    ),
    "heartbeats by the owner's name": (
        "leases are renewed by the owner's name",
        "two transactional steps, with heartbeats and dying children",
    ),
    "a heartbeat without status": ("a heartbeat names no status", "a heartbeat names no status, past its write"),
    "sweeper off": ("no sweeper",),
    "due_at written without its expected status": (
        "a sweeper writes due_at without the status it expects",
        "a sweeper writes due_at without the status it expects, past its copies",
        "a sweeper writes due_at without the date it expects",
        "transactional, with two sweepers",
    ),
    "once to the letter": ("once to the letter, keyed", "once to the letter, probed"),
    "a doubt that code sees": (
        "the step's code sees a doubt and goes on",
        "the step's code sees a doubt and goes on, past what it skips",
        "the step's code sees a doubt and goes on, and the commit does not look",
        "a time-out counts as a failure",
        "a time-out counts as a success",
    ),
    "a doubt or an orphan left behind": (
        "a commit does not look for doubts",
        "a commit does not look for orphans",
        "a person ends a run that has a doubt",
        "a cancel ends a run at once",
    ),
    "wake-ups lost": ("a wait does not count the wake-ups it saw", "the owner's writes count no wake-ups, keyed"),
    "an older checkpoint": (
        "a new line makes new operations",
        "two transactional steps, falling back, code that varies",
        "probed then manual, falling back",
    ),
    "a cancel that nobody looks for": (
        "an intent does not look for a cancel",
        "a commit does not look for a cancel",
        "manual, cancelled",
    ),
    "a retry that sets back too much": ("a step's retry sets back what succeeded", "manual, tried again"),
    "an enqueue whose answer was lost": ("an enqueue names no run", "transactional, from its enqueue on"),
    "a dead child's lease given back": (
        "a dead child's lease is given back by the run's id alone",
        "a dead child's lease is given back by the run's id alone, past its write",
    ),
    "an old copy of a `repeatable` request": (
        "repeatable twice on one thing, without a timeout",
        "repeatable twice on one thing, with a timeout",
        "repeatable twice on one thing, tried again",
        "a retry does not wait for an old copy",
    ),
}
"""By the attack: the names of the variations with it, and of those as designed that withstand it."""
