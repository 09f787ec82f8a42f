"""Kills of real worker processes at the boundaries that a run crosses, which are recorded and never listed by hand.

A worker's app module calls :meth:`Kills.install`. From then on each crossing in that worker's processes goes into a
journal: one for each run, and one for the workers' parents (acks, the heartbeat, the sweeper). A test takes the
crossings of a run that nobody disturbed, plans a kill at each of them for further runs, and looks what became of those.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote

from celery import current_task

from agent_tasks.boundary import Boundary, Point
from agent_tasks.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Worker processes find the folder of plans and journals through this variable; unset means that nobody is killed.
KILLS_VARIABLE = "AGENT_TESTING_KILLS"

_WHO = ("child", "worker")
_PARENTS = "parents"


class Crossing(NamedTuple):
    """A boundary that was crossed: in the step that makes checkpoint ``seq``; in a worker's parent ``seq`` is 0."""

    seq: int
    point: Point

    def __str__(self) -> str:
        return f"{self.point} in step {self.seq}" if self.seq else f"{self.point} in the parent"


@dataclass(frozen=True)
class Kill:
    """A SIGKILL at a boundary.

    Args:
        who: ``child`` (the process that runs the step) or ``worker`` (its parent and all of the parent's children).
        at: where.
        run_id: whose crossing it is; None means a worker's parent, where the next crossing counts.
        nth: how many times the run must have crossed there, this time included.
    """

    who: str
    at: Crossing
    run_id: str | None = None
    nth: int = 1

    def __post_init__(self) -> None:
        if self.who not in _WHO:
            raise ValueError(f"who must be {' or '.join(map(repr, _WHO))}, got {self.who!r}.")
        if self.run_id is None and self.who != "worker":
            raise ValueError("a kill in a worker's parent takes the whole worker: who must be 'worker', got 'child'.")


@dataclass(frozen=True)
class CarriedOut:
    """A kill that was done.

    Attributes:
        kill: which one.
        pid: of the process that did it.
        at: seconds since 1970.
        crossed: how many crossings the journal held then, this one included.
    """

    kill: Kill
    pid: int
    at: float
    crossed: int


class Kills:
    """A folder that the processes of a test share.

    Args:
        folder: made if it is not there.

    Example:
        >>> import tempfile
        >>> kills = Kills(tempfile.mkdtemp())
        >>> kills.plan([Kill("child", Crossing(1, Point("effect", "charge", "after")), "run-1")])
        >>> kills.carried_out(), kills.crossings("run-1")
        ([], [])
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for name in ("plans", "journals", "done"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @classmethod
    def install(cls, environ: Mapping[str, str] = os.environ) -> None:
        """Observe the boundaries of this process and its children, if the environment names a folder."""
        folder = environ.get(KILLS_VARIABLE)
        if folder:
            Boundary.default_observer = cls(folder).observe

    # -- the test's side -----------------------------------------------------------------------------------------------

    def plan(self, kills: Iterable[Kill]) -> None:
        """Let kills happen from now on, each once over all processes; earlier plans stand."""
        plans: dict[str | None, list[Kill]] = {}
        for kill in kills:
            plans.setdefault(kill.run_id, []).append(kill)
        for run_id, new in plans.items():
            path = self._path("plans", run_id)
            partial = path.with_name(f"{path.name}.partial")
            partial.write_text(json.dumps([asdict(kill) for kill in self._planned(run_id) + new]), encoding="utf-8")
            partial.rename(path)

    def crossings(self, run_id: str | None = None) -> list[Crossing]:
        """Return what a run has crossed in workers' children, in order; None means what the workers' parents have."""
        try:
            lines = self._path("journals", run_id).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [Crossing(seq, Point(*point)) for seq, point in map(json.loads, lines)]

    def carried_out(self) -> list[CarriedOut]:
        """Return the kills that were done, oldest first."""
        done = []
        for marker in (self.folder / "done").iterdir():
            text = marker.read_text(encoding="utf-8")
            if text:  # else it is being written
                fields = json.loads(text)
                done.append(CarriedOut(kill=_kill_of(fields.pop("kill")), **fields))
        return sorted(done, key=lambda one: one.at)

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def observe(self, point: Point) -> None:
        """Note a crossing, and die here if that is the plan."""
        run_id, seq = _doorbell()
        crossing = Crossing(seq, point)
        self._note(run_id, crossing)
        for number, kill in enumerate(self._planned(run_id)):
            if kill.at != crossing:
                continue
            crossed = self.crossings(run_id)
            if (run_id is None or crossed.count(crossing) >= kill.nth) and self._claim(number, kill, len(crossed)):
                _die(kill.who)

    def _note(self, run_id: str | None, crossing: Crossing) -> None:
        # One write to a file opened for appending: lines of several processes do not mix.
        journal = os.open(self._path("journals", run_id), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        try:
            os.write(journal, json.dumps(crossing).encode() + b"\n")
        finally:
            os.close(journal)

    def _planned(self, run_id: str | None) -> list[Kill]:
        try:
            text = self._path("plans", run_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [_kill_of(kill) for kill in json.loads(text)]

    def _claim(self, number: int, kill: Kill, crossed: int) -> bool:
        path = self._path("done", kill.run_id)
        try:
            # The file system lets exactly one process make the marker, and it outlives the kill.
            marker = os.open(path.with_name(f"{path.name}.{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(marker, "w", encoding="utf-8") as file:
            json.dump({"kill": asdict(kill), "pid": os.getpid(), "at": time.time(), "crossed": crossed}, file)
        return True

    def _path(self, folder: str, run_id: str | None) -> Path:
        return self.folder / folder / (_PARENTS if run_id is None else f"run-{quote(run_id, safe='')}")


def _kill_of(fields: dict[str, Any]) -> Kill:
    seq, point = fields.pop("at")
    return Kill(at=Crossing(seq, Point(*point)), **fields)


def _doorbell() -> tuple[str | None, int]:
    """Return run and seq of the doorbell that this process answers; a worker's parent answers none."""
    task = current_task._get_current_object() if current_task else None
    found = task.doorbell() if isinstance(task, LedgerTask) else None
    return found or (None, 0)


def _die(who: str) -> NoReturn:
    if who == "child":
        os.kill(os.getpid(), signal.SIGKILL)
    elif os.getpgrp() in (os.getpid(), os.getppid()):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    else:  # the group is the terminal's or the test's: take nobody else along
        raise RuntimeError(
            f"process group {os.getpgrp()} is not the worker's own: start it with start_new_session=True."
        )
    while True:  # the signal may take a moment to arrive, and nothing may be done in between
        signal.pause()
