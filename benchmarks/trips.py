"""Round trips and bytes between the process that runs steps and PostgreSQL: of a step, of an effect, of a read."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.crew import Crew, crew
from benchmarks.places import Place
from benchmarks.wire import Meter, Traffic, metered

#: The most round trips of each; the ring through the broker, the heartbeat and the sweeper are not in them.
BUDGETS = {"step": 3, "effect": 2, "read": 1}

#: No traffic for so long, in seconds, means that the process has nothing left to say.
_QUIET_SECONDS = 0.3


def measure(place: Place, steps: int) -> dict[str, dict[str, Any]]:
    """Count a step without a tool, and what one call of a tool adds to it.

    Two runs, one of twice as many steps: what they differ in is that of so many steps in the middle of a run. So neither
    the first step nor the last is in it, nor the enqueue.
    """
    # One process and several runs first: a driver prepares a statement when it has seen it often enough.
    with (
        metered(place.environ["AGENT_DATABASE_URL"]) as (meter, url),
        crew(
            place, "steps", "effect", "read", concurrency=1, warm_up=2, environ={"AGENT_DATABASE_URL": url}
        ) as at_work,
    ):
        empty, effect, read = (_of_a_step(at_work, meter, key, steps) for key in ("steps", "effect", "read"))
    found = {"step": empty, "effect": _more(effect, empty), "read": _more(read, empty)}
    return {what: {**counted, "budget": BUDGETS[what]} for what, counted in found.items()}


def _of_a_step(at_work: Crew, meter: Meter, key: str, steps: int) -> dict[str, float]:
    short, long = _run(at_work, meter, key, steps), _run(at_work, meter, key, 2 * steps)
    more = long - short
    return {
        "trips": round(more.trips / steps, 2),
        "bytes_sent": round(more.sent / steps, 1),
        "bytes_received": round(more.received / steps, 1),
    }


def _more(whole: dict[str, float], empty: dict[str, float]) -> dict[str, float]:
    return {name: round(whole[name] - empty[name], 2) for name in whole}


def _run(at_work: Crew, meter: Meter, key: str, steps: int) -> Traffic:
    before = _when_quiet(meter)
    at_work.wait_for(at_work.start(key, 1, steps))
    return _when_quiet(meter) - before


def _when_quiet(meter: Meter) -> Traffic:
    seen, since = meter.traffic(), time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS:
        time.sleep(0.02)
        if (now := meter.traffic()) != seen:
            seen, since = now, time.monotonic()
    return seen
