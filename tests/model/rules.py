"""What the protocol does to protect itself, and what it has to assume of the world; each can be taken out alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Statement = Literal["intent", "outcome", "commit"]
Compared = Literal["status and attempts", "status", "nothing"]

EFFECTS = ("read", "repeatable", "transactional", "keyed", "probed", "manual")
REPEATED = ("read", "repeatable")
"""Effects that are promised at least once."""

ALL: frozenset[Statement] = frozenset({"intent", "outcome", "commit"})


@dataclass(frozen=True)
class Rules:
    """One variation of the protocol; the defaults are the design. The number of the invariant stands beside each."""

    effects: tuple[str, ...]
    """The effect of the tool that each step calls."""

    # what the protocol does
    intent_first: bool = True  # I3: the body starts after its operation was committed as executing
    fenced: frozenset[Statement] = ALL  # I2: these statements look at the run row
    position_in_where: bool = True  # I2: status='running' and seq beside the fence
    commit_names_seq: bool = True  # the commit sets seq to the step's own, and does not count up
    intent_locks_run: bool = True  # the intent's look at the run row and its insert are one
    owner_compares: Compared = "status and attempts"  # I14, for the intents and outcomes of the owner
    late_outcome_compares: Compared = "status and attempts"  # I14, for what a fenced-out attempt brings
    answer_compares: Compared = "status and attempts"  # I14, for what a person or a reconciling probe says
    wakeups_counted: bool = True  # I9: intent, wait and commit notice what was settled since the attempt looked
    ambiguous_end: Literal["unknown", "success", "failure"] = "unknown"  # I6
    doomed: bool = True  # I15: after a doubt the attempt does nothing more, whatever its code does
    doubts_settled_first: bool = True  # I14: no step commits while an operation is in doubt
    orphans_asked_about: bool = True  # I13
    operations_outlive_lines: bool = True  # I4: an older checkpoint's new line meets the rows of the old one
    horizon: bool = True  # I6: nobody is asked about an operation before it
    last_look: Literal["deadline", "lease", "nothing", "with the send"] = "deadline"  # I6: just before the body
    first_deadline_kept: bool = True  # an intent found again after a lost answer keeps the deadline it was made with
    key_lifetime: bool = True  # a key is not used after its life
    visible_after: bool = True  # an empty answer of a lagging vendor is AskAgain
    refused_with_care: bool = True  # "refused" settles only if every earlier request is settled
    late_outcome_requeues: bool = True  # I2
    sweeper: bool = True  # I9
    sweep_compares: Literal["status and due_at", "status", "nothing"] = "status and due_at"
    heartbeat_names_status: bool = True  # a renewal finds running runs only
    renewed_by_fence: bool = True  # it names the leases whose claims returned, not the owner
    given_back_by_token: bool = True  # a dead child's lease is ended by (run, token), not by the run alone
    step_timeout: bool = True  # a child is killed at it, and no lease is renewed past it
    deadline_kill: bool = True  # the parent kills a child that overstays the deadline of its call
    cancel_honoured: frozenset[Statement] = frozenset({"intent", "commit"})  # in the owner's next fenced statement
    cancel_waits: bool = True  # I14: it ends a run only where nobody works and nothing is in doubt
    retry_compares: bool = True  # I5: a step's retry sets back what it ended on, and only if that failed
    retry_waits: bool = True  # what is done again and may still land waits for its horizon first
    enqueued_by_id: bool = True  # the run's id is the caller's, so that asking again makes no second run
    abort_waits: bool = True  # I14: a person ends no run that has a doubt

    # what the world does
    requests_land_in_time: bool = True  # a request that was sent has landed or never will when its horizon passes
    frozen: Literal["nobody", "a child", "a host"] = "nobody"  # past the horizon, between the last look and the send
    vendor: Literal["plain", "voids", "refuses late", "keeps references unique"] = "plain"
    keys_expire: bool = False
    view_lags: bool = False  # a probe may not see an effect that has happened
    answers_get_lost: bool = False  # a commit may succeed although who waits for it saw an error
    children_die: bool = False  # without their parent; they may hang too
    heartbeats: bool = False  # renewals are moves of their own, each in two moments
    two_sweepers: bool = False  # each sweep in its moments
    reconciler: bool = False  # a probe runs beside the workers
    cancels: bool = False
    retries: int = 0  # of a step, which may fail after its call as well
    falls_back: bool = False  # a person resumes from checkpoint 0, on a new line
    bodies_vary: bool = False  # the code of a step may leave its call out the next time
    from_enqueue: bool = False  # begin before the run was made
    coalesces: bool = False  # the owner of a run may go on with its next step under the same lease
    repeated_waits: bool = False  # `repeatable` with a timeout=
    one_resource: bool = False  # both steps write to one thing, where the newer write counts
    literal_once: bool = False  # report a body that begins after its operation succeeded (I5 to the letter)

    # bounds: crashes, losses and redeliveries are unlimited, the number of claims ends the search
    max_fence: int = 3
    max_crashes: int = 2

    @property
    def turns_zombies_away(self) -> bool:
        """Whether an attempt that lost its lease can do no more than send what it has begun, and bring its outcome."""
        where = self.fenced == ALL and self.position_in_where and self.intent_locks_run
        return where and self.late_outcome_compares == "status and attempts"


WORLD = frozenset(
    {
        "effects",
        "requests_land_in_time",
        "frozen",
        "vendor",
        "keys_expire",
        "view_lags",
        "answers_get_lost",
        "children_die",
        "heartbeats",
        "two_sweepers",
        "reconciler",
        "cancels",
        "retries",
        "falls_back",
        "bodies_vary",
        "from_enqueue",
        "coalesces",
        "repeated_waits",
        "one_resource",
        "literal_once",
        "max_fence",
        "max_crashes",
    }
)
"""The fields that are no part of the protocol."""

PROTECTIONS = tuple(field.name for field in fields(Rules) if field.name not in WORLD)
"""The fields that are."""


def same(compared: Compared, current: tuple[str, int], known: tuple[str, int]) -> bool:
    """The compare-and-set of an operation (I14), on its (status, attempts)."""
    if compared == "nothing":
        return True
    return current == known if compared == "status and attempts" else current[0] == known[0]
