"""Sweepers and heartbeats: what the parents of the workers do."""

from __future__ import annotations

from collections.abc import Iterator

from .attempt import lease_ended
from .kinds import COPIES, ZOMBIE
from .rules import Rules
from .state import DOUBT, QUIET, Move, State, Sweeper


class Upkeep:
    """Their moves."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def moves(self, state: State) -> Iterator[Move]:
        if self.rules.sweeper:
            yield from self._sweepers(state) if state.sweepers else self._sweep(state)
        if self.rules.heartbeats:
            yield from self._heartbeats(state)

    # ---- the sweeper alone turns what is due into `queued`; that ends the fence of an expired lease --------

    def _sweep(self, state: State) -> Iterator[Move]:
        """One sweep, as one move."""
        saw = self._finds(state)
        if saw == "an expired lease":
            yield Move("the sweeper ends the expired lease and rings", lease_ended(state, self.rules.max_crashes))
        elif saw == "a due wait":
            yield Move("the sweeper ends the wait and rings", _woken(state)._replace(rung=True))
        elif saw == "a run to ring for" and not state.rung:
            yield Move("the sweeper rings", state._replace(rung=True))

    def _finds(self, state: State) -> str:
        run = state.run
        if run.status == "running" and run.due:
            return "an expired lease"
        if run.status == "waiting" and self._is_due(state):
            return "a due wait"
        if run.status == "queued" and (run.due or not state.sweepers):
            return "a run to ring for"
        return ""

    def _is_due(self, state: State) -> bool:
        if not state.run.waits_for or not self.rules.horizon:
            return True
        operation = state.operation(state.run.waits_for)
        counts = operation.status in DOUBT or (operation.status == "pending" and self.rules.repeated_waits)
        return operation.horizon_passed or not counts

    def _sweepers(self, state: State) -> Iterator[Move]:
        """Look, then compare and set, then ring; it may crash between them."""
        for index, sweeper in enumerate(state.sweepers):
            if sweeper in state.sweepers[:index]:
                continue
            if sweeper.at == "idle":
                if saw := self._finds(state):
                    yield Move(f"a sweeper sees {saw}", _with_sweeper(state, index, Sweeper(saw, fresh=True)))
                continue
            idle = _with_sweeper(state, index, Sweeper())
            yield Move(f"a sweeper crashes ({sweeper.at})", idle)
            if sweeper.at == "a ring to do":
                yield Move("a sweeper rings", idle._replace(rung=True))
            else:
                yield self._acts(state, index, sweeper)

    def _acts(self, state: State, index: int, sweeper: Sweeper) -> Move:
        """What it saw must still be so: each write of `due_at` names the status and the date that it expects."""
        to_ring = _with_sweeper(state, index, Sweeper("a ring to do"))
        compares, status = self.rules.sweep_compares, {"an expired lease": "running", "a due wait": "waiting"}
        stands = state.run.status == status.get(sweeper.at, "queued") or compares == "nothing"
        still_due = self._finds(state) == sweeper.at or compares != "status and due_at"
        if sweeper.at == "a run to ring for":
            still_due = sweeper.fresh or compares != "status and due_at"
        if not (stands and still_due):
            return Move("a sweeper finds that somebody was faster", _with_sweeper(state, index, Sweeper()))
        if sweeper.at == "an expired lease":
            return Move(
                "a sweeper ends the lease", lease_ended(to_ring, self.rules.max_crashes)._replace(rung=state.rung)
            )
        if sweeper.at == "a due wait":
            return Move("a sweeper ends the wait", _woken(to_ring))
        copies = COPIES if not state.run.due else None
        return Move("a sweeper moves the date of the next ring", to_ring.with_run(due=False), wrong=copies)

    # ---- heartbeats ---------------------------------------------------------------------------------

    def _heartbeats(self, state: State) -> Iterator[Move]:
        """The parent reads which lease its child holds, and renews it: two moments."""
        run = state.run
        if not state.beat:
            if any(w.fence == run.fence and w.at not in QUIET for w in state.workers) and run.status == "running":
                yield Move(f"a heartbeat finds fence {run.fence} at work", state._replace(beat=run.fence))
            return
        beaten, name = state._replace(beat=0), f"the heartbeat of fence {state.beat}"
        if run.fence != state.beat or (run.status != "running" and self.rules.heartbeat_names_status):
            yield Move(f"{name} renews nothing", beaten)
            return
        wrong = ZOMBIE if run.status != "running" else None
        yield Move(f"{name} renews", beaten.with_run(due=False, waits_for=0), wrong=wrong)


def _woken(state: State) -> State:
    return state.with_run(status="queued", due=False, waits_for=0)


def _with_sweeper(state: State, index: int, sweeper: Sweeper) -> State:
    sweepers = (*state.sweepers[:index], sweeper, *state.sweepers[index + 1 :])
    return state._replace(sweepers=sweepers)
