"""Takes one protection after another out of a copy of the code: `python -m tests.mutants [-k WORDS]`.

Each time the tests that are named for it must fail, and they must pass while everything stands.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from agent_tasks.folders import HeldFolder

from .mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]

#: pytest's exit codes: everything passed, and some tests failed. Any other says that they did not run.
PASSED, FAILED = 0, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Take protections out, one at a time.")
    parser.add_argument("-k", default="", metavar="WORDS", help="only the mutants whose name has these words")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="at the same time (2)")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.k in mutant.name]
    with HeldFolder() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.j):
            copies.put(copy_to(folder / str(number)))
        with borrowed(copies) as copy:
            code, said = run_tests(copy, sorted({test for mutant in chosen for test in mutant.tests}))
        if code != PASSED:
            print(said)
            print("these tests must pass while nothing is taken out", file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.j) as pool:
            survivors = [
                m.name for m, told in zip(chosen, pool.map(lambda m: judge(m, copies), chosen), strict=True) if not told
            ]
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants make their tests fail")
    for name in survivors:
        print(f"nobody noticed: {name}", file=sys.stderr)
    return 1 if survivors else 0


def copy_to(folder: Path) -> Path:
    """Copy what the tests need."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def borrowed(copies: SimpleQueue[Path]):
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def judge(mutant: Mutant, copies: SimpleQueue[Path]) -> bool:
    """Tell whether each of a mutant's tests fails on it."""
    with borrowed(copies) as copy:
        path = copy / mutant.file
        standing = path.read_text()
        path.write_text(mutated(standing, mutant))
        try:
            noticed = [run_tests(copy, [test])[0] == FAILED for test in mutant.tests]
        finally:
            path.write_text(standing)
    print(f"  {mutant.invariant:<4} {mutant.name:<70} {'noticed' if all(noticed) else 'NOT NOTICED'}", flush=True)
    return all(noticed)


def mutated(standing: str, mutant: Mutant) -> str:
    """Return the code without the protection.

    Raises:
        ValueError: the line is not there, or not once.
    """
    if standing.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has {standing.count(mutant.old)} times:\n{mutant.old}")
    return standing.replace(mutant.old, mutant.new)


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a folder; pytest's exit code and what it printed."""
    environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
