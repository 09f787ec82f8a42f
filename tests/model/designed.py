"""The protocol as designed, in one world after the other."""

from __future__ import annotations

from .rules import EFFECTS
from .variation import KEYED, MANUAL, PROBED, READ, REPEATABLE, TRANSACTIONAL, designed

AS_DESIGNED = [
    designed("read", READ),
    designed("repeatable", REPEATABLE),
    designed("repeatable, with a timeout", REPEATABLE, repeated_waits=True),
    designed("transactional, from its enqueue on", TRANSACTIONAL, from_enqueue=True, max_fence=5),
    designed("transactional, with two sweepers", TRANSACTIONAL, two_sweepers=True, max_fence=4),
    designed(
        "two transactional steps, with heartbeats and dying children",
        TRANSACTIONAL * 2,
        heartbeats=True,
        children_die=True,
    ),
    designed(
        "two transactional steps, falling back, code that varies",
        TRANSACTIONAL * 2,
        falls_back=True,
        bodies_vary=True,
        max_fence=5,
    ),
    designed(
        "two transactional steps in one message, with heartbeats and dying children",
        TRANSACTIONAL * 2,
        coalesces=True,
        heartbeats=True,
        children_die=True,
    ),
    designed(
        "two transactional steps in one message, falling back, code that varies",
        TRANSACTIONAL * 2,
        coalesces=True,
        falls_back=True,
        bodies_vary=True,
        max_fence=5,
    ),
    designed("transactional then manual, in one message", TRANSACTIONAL + MANUAL, coalesces=True),
    designed("probed then manual, in one message", PROBED + MANUAL, coalesces=True, only_in_full=True),
    designed("two manual steps in one message, cancelled", MANUAL * 2, coalesces=True, cancels=True, only_in_full=True),
    designed("transactional, while children die", TRANSACTIONAL, children_die=True),
    designed("transactional, tried again and cancelled", TRANSACTIONAL, retries=1, cancels=True, max_fence=5),
    designed("keyed", KEYED),
    designed("keyed, while keys expire", KEYED, keys_expire=True, only_in_full=True),
    designed("keyed, tried again", KEYED, retries=1, answers_get_lost=False),
    designed("keyed, cancelled", KEYED, cancels=True, only_in_full=True),
    designed("probed", PROBED),
    designed(
        "probed, while the vendor's view lags and children die",
        PROBED,
        view_lags=True,
        children_die=True,
        only_in_full=True,
    ),
    designed("probed, with a probe beside the workers", PROBED, reconciler=True),
    designed(
        "probed, with a lagging probe beside the workers", PROBED, view_lags=True, reconciler=True, only_in_full=True
    ),
    designed(
        "probed, cancelled, with a probe beside the workers", PROBED, cancels=True, reconciler=True, only_in_full=True
    ),
    designed("probed, code that varies", PROBED, bodies_vary=True),
    designed("manual", MANUAL),
    designed("manual, while children die", MANUAL, children_die=True),
    designed("manual, with heartbeats", MANUAL, heartbeats=True, only_in_full=True),
    designed("manual, cancelled", MANUAL, cancels=True),
    designed("manual, tried again", MANUAL, retries=1),
    designed("manual, code that varies", MANUAL, bodies_vary=True),
    designed("manual, with four claims", MANUAL, max_fence=4, only_in_full=True),
    designed("manual, with two sweepers", MANUAL, two_sweepers=True, only_in_full=True),
    designed("probed, with a probe beside and four claims", PROBED, reconciler=True, max_fence=4, only_in_full=True),
    designed("probed then manual, falling back", PROBED + MANUAL, falls_back=True, max_fence=4, only_in_full=True),
    designed("keyed then manual, falling back", KEYED + MANUAL, falls_back=True, max_fence=4, only_in_full=True),
    designed(
        "repeatable twice on one thing, tried again", REPEATABLE * 2, repeated_waits=True, one_resource=True, retries=1
    ),
    designed("repeatable twice on one thing, with a timeout", REPEATABLE * 2, repeated_waits=True, one_resource=True),
]
"""Every effect, while the database's answers get lost."""

OUTSIDE = ("keyed", "probed", "manual")
"""Effects that leave the database and must not happen twice; two of them are checked within wider bounds."""

IN_SHORT = (("probed", "manual"), ("transactional", "probed"), ("manual", "keyed"))

PAIRS = [
    designed(
        f"{first}, then {second}",
        (first, second),
        only_in_full=(first, second) not in IN_SHORT,
        max_fence=4 if {first, second} <= {*OUTSIDE} and (first, second) not in IN_SHORT else 3,
    )
    for first in EFFECTS
    for second in EFFECTS
]
"""Each effect followed by each."""
