"""All variations, in the order in which they are shown."""

from __future__ import annotations

from .designed import AS_DESIGNED, PAIRS
from .limits import LIMITS
from .without import SURVIVED, WITHOUT

TABLE = {
    "as designed": AS_DESIGNED,
    "as designed, two steps": PAIRS,
    "without": WITHOUT,
    "survived": SURVIVED,
    "limits": LIMITS,
}
