"""What may be said to the explorer, looked at before anything is played: a slip must not pass as a green exploration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from agent_tasks.agent import Agent
from agent_tasks.errors import did_you_mean
from agent_tasks.testing.faults import Broker

if TYPE_CHECKING:
    from typing import Literal

#: What a broker can do with the message under way at a crash.
BROKERS: tuple[str, ...] = get_args(Broker)

#: What the explorer asks of a world.
_OF_A_WORLD = ("reset", "effects", "person")


@dataclass(frozen=True)
class Options:
    """The options of ``explore_crashes``, by whose names they go.

    Raises:
        TypeError: a value is of the wrong kind.
        ValueError: a value is of no use.

    Example:
        >>> Options(faults=3)
        Traceback (most recent call last):
            ...
        ValueError: faults must be 1 or 2, got 3.
    """

    brokers: tuple[Broker, ...] = ("redelivers", "emptied")
    lost_answers: bool = True
    cancels: bool = False
    faults: Literal[1, 2] = 1
    sample: int | None = None
    seed: int | None = None
    one_ending: bool = True
    in_transaction: bool = False
    may_raise: tuple[type[BaseException], ...] = ()
    database_url: str | None = None

    def __post_init__(self) -> None:
        for name in ("lost_answers", "cancels", "one_ending", "in_transaction"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}.")
        if not (self.brokers or self.lost_answers or self.cancels):
            raise ValueError(
                "nothing would be played: brokers= is empty, and neither lost_answers= nor cancels= is True."
            )
        if type(self.faults) is not int or self.faults not in (1, 2):
            raise ValueError(f"faults must be 1 or 2, got {self.faults!r}.")
        for name in ("sample", "seed"):
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise TypeError(f"{name} must be a whole number or None, got {value!r}.")
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample must be 1 or more, or None for every schedule, got {self.sample!r}.")
        if self.database_url is not None and not isinstance(self.database_url, str):
            raise TypeError(f"database_url must be a URL as a text, or None, got {self.database_url!r}.")


def brokers_of(given: Any) -> tuple[Broker, ...]:
    """Return what brokers do as a tuple, each once.

    Raises:
        TypeError: it is a text, or nothing that can be gone through.
        ValueError: a broker can do no such thing.

    Example:
        >>> brokers_of(["emptied"])
        ('emptied',)
        >>> brokers_of("emptied")
        Traceback (most recent call last):
            ...
        TypeError: brokers must be a tuple of 'redelivers' and 'emptied', got the text 'emptied'. Write brokers=('emptied',).
    """
    known = " and ".join(map(repr, BROKERS))
    if isinstance(given, str):
        meant = f"Write brokers=({given!r},)." if given in BROKERS else did_you_mean(given, BROKERS).strip()
        raise TypeError(f"brokers must be a tuple of {known}, got the text {given!r}. {meant}".rstrip())
    if not isinstance(given, Iterable):
        raise TypeError(f"brokers must be a tuple of {known}, got {given!r}.")
    found = tuple(given)
    for broker in found:
        if broker not in BROKERS:
            raise ValueError(f"brokers must be of {known}, got {broker!r}.{did_you_mean(str(broker), BROKERS)}")
    return tuple(dict.fromkeys(found))


def classes_of(given: Any) -> tuple[type[BaseException], ...]:
    """Return a class of exceptions, or a tuple of them, as a tuple.

    Raises:
        TypeError: it is something else.

    Example:
        >>> classes_of(KeyError)
        (<class 'KeyError'>,)
    """
    classes = given if isinstance(given, tuple) else (given,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(f"may_raise must be a class of exceptions or a tuple of some, got {cls!r}.")
    return classes


def check_subject(agent: Any, state: Any, world: Any, next_release: Any) -> None:
    """Refuse an agent, an input, a world or a next release that could not be played.

    Raises:
        TypeError: something is of the wrong kind.
        ValueError: the next release is of another agent.
    """
    for name, value in (("agent", agent), ("next_release", next_release)):
        if not isinstance(value, Agent) and not (name == "next_release" and value is None):
            raise TypeError(f"{name} must be an Agent, got {value!r}.")
    if not isinstance(state, dict):
        raise TypeError(f"input must be a dict, the state that the first step gets, got {state!r}.")
    missing = [name for name in _OF_A_WORLD if not callable(getattr(world, name, None))]
    if isinstance(world, type):
        raise TypeError(f"world must be an object, got the class {world.__name__}. Write {world.__name__}().")
    if missing:
        raise TypeError(
            f"world must have the methods {', '.join(_OF_A_WORLD)}, as VendorWorld has, got {world!r} without "
            f"{', '.join(missing)}."
        )
    if next_release is not None and next_release.name != agent.name:
        raise ValueError(
            f"next_release must have the name of the agent, {agent.name!r}, whose runs it goes on with, "
            f"got {next_release.name!r}.{did_you_mean(next_release.name, [agent.name])}"
        )
