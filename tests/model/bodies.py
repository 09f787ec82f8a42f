"""What the code of a step can do to the ledger: every schedule of small step bodies, by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .coded import Ledger, Parked, Refused, Rule, Schedule

#: How one schedule can end badly.
DOUBLED = "doubled"
DOUBT = "in doubt"
ORPHAN = "orphan"


def tries_again(ledger: Ledger) -> None:
    """The most natural retry in Python."""
    try:
        ledger.call("charge", 100)
    except Exception:  # noqa: BLE001 - this is what is being shown
        ledger.call("charge", 100)


def tries_another_card(ledger: Ledger) -> None:
    """A declined card, and a second one."""
    try:
        ledger.call("charge", "card A")
    except Refused:
        ledger.call("charge", "card B")


def tosses_a_coin(ledger: Ledger) -> None:
    """A branch on what nobody records."""
    if ledger.coin("a new customer?"):
        ledger.call("invoice", 100)
    else:
        ledger.call("charge", 100)


def leaves_it_out(ledger: Ledger) -> None:
    """The second attempt does not come back to the call at all."""
    if ledger.coin("still wanted?"):
        ledger.call("charge", 100)


def goes_in_any_order(ledger: Ledger) -> None:
    """The order of a set differs between processes."""
    for payee in ("ab", "ba")[ledger.coin("another hash seed?")]:
        ledger.call("charge", payee)


def goes_in_any_order_with_keys(ledger: Ledger) -> None:
    """The same, and keys tell the calls apart."""
    for payee in ("ab", "ba")[ledger.coin("another hash seed?")]:
        ledger.call("charge", payee, key=payee)


def is_renamed(ledger: Ledger) -> None:
    """A release between two attempts renames the tool."""
    ledger.call("charge card" if ledger.coin("the new release?") else "charge", 100)


def charges(ledger: Ledger) -> None:
    """One call; a refusal ends the step, which is retried."""
    ledger.call("charge", 100)


def charges_with_a_key(ledger: Ledger) -> None:
    """The same call under a key of the run's own."""
    ledger.call("charge", 100, key="order 42")


def in_one_step(body: Callable[[Ledger], None]) -> Callable[[Ledger], None]:
    """A run of one step."""

    def run(ledger: Ledger) -> None:
        ledger.step(1, body)
        ledger.end()

    return run


def on_another_path(body: Callable[[Ledger], None]) -> Callable[[Ledger], None]:
    """A run that falls back to its input when it is done, and may think for one step more or less the second time."""

    def run(ledger: Ledger) -> None:
        for line in (0, 1):
            if line:
                ledger.new_line()
            seq = 1
            if ledger.coin("thinks first?"):
                ledger.step(seq, lambda _: None)
                seq += 1
            ledger.step(seq, body)
        ledger.end()

    return run


@dataclass(frozen=True)
class Body:
    """A small run.

    Args:
        name: of it.
        run: what it does.
        effects: that it may have at the most.
        crashes: that its schedules have at the most.
        attempts: of a step.
    """

    name: str
    run: Callable[[Ledger], None]
    effects: int = 1
    crashes: int = 2
    attempts: int = 3


BODIES = (
    Body("retry in except", in_one_step(tries_again)),
    Body("second card", in_one_step(tries_another_card)),
    Body("branch on a coin", in_one_step(tosses_a_coin)),
    Body("call left out", in_one_step(leaves_it_out)),
    Body("any order", in_one_step(goes_in_any_order), effects=2, crashes=1),
    Body("any order, with keys", in_one_step(goes_in_any_order_with_keys), effects=2, crashes=1, attempts=2),
    Body("renamed tool", in_one_step(is_renamed)),
    Body("refused, and retried", in_one_step(charges)),
    Body("fallback along another path", on_another_path(charges), crashes=1, attempts=2),
    Body("the same with a key", on_another_path(charges_with_a_key), crashes=1, attempts=2),
)


@dataclass
class Found:
    """What all schedules of a body come to.

    Args:
        schedules: how many there are.
        kinds: the ways in which some end badly.
        healed: how many succeed although a try of theirs was refused.
        parked: how many end with a person.
        worst: what one of those that end badly does, by kind; the shortest.
    """

    schedules: int = 0
    kinds: set[str] = field(default_factory=set)
    healed: int = 0
    parked: int = 0
    worst: dict[str, list[str]] = field(default_factory=dict)


def explore(body: Body, rules: frozenset[Rule]) -> Found:
    """Run every schedule of a body under these rules."""
    found, given = Found(), ()
    following: tuple[int, ...] | None = given
    while following is not None:
        schedule = Schedule(following)
        ledger = Ledger(schedule, rules, body.crashes, body.attempts)
        done = True
        try:
            body.run(ledger)
        except Parked:
            done = False
        found.schedules += 1
        found.parked += not done
        found.healed += done and "the step raised Refused" in ledger.said
        for kind in _wrong(body, ledger, done=done):
            found.kinds.add(kind)
            if kind not in found.worst or len(ledger.said) < len(found.worst[kind]):
                found.worst[kind] = [*ledger.said, f"in the world: {', '.join(ledger.world)}"]
        following = schedule.next()
    return found


def _wrong(body: Body, ledger: Ledger, *, done: bool) -> Iterator[str]:
    if len(ledger.world) > body.effects or (body.effects > 1 and len(set(ledger.world)) < len(ledger.world)):
        yield DOUBLED
    if not done:
        return
    if any(operation.status in ("executing", "unknown") for operation in ledger.operations.values()):
        yield DOUBT
    if any(o.landed and key not in ledger.asked_by_line for key, o in ledger.operations.items()):
        yield ORPHAN
