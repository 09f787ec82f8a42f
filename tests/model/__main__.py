"""Prints the verdict on every variation: `python -m tests.model [--traces]`."""

from __future__ import annotations

import argparse
import sys

from .variations import TABLE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="Check every variation of the protocol.")
    parser.add_argument("--traces", action="store_true", help="show the shortest schedule that leads to each failure")
    traces = parser.parse_args().traces
    wrong = 0
    for title, variations in TABLE.items():
        print(f"\n{title}")
        for variation in variations:
            verdict = variation.check()
            surprise = verdict.kind != variation.expected
            wrong += surprise
            moves = f"{len(verdict.trace):>3} moves" if verdict.trace else ""
            print(f"  {variation.name:<56} {verdict.kind:<55} {moves:<9} {verdict.states:>8,} states", flush=True)
            if surprise:
                print(f"    expected: {variation.expected}")
            if traces or surprise:
                for number, label in enumerate(verdict.trace, 1):
                    print(f"    {number:>3}. {label}")
    if wrong:
        print(f"\n{wrong} verdicts differ from what is expected", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
