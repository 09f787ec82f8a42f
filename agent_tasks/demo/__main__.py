"""The demo: kill workers at the worst moments, and see what the outside world got.

Start it with ``make demo`` or ``python -m agent_tasks.demo [carts.json] [--json] [--seed N] [--keep DIR]``. It needs no
server.
"""

from __future__ import annotations

import argparse
import random
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent_tasks.demo.agent import LEASE_SECONDS
from agent_tasks.demo.carts import BUILT_IN_CARTS, CartError, load_carts
from agent_tasks.demo.compared import buy_plainly
from agent_tasks.demo.durable import Unfinished, buy_durably
from agent_tasks.demo.kills import Kill
from agent_tasks.demo.progress import Progress
from agent_tasks.demo.report import Report
from agent_tasks.demo.supervisor import ProcessEnded
from agent_tasks.folders import HELD_PREFIX, HeldFolder, remove_left_behind

# What a shell expects: 1 for a promise that was not kept, 2 for input that cannot be used, 130 for Ctrl-C.
_NOT_KEPT, _BAD_INPUT, _INTERRUPTED = 1, 2, 130
_TOOLS = ("create_order", "charge", "send_mail")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        arguments: The command line without the program; that of the process by default.

    Returns:
        The exit code: 0 if every run succeeded and nothing was doubled or lost.
    """
    options = _parser().parse_args(arguments)
    try:
        carts = load_carts(options.carts)
    except CartError as error:
        print(f"error: {error}", file=sys.stderr)
        return _BAD_INPUT
    chance = random.Random(options.seed)
    chance.shuffle(carts)
    kills = plan_kills(len(carts), chance)
    progress = Progress()
    try:
        with _workplace(options.keep) as folder:
            progress.title(
                f"Agent tasks: {len(carts)} carts, {len(kills)} kills, leases of {LEASE_SECONDS:g} s (default: 15 s)"
            )
            durable = buy_durably(carts, kills, _made(folder / "durable"), progress)
            progress.title("Plain Celery with acks_late and reject_on_worker_lost: the same carts, the same kills")
            plain = buy_plainly(carts, kills, _made(folder / "plain"), progress)
    except (ProcessEnded, Unfinished) as error:
        print(f"error: {error}", file=sys.stderr)
        return _NOT_KEPT
    except KeyboardInterrupt:
        print("interrupted; all processes are stopped", file=sys.stderr)
        return _INTERRUPTED
    return _conclude(Report(carts, kills, durable, plain), options.keep, as_json=options.json)


def plan_kills(carts: int, chance: random.Random) -> list[Kill]:
    """Plan the kills: for each tool a child, and a whole worker where there are enough carts.

    Whichever cart comes first is hit, so that a cart which plain Celery has lost takes no planned kill with it.

    Args:
        carts: How many there are.
        chance: Decides who dies first.
    """
    kills = []
    for tool in _TOOLS:
        whom = ["child", "worker"]
        chance.shuffle(whom)
        # A tool that is called for one cart only is called once: who dies in it cannot die in it again.
        kills += [Kill(tool, who) for who in (whom if carts > 1 else ["child"])]
    return kills


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agent_tasks.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("carts", nargs="?", type=Path, default=BUILT_IN_CARTS, help="JSON file of carts to buy")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else")
    parser.add_argument("--seed", type=int, default=None, help="makes the order of carts and kills the same each time")
    parser.add_argument("--keep", type=_empty_folder, metavar="DIR", help="keep ledgers and logs in this new folder")
    return parser


def _empty_folder(path: str) -> Path:
    folder = Path(path).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{folder} cannot be used: {error.strerror}.") from error
    if not is_empty:
        raise argparse.ArgumentTypeError(f"must be a new or an empty folder, got {folder}, which holds something.")
    return folder


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """The folder to keep; or a temporary one, kept after an error for whoever wants to know why.

    SIGTERM ends the demo as Ctrl-C does.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    remove_left_behind()  # a demo that was killed could not
    try:
        with HeldFolder() as own:
            folder = keep or own
            try:
                yield folder
            except (ProcessEnded, Unfinished):
                if keep is None:  # by a name that nobody tidies up
                    folder = own.rename(own.with_name(own.name.replace(HELD_PREFIX, "agent-demo-")))
                print(f"logs and ledgers are kept in {folder}", file=sys.stderr)
                raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _conclude(report: Report, keep: Path | None, *, as_json: bool) -> int:
    # With --json stdout is for the object alone, and people still get their table.
    print(f"\n{report.table()}\n\n{_afterwards(keep)}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(report.json())
    for fault in report.faults:
        print(f"error: {fault}", file=sys.stderr)
    return _NOT_KEPT if report.faults else 0


def _afterwards(keep: Path | None) -> str:
    if keep is None:
        return "With --keep DIR the ledger stays, and `agent-tasks runs list` can show its runs."
    url = shlex.quote(f"sqlite:///{keep / 'durable' / 'agent.db'}")
    return f"Everything is kept in {keep}. See the runs with\n  agent-tasks runs list --url {url}"


if __name__ == "__main__":
    sys.exit(main())
