"""The test kit: crash an agent at every boundary, and check a ledger against the invariants."""

from agent_tasks.testing.explorer import Exploration, Schedule, explore_crashes
from agent_tasks.testing.invariants import INVARIANTS, Violation, check_invariants
from agent_tasks.testing.world import VendorWorld, World

__all__ = [
    "INVARIANTS",
    "Exploration",
    "Schedule",
    "VendorWorld",
    "Violation",
    "World",
    "check_invariants",
    "explore_crashes",
]
