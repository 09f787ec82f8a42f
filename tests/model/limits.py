"""Where the world breaks its word."""

from __future__ import annotations

from typing import Any

from .kinds import BEGAN_LATE, DENIED, DOUBLED, OVERWRITTEN
from .variation import KEYED, MANUAL, PROBED, REPEATABLE, SAFE, but

BOTH_FAIL: dict[str, Any] = {"frozen": "a host", "requests_land_in_time": False}

LIMITS = [
    but("frozen between the last look and the send, probed", DOUBLED, PROBED, frozen="a host"),
    but("frozen between the last look and the send, manual", DOUBLED, MANUAL, frozen="a host"),
    but("frozen between the last look and the send, keyed", SAFE, KEYED, frozen="a host"),
    but(
        "frozen between the last look and the send, a key that expires",
        DOUBLED,
        KEYED,
        frozen="a host",
        keys_expire=True,
    ),
    but(
        "frozen, though the lease was read again just before the send",
        DOUBLED,
        PROBED,
        frozen="a host",
        last_look="lease",
    ),
    but("frozen, if look and send were one", SAFE, PROBED, frozen="a host", last_look="with the send"),
    but("a child is frozen, and killed at its deadline", SAFE, MANUAL, frozen="a child", children_die=True),
    but("a request lands after its horizon, probed", DOUBLED, PROBED, requests_land_in_time=False),
    but("a request lands after its horizon, manual", DOUBLED, MANUAL, requests_land_in_time=False),
    but("a request lands after its horizon, keyed", SAFE, KEYED, requests_land_in_time=False),
    but("both, keyed", SAFE, KEYED, only_in_full=True, **BOTH_FAIL),
    but("both, and the probe voids the reference", SAFE, PROBED, vendor="voids", **BOTH_FAIL),
    but("both, and the person voids the reference", SAFE, MANUAL, vendor="voids", **BOTH_FAIL),
    but("both, and the vendor refuses late requests, probed", SAFE, PROBED, vendor="refuses late", **BOTH_FAIL),
    but("both, and the vendor refuses late requests, manual", SAFE, MANUAL, vendor="refuses late", **BOTH_FAIL),
    # A unique reference lets nothing happen twice; but what was said not to have happened may happen yet.
    but(
        "both, and the vendor keeps references unique, probed",
        DENIED,
        PROBED,
        vendor="keeps references unique",
        **BOTH_FAIL,
    ),
    but(
        "both, and the vendor keeps references unique, manual",
        DENIED,
        MANUAL,
        vendor="keeps references unique",
        **BOTH_FAIL,
    ),
    but(
        "both, and the vendor keeps references unique, probed, past a late one",
        SAFE,
        PROBED,
        DENIED,
        vendor="keeps references unique",
        **BOTH_FAIL,
    ),
    but(
        "both, and the vendor keeps references unique, manual, past a late one",
        SAFE,
        MANUAL,
        DENIED,
        vendor="keeps references unique",
        **BOTH_FAIL,
    ),
    but("once to the letter, keyed", BEGAN_LATE, KEYED, literal_once=True),
    but("once to the letter, probed", SAFE, PROBED, literal_once=True),
    but("repeatable twice on one thing, without a timeout", OVERWRITTEN, REPEATABLE * 2, one_resource=True),
]
"""What no client can promise for `probed` and `manual`, and how a vendor can; what `keyed` and `repeatable` promise."""
