"""Planned kills: a process ends itself at a named moment, by SIGKILL, each kill of the plan exactly once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["PLAN_VARIABLE", "CarriedOut", "Kill", "KillPlan", "KillPlanError", "strike"]

#: The environment variable that names the plan's file; unset means that nobody is killed.
PLAN_VARIABLE = "AGENT_DEMO_KILLS"
_WHO = ("child", "worker")


class KillPlanError(ValueError):
    """A plan of kills cannot be used."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One planned kill, right after the vendor's answer to a call arrived and before anybody recorded it.

    Args:
        tool: The name of the tool that is being called.
        who: ``child`` (the process that runs the task) or ``worker`` (its parent and all of the parent's children).
        cart: The id of the cart; None means whichever comes first.

    Raises:
        KillPlanError: A field is of the wrong kind.
    """

    tool: str
    who: str
    cart: str | None = None

    def __post_init__(self) -> None:
        # The fields may come from a file, whatever their annotations say.
        tool, who, cart = (getattr(self, field.name) for field in fields(self))
        if not (isinstance(tool, str) and tool):
            raise KillPlanError(f"tool must be the name of a tool, got {tool!r}.")
        if who not in _WHO:
            raise KillPlanError(f"who must be {' or '.join(map(repr, _WHO))}, got {who!r}.")
        if not (cart is None or (isinstance(cart, str) and cart)):
            raise KillPlanError(f"cart must be the id of a cart or null, got {cart!r}.")

    def is_for(self, cart: str, tool: str) -> bool:
        """Whether this kill belongs to a call."""
        return self.tool == tool and self.cart in (None, cart)


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A kill that was done: to which cart's call, to which process, and when (microseconds since 1970, UTC)."""

    kill: Kill
    cart: str
    pid: int
    at: int


class KillPlan:
    """A JSON file with a list of kills; beside it a folder with a marker file for each kill that was done.

    Args:
        path: The file; processes that share it share the kills.

    Raises:
        KillPlanError: The file cannot be read or holds something else than kills.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     plan = KillPlan.write(f"{folder}/kills.json", [Kill("charge", "child", cart="cart-1001")])
        ...     plan.strike("cart-1002", "charge")  # another cart: nothing happens
        ...     plan.carried_out()
        []
    """

    def __init__(self, path: str | Path) -> None:
        self._markers = Path(f"{path}.done")
        try:
            entries = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise KillPlanError(f"{path} must be a JSON file with a list of kills: {error}.") from error
        if not isinstance(entries, list):
            raise KillPlanError(f"{path} must hold a list of kills, got {type(entries).__name__}.")
        self.kills = tuple(_kill(f"{path}: kill {index}", entry) for index, entry in enumerate(entries))

    @classmethod
    def write(cls, path: str | Path, kills: Iterable[Kill]) -> KillPlan:
        """Make a plan of which nothing is done yet.

        Raises:
            FileExistsError: There is a plan at this path, or was.
        """
        Path(f"{path}.done").mkdir()
        Path(path).write_text(json.dumps([asdict(kill) for kill in kills]), encoding="utf-8")
        return cls(path)

    def strike(self, cart: str, tool: str) -> None:
        """Do the first planned kill of this call that nobody has done, if there is one; then this never returns.

        Args:
            cart: The id of the cart that the call is for.
            tool: The name of the tool.

        Raises:
            KillPlanError: A worker is to be killed that does not lead a session of its own.
        """
        for index, kill in enumerate(self.kills):
            if kill.is_for(cart, tool):
                target = _target(kill)
                if self._claim(index, cart):
                    _kill_now(*target)

    def carried_out(self) -> list[CarriedOut]:
        """The kills that were done, oldest first."""
        done = []
        for marker in self._markers.iterdir():
            text = marker.read_text(encoding="utf-8")
            if text:  # else it is being written
                done.append(CarriedOut(kill=self.kills[int(marker.name)], **json.loads(text)))
        return sorted(done, key=lambda one: one.at)

    def _claim(self, index: int, cart: str) -> bool:
        try:
            # The file system lets exactly one process make the file; it outlives the kill, as it is not the process's.
            marker = os.open(self._markers / str(index), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(marker, "w", encoding="utf-8") as file:
            json.dump({"cart": cart, "pid": os.getpid(), "at": time.time_ns() // 1_000}, file)
        return True


def strike(cart: str, tool: str, environ: Mapping[str, str] = os.environ) -> None:
    """What a tool calls when its vendor has answered: die here if the plan says so.

    Args:
        cart: The id of the cart that the call is for.
        tool: The name of the tool.
        environ: Names the plan as ``AGENT_DEMO_KILLS``; without it nothing happens.

    Example:
        >>> strike("cart-1001", "charge", environ={})
    """
    path = environ.get(PLAN_VARIABLE)
    if path:
        KillPlan(path).strike(cart, tool)


def _kill(place: str, entry: Any) -> Kill:
    try:
        return Kill(**entry)
    except (TypeError, KillPlanError) as error:
        raise KillPlanError(f"{place}: {error} A kill is {{tool, who, cart}}.") from error


def _target(kill: Kill) -> tuple[bool, int]:
    """Whether a whole group is meant, and the id of the group or process."""
    if kill.who == "child":
        return False, os.getpid()
    group = os.getpgrp()
    # One signal to the group ends the parent and all children at once. The group must be the worker's alone: without a
    # session of its own it may be that of the terminal, the tests or the shop.
    if group not in (os.getpid(), os.getppid()) or group != os.getsid(0):
        raise KillPlanError(
            f"process {os.getpid()} cannot kill its worker: process group {group} is not the worker's own. "
            "Start the worker with start_new_session=True."
        )
    return True, group


def _kill_now(whole_group: bool, number: int) -> None:
    if whole_group:
        os.killpg(number, signal.SIGKILL)
    else:
        os.kill(number, signal.SIGKILL)
    # With several threads the signal may arrive a moment after kill has returned; nothing may be recorded in between.
    while True:
        signal.pause()
