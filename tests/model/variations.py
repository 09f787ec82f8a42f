"""The variations that are checked, and the verdict that each must get."""

from __future__ import annotations

from dataclasses import dataclass

from .checker import Verdict, check
from .protocol import DENIED, DOUBLED, INVENTED, LEFT_IN_DOUBT, REWRITTEN, SKIPPED, ZOMBIE, Protocol
from .rules import Rules, Statement

SAFE = "safe"
STUCK = "stuck"

READ, TRANSACTIONAL, KEYED, PROBED, MANUAL = (
    (effect,) for effect in ("read", "transactional", "keyed", "probed", "manual")
)
ALL: frozenset[Statement] = frozenset({"intent", "outcome", "commit"})


@dataclass(frozen=True)
class Variation:
    """One way to build the protocol, or one world to put it into."""

    name: str
    rules: Rules
    expected: str
    forgiven: frozenset[str] = frozenset()

    def check(self) -> Verdict:
        return check(Protocol(self.rules, self.forgiven))


def _designed(name: str, effects: tuple[str, ...], **fields: object) -> Variation:
    return Variation(name, Rules(effects, answers_get_lost=True, **fields), SAFE)  # type: ignore[arg-type]


def _without(name: str, expected: str, effects: tuple[str, ...], **fields: object) -> Variation:
    return Variation(name, Rules(effects, **fields), expected)  # type: ignore[arg-type]


AS_DESIGNED = [
    _designed("read", READ),
    _designed("transactional", TRANSACTIONAL, max_fence=5),
    _designed("keyed, while keys expire", KEYED, keys_expire=True),
    _designed("probed, while the vendor's view lags and children hang", PROBED, view_lags=True, children_hang=True),
    _designed("manual, while children hang", MANUAL, max_fence=4, children_hang=True),
    _designed("probed, then manual", PROBED + MANUAL),
]
"""Every effect, while the database's answers get lost."""

WITHOUT = [
    # I3
    _without("no intent before the body, probed", DOUBLED, PROBED, intent_first=False),
    _without("no intent before the body, manual", DOUBLED, MANUAL, intent_first=False),
    _without("no intent before the body, keyed", DENIED, KEYED, intent_first=False),
    # I2, the WHERE of the fence
    _without("the intent without its fence", ZOMBIE, PROBED, fenced=ALL - {"intent"}),
    _without("the outcome without its fence", ZOMBIE, PROBED, fenced=ALL - {"outcome"}),
    _without("the commit without its fence", ZOMBIE, PROBED, fenced=ALL - {"commit"}),
    _without("no statement with its fence", ZOMBIE, PROBED, fenced=frozenset()),
    _without("the intent looks at the run, but does not lock it", ZOMBIE, PROBED, intent_locks_run=False),
    _without("no status and seq beside the fence", ZOMBIE, PROBED, position_in_where=False),
    Variation(
        "no status and seq beside the fence, a commit is retried",
        Rules(TRANSACTIONAL * 2, position_in_where=False, answers_get_lost=True),
        SKIPPED,
        forgiven=frozenset({ZOMBIE}),
    ),
    _without("a late outcome does not requeue the run", STUCK, MANUAL, late_outcome_requeues=False),
    # I14, the compare-and-set
    _without("the owner's writes compare nothing, keyed", REWRITTEN, KEYED, owner_compares="nothing"),
    _without("the owner's writes compare nothing, probed", REWRITTEN, PROBED, owner_compares="nothing"),
    _without("a late outcome names no attempt, probed", DENIED, PROBED, late_outcome_compares="status"),
    _without("a late outcome names no attempt, manual", DENIED, MANUAL, late_outcome_compares="status"),
    _without("a person's answer compares nothing", REWRITTEN, MANUAL, answer_compares="nothing"),
    _without("a person's answer names no attempt", DOUBLED, MANUAL, answer_compares="status", max_fence=4),
    # I6, I15 and section 4: doubt
    _without("no horizon, probed", DOUBLED, PROBED, horizon=False),
    _without("no horizon, manual", DOUBLED, MANUAL, horizon=False),
    _without("a body may start past its deadline, probed", DOUBLED, PROBED, deadline_checked=False),
    _without("a body may start past its deadline, manual", DOUBLED, MANUAL, deadline_checked=False),
    _without(
        "an intent found again gets a new deadline",
        DOUBLED,
        PROBED,
        first_deadline_kept=False,
        answers_get_lost=True,
    ),
    _without("a time-out counts as a failure", DENIED, PROBED, ambiguous_end="failure"),
    _without("a time-out counts as a success", INVENTED, PROBED, ambiguous_end="success"),
    _without("the step's code sees a doubt and goes on", LEFT_IN_DOUBT, PROBED, ambiguous_end="shown to code"),
    _without("a key is used after its life", DOUBLED, KEYED, keys_expire=True, key_lifetime=False),
    _without("a lagging vendor's empty answer is believed", DOUBLED, PROBED, view_lags=True, visible_after=False),
    _without('"refused" speaks for earlier requests too', DENIED, KEYED, refused_with_care=False),
    # I9
    _without("no sweeper", STUCK, TRANSACTIONAL, sweeper=False),
    _without("leases of a hung child are renewed for ever", STUCK, PROBED, step_timeout=False, children_hang=True),
    _without(
        "leases are renewed by the owner's name",
        STUCK,
        TRANSACTIONAL,
        renewed_by_fence=False,
        answers_get_lost=True,
    ),
]
"""One protection taken out, or weakened, at a time."""

LIMITS = [
    _without("frozen between the last check and the send, probed", DOUBLED, PROBED, never_frozen=False),
    _without("frozen between the last check and the send, manual", DOUBLED, MANUAL, never_frozen=False),
    _without("a request lands after its horizon, probed", DOUBLED, PROBED, requests_land_in_time=False),
    _without("a request lands after its horizon, manual", DOUBLED, MANUAL, requests_land_in_time=False),
    _without("both, keyed", SAFE, KEYED, never_frozen=False, requests_land_in_time=False),
    _without(
        "both, and the probe voids the reference",
        SAFE,
        PROBED,
        never_frozen=False,
        requests_land_in_time=False,
        vendor_voids=True,
    ),
    _without(
        "both, and the person voids the reference",
        SAFE,
        MANUAL,
        never_frozen=False,
        requests_land_in_time=False,
        vendor_voids=True,
    ),
]
"""What no client can promise for `probed` and `manual`, and how a vendor can."""

TABLE = {"as designed": AS_DESIGNED, "without": WITHOUT, "limits": LIMITS}
