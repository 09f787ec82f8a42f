"""Prints the verdict on every variation, and on every small body: `python -m tests.model [--short] [--traces]`."""

from __future__ import annotations

import argparse
import sys
import time

from .bodies import BODIES, explore
from .coded import RULES
from .variations import TABLE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="Check every variation of the protocol.")
    parser.add_argument("--traces", action="store_true", help="show the shortest schedule that leads to each failure")
    parser.add_argument("--short", action="store_true", help="only what the tests check, within their bounds")
    options = parser.parse_args()
    started = time.process_time()
    surprises = _variations("short" if options.short else "full", traces=options.traces) + _bodies()
    print(f"\n{time.process_time() - started:.0f} s of one core")
    if surprises:
        print(f"{surprises} verdicts differ from what is expected", file=sys.stderr)
    return 1 if surprises else 0


def _variations(form: str, *, traces: bool) -> int:
    surprises, states = 0, 0
    for title, variations in TABLE.items():
        print(f"\n{title}")
        for variation in variations:
            if variation.only_in_full and form == "short":
                continue
            verdict = variation.check(form)
            surprise = verdict.kind != variation.expected
            surprises += surprise
            states += verdict.states
            moves = f"{len(verdict.trace):>3} moves" if verdict.trace else ""
            print(f"  {variation.name:<78} {verdict.kind:<55} {moves:<9} {verdict.states:>8,} states", flush=True)
            if surprise:
                print(f"    expected: {variation.expected}")
            if traces or surprise:
                for number, label in enumerate(verdict.trace, 1):
                    print(f"    {number:>3}. {label}")
    print(f"\n{states:,} states")
    return surprises


def _bodies() -> int:
    """The small bodies under all rules; what they do without some is for the tests."""
    print("\nbodies, under all rules")
    surprises = 0
    for body in BODIES:
        found = explore(body, frozenset(RULES))
        surprises += bool(found.kinds)
        verdict = ", ".join(sorted(found.kinds)) or "safe"
        print(f"  {body.name:<78} {verdict:<55} {found.parked:>5} of {found.schedules:>5,} schedules ask a person")
    return surprises


if __name__ == "__main__":
    sys.exit(main())
