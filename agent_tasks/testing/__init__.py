"""The test kit: crash an agent at every boundary, and check a ledger against the invariants."""

from agent_tasks.testing.exploration import Exploration, Schedule
from agent_tasks.testing.explorer import explore_crashes
from agent_tasks.testing.faults import Fault
from agent_tasks.testing.invariants import INVARIANTS, Violation, check_invariants
from agent_tasks.testing.world import VendorWorld, World

__all__ = [
    "INVARIANTS",
    "Exploration",
    "Fault",
    "Schedule",
    "VendorWorld",
    "Violation",
    "World",
    "check_invariants",
    "explore_crashes",
]
