"""The crash explorer: an agent, crashed at each boundary that one run of it crosses, and recovered.

Boundaries are not listed anywhere: a run without a crash shows them, since every commit, publish, ack and effect of the
engine passes one module. For each of them a fresh run crashes there, a new runtime recovers it, and the outside world's
ledger is held against what the run's ledger says. The recovery crosses boundaries, too: a second fault meets each of them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

from agent_tasks.folders import HeldFolder
from agent_tasks.migrate import upgrade
from agent_tasks.slots import Slots
from agent_tasks.states import RunStatus
from agent_tasks.testing.ending import Ending, is_one_of
from agent_tasks.testing.exploration import Exploration, Schedule
from agent_tasks.testing.faults import Fault, faults_at
from agent_tasks.testing.held_log import held_log
from agent_tasks.testing.options import Options, brokers_of, check_subject, classes_of
from agent_tasks.testing.play import Play
from agent_tasks.testing.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent_tasks.agent import Agent
    from agent_tasks.testing.faults import Broker, Kind
    from agent_tasks.testing.world import World

#: Where pairs are drawn: this many second faults for each first one, whose recovery has to be played to know them.
SECONDS_OF_A_FIRST = 4


def explore_crashes(
    agent: Agent,
    input: dict[str, Any],  # noqa: A002 - the word of ``enqueue``
    world: World,
    *,
    database_url: str | None = None,
    brokers: Iterable[Broker] = ("redelivers", "emptied"),
    lost_answers: bool = True,
    cancels: bool = False,
    faults: Literal[1, 2] = 1,
    sample: int | None = None,
    seed: int | None = None,
    one_ending: bool = True,
    in_transaction: bool = False,
    may_raise: type[BaseException] | tuple[type[BaseException], ...] = (),
    next_release: Agent | None = None,
) -> Exploration:
    """Crash an agent at each boundary of one of its runs, let recovery finish, and compare with the outside world.

    The engine's log of a schedule is shown if something was wrong in it, and else dropped: it tells of the faults that were
    planned. That of the run without a fault is never held back.

    Args:
        agent: its tools act on ``world``.
        input: of the run.
        world: counts what reached it, and answers as a person where one is asked.
        database_url: an empty database for the ledger, which is emptied again and again; an SQLite file if not given.
        brokers: what the broker does with the message under way at the crash: ``redelivers`` it, or was ``emptied``.
        lost_answers: also let each commit happen without its answer.
        cancels: also cancel the run at each crossing, over another connection; but not in the middle of a commit, nor on
            SQLite in the body of a ``transactional`` tool, whose lock would keep the canceller waiting.
        faults: of a schedule. With 2, a second fault meets each boundary that the recovery from the first one crosses.
        sample: how many schedules to draw at random (and the first faults of drawn pairs by themselves); all if not given.
        seed: of the draw; a random one, which the report names, if not given.
        one_ending: the run ends as it does without a fault. False for steps that may take another way when they run again.
        in_transaction: enqueue the run in a transaction of the caller's own, as ``enqueue(connection=)`` does, and crash
            around his commit, too. A caller who is started again enqueues only what he does not find committed.
        may_raise: classes of exceptions that may end the run, for an agent that is meant to fail with them. Any other one
            that ends it is an error, with a fault or without; the agent's own ``fail(…)`` is none.
        next_release: the agent as a later release declares it, on an app of its own: processes started after a crash run it.

    Returns:
        What was found; ``.failures`` is empty if every recovery was right.

    Raises:
        TypeError, ValueError: an argument is of no use; nothing was played.
        AssertionError: the run goes wrong without any fault: it ends in an exception, gets stuck, or has effects that its
            ledger does not know.

    Example:
        >>> from celery import Celery
        >>> from agent_tasks import Agent, done, tool
        >>> from agent_tasks.testing import VendorWorld, explore_crashes
        >>> from datetime import timedelta
        >>> world = VendorWorld()
        >>> @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
        ... def order(operation, item):
        ...     return world.act(operation.operation_id, key=operation.idempotency_key)
        >>> agent = Agent("explored-shop", app=Celery("shop", broker="memory://"), tools=[order])
        >>> @agent.step
        ... def buy(state):
        ...     return done(order(state["item"]))
        >>> explore_crashes(agent, {"item": "tea"}, world, brokers=("redelivers",), lost_answers=False).failures
        []
        >>> explore_crashes(agent, {"item": "tea"}, world, faults=2, sample=8, seed=1).failures
        []
    """
    check_subject(agent, input, world, next_release)
    options = Options(
        brokers=brokers_of(brokers),
        lost_answers=lost_answers,
        cancels=cancels,
        faults=faults,
        sample=sample,
        seed=seed,
        one_ending=one_ending,
        in_transaction=in_transaction,
        may_raise=classes_of(may_raise),
        database_url=database_url,
    )
    with HeldFolder() as folder:
        url = database_url or f"sqlite:///{folder / 'ledger.db'}"
        upgrade(url)
        stage = Stage(agent, input, world, url, Slots(folder / "slots"), next_release, in_transaction)
        try:
            explorer = _Explorer(stage, options)
            if faults == 1:
                explorer.explore(sample, seed)
            else:
                explorer.explore_pairs(sample, seed)
            return explorer.found
        finally:
            stage.close()


class _Explorer:
    def __init__(self, stage: Stage, options: Options) -> None:
        self.stage, self.options = stage, options
        calm = Play(stage).play()
        wrong = list(calm.problems)
        if self._is_broken(calm.ending):
            wrong.append(f"it {calm.ending} (an agent that is meant to end so is explored with may_raise=)")
        if wrong:
            raise AssertionError("the run went wrong without any crash: " + "; ".join(wrong))
        self.found = Exploration(calm.ending, calm.stretches[0])

    def explore(self, sample: int | None, seed: int | None) -> None:
        singles = self._singles()
        for fault, broker in singles if sample is None else self._draw(seed).sample(singles, min(sample, len(singles))):
            self._try((fault,), broker)

    def explore_pairs(self, sample: int | None, seed: int | None) -> None:
        firsts = self._singles()
        if sample is None:
            for first, broker in firsts:
                for second in self._seconds(first, broker):
                    self._try((first, second), broker)
            return
        draw, left = self._draw(seed), sample
        draw.shuffle(firsts)
        each = max(SECONDS_OF_A_FIRST, -(-sample // len(firsts)))
        for first, broker in firsts:
            seconds = self._seconds(first, broker)
            chosen = draw.sample(seconds, min(each, left, len(seconds)))
            for second in chosen:
                self._try((first, second), broker)
            left -= len(chosen)
            if not left:
                return

    def _seconds(self, first: Fault, broker: Broker) -> list[Fault]:
        """The recovery from a first fault shows what a second one can meet."""
        recovery = self._try((first,), broker).stretches[-1]
        return faults_at(recovery, lost_answers=self.options.lost_answers)

    def _singles(self) -> list[tuple[Fault, Broker]]:
        # A process that goes on keeps its messages; one that dies after a cancel has nothing that hurries the end.
        brokers: dict[Kind, tuple[Broker, ...]] = {
            "crash": self.options.brokers,
            "lost answer": ("redelivers",),
            "cancel": ("redelivers",),
            "cancel and crash": ("emptied",),
        }
        faults = faults_at(
            self.found.points,
            lost_answers=self.options.lost_answers,
            cancels=self.options.cancels,
            holding=self.stage.tools_that_lock_the_ledger(),
        )
        return [(fault, broker) for fault in faults for broker in brokers[fault.kind]]

    def _draw(self, seed: int | None) -> random.Random:
        self.found.seed = random.randrange(2**32) if seed is None else seed  # noqa: S311 - no secret
        return random.Random(self.found.seed)  # noqa: S311

    def _try(self, faults: tuple[Fault, ...], broker: Broker) -> Play:
        with held_log() as log:
            play = Play(self.stage, faults, broker).play()
            schedule = Schedule(faults, broker, tuple(play.met), (*play.problems, *self._other_ending(play, faults)))
            self.found.schedules.append(schedule)
            if schedule.failed:
                log.show()
        return play

    def _other_ending(self, play: Play, faults: tuple[Fault, ...]) -> list[str]:
        cancelled = any(fault.kind.startswith("cancel") for fault in faults)
        if play.ending.is_like(self.found.ending) or (cancelled and play.ending.status is RunStatus.CANCELLED):
            return []
        if self.options.one_ending or self._is_broken(play.ending):
            return [f"the run {play.ending}; without a fault it {self.found.ending}"]
        return []

    def _is_broken(self, ending: Ending) -> bool:
        """Tell whether an exception ended the run that nobody said may do so."""
        return ending.raised is not None and not is_one_of(ending.raised, self.options.may_raise)
