"""The heartbeat: renews the leases of living attempts, gives back those of dead children, kills the ones that overstay.

Where a worker has one process only, nothing is killed: an attempt that overstays is not renewed any more, and said to do so.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agent_tasks.forks import let_forks_by
from agent_tasks.states import RunStatus
from agent_tasks.sweeper import end_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from agent_tasks.runtime import Runtime
    from agent_tasks.slots import Lease

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long one look waits for rows that others hold, in seconds.
HELD_SECONDS = 1.0


class Heartbeat:
    """Reads the slots of the worker's processes; runs in a thread of their parent, on connections of its own.

    Args:
        runtime: of the parent.
        replace_dead: lets the pool replace a process that is seen to be dead, if the pool can be told.
    """

    def __init__(self, runtime: Runtime, replace_dead: Callable[[], object] | None = None) -> None:
        self.runtime, self._replace_dead = runtime, replace_dead
        self._renewed_at = float("-inf")
        self._held: set[tuple[str, int]] = set()  # run_id and fence of those to renew whose rows others held
        self._overdue: set[str] = set()  # tokens of those that were said to overstay

    def beat(self) -> None:
        """Look once.

        Raises:
            LedgerUnavailable: the database did not answer; the leases stay their owners' until somebody takes them.
        """
        living, dead = self._look()
        if dead and self._replace_dead is not None:
            self._replace_dead()
        for lease in living:  # first, since it needs no database, and a horizon counts on it
            self._kill_if_overdue(lease)
        self._renew(living)
        for lease in dead:
            let_forks_by()
            self._give_back(lease)

    def renew(self) -> None:
        """Renew the leases of living attempts, and no more: it rings for nobody, so that any thread may do it.

        Raises:
            LedgerUnavailable: as for :meth:`beat`.
        """
        self._renew(self._look()[0])

    def _look(self) -> tuple[list[Lease], list[Lease]]:
        """Return the leases of processes that live, and of those that do not."""
        leases = self.runtime.slots.leases()
        dead = [lease for lease in leases if lease.pid != os.getpid() and not is_alive(lease.pid)]
        return [lease for lease in leases if lease not in dead], dead

    def kill_overdue(self) -> None:
        """Kill the processes that are past their deadline; needs no database."""
        for lease in self.runtime.slots.leases():
            if is_alive(lease.pid):
                self._kill_if_overdue(lease)

    def _give_back(self, lease: Lease) -> None:
        ended = end_lease(self.runtime, lease.run_id, lease.token, wait=False)
        if not ended and self._stands(lease):
            return  # somebody holds the run's row; the next look finds the slot again
        self.runtime.slots.free(lease)
        if ended:
            logger.warning(
                "run %s: process %s died; its lease is given back",
                lease.run_id,
                lease.pid,
                extra={"action": "child_died", "run_id": lease.run_id},
            )

    def _stands(self, lease: Lease) -> bool:
        runtime = self.runtime
        row = runtime.boundary.read(runtime.engine, lambda connection: runtime.runs.find(connection, lease.run_id))
        return row is not None and row["status"] == RunStatus.RUNNING and row["lease_token"] == lease.token

    def _kill_if_overdue(self, lease: Lease) -> None:
        if self.runtime.clock.local() < lease.deadline:
            return
        if lease.pid == os.getpid():
            self._say_that_it_overstays(lease)
            return
        logger.error(
            "run %s: process %s is past its deadline and is killed",
            lease.run_id,
            lease.pid,
            extra={"action": "child_killed", "run_id": lease.run_id},
        )
        with suppress(ProcessLookupError):
            os.kill(lease.pid, signal.SIGKILL)  # works on a stopped process too

    def _say_that_it_overstays(self, lease: Lease) -> None:
        if lease.token in self._overdue:
            return
        self._overdue = {lease.token, *(self._overdue & {other.token for other in self.runtime.slots.leases()})}
        logger.error(
            "run %s: its step, or a tool's body, is past its deadline, and nothing in this pool can be killed; after "
            "agent_step_timeout_seconds another worker takes the run, and this place is taken until the body returns or the "
            "worker is restarted",
            lease.run_id,
            extra={"action": "overstays", "run_id": lease.run_id},
        )

    def _renew(self, leases: list[Lease]) -> None:
        now = self.runtime.clock.local()
        pairs = sorted(
            (lease.run_id, lease.fence) for lease in leases if lease.fence is not None and now < lease.renew_until
        )
        if now - self._renewed_at >= self.runtime.settings.lease_seconds / 3:
            if pairs:
                self._held = set(self._commit(lambda connection: self.runtime.runs.renew(connection, pairs)))
            self._renewed_at = now
        self._held &= set(pairs)
        self._renew_held(now)

    def _renew_held(self, began: float) -> None:
        """Renew what others held, at each look until it is done: a run whose calls hold it all the time has a lease, too."""
        for pair in random.sample(sorted(self._held), len(self._held)):  # so that none of them is always the last
            if self.runtime.clock.local() - began > HELD_SECONDS:
                return
            if self._commit(partial(self.runtime.runs.renew_held, lease=pair)):
                self._held.discard(pair)

    def _commit(self, work: Callable[[Connection], T]) -> T:
        return self.runtime.boundary.commit("renew", self.runtime.engine, work)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that died and was not collected yet does not."""
    if hasattr(os, "waitid"):  # macOS has it since Python 3.13; without it a dead child ends when the pool collects it
        with suppress(ChildProcessError):
            # The parent can see a dead child before the pool collects it, and leaves it to the pool.
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
