"""One try of a step: what it knows, what it asked for, and whether it may still act."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from agent_tasks.clock import MICROSECONDS
from agent_tasks.coalescing import commit_held
from agent_tasks.current import Body, bodies, outside_run
from agent_tasks.errors import (
    ArgumentsNotStorable,
    EffectInCheck,
    InForkedProcess,
    InsideTransaction,
    LeaseLost,
    NotAwaited,
    StepSuspended,
    UnguardedTool,
    UnorderedCalls,
    is_a,
)
from agent_tasks.identity import identify, renewed_operation_id
from agent_tasks.ledger import Request, seconds_of
from agent_tasks.lines import standing_line
from agent_tasks.planned_calls import identity_of, key_of
from agent_tasks.refusals import refused_argument
from agent_tasks.resources import Resources
from agent_tasks.runs import is_cancelled
from agent_tasks.slots import KILL_GRACE_SECONDS, KILLED_WITHIN_SECONDS
from agent_tasks.states import Effect, OperationStatus
from agent_tasks.suspensions import Cancelled, Lost, Suspension
from agent_tasks.threads import Home
from agent_tasks.together import Together
from agent_tasks.waits import Check
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from agent_tasks.agent import Agent
    from agent_tasks.operations import Operation
    from agent_tasks.planned_calls import Call
    from agent_tasks.runtime import Runtime
    from agent_tasks.slots import Slot
    from agent_tasks.tools import Tool
    from checkpoint import CheckpointState, Snapshot


class Attempt:
    """One try of a step, under one lease.

    Attributes:
        run_id, seq: the run, and the number of the checkpoint that the step makes.
        fence, token: of the lease; every write carries both (I2).
        state: the checkpoint that the step starts from.
        known: operations of this step or later that the ledger holds, as last seen.
        asked: ids of the operations that this line asked for in this step, in the order of the latest calls; each with the
            number of the batch that it was called in, or None.
        together: what it knows of its batches.
        resources: what it has open.
        check: the step is asked whether its run may go on, and this follows; None for any other step.
        retries: spent on this step so far.
        cancelled: somebody has asked for the run's end, as far as the attempt's last write saw.
        damage: why there is no such checkpoint, or None.
        doomed: why nothing more may be executed, or None.
        held: checkpoints of the steps before it that are not committed yet, the oldest first; see ``agent_tasks.coalescing``.
        holding: kept by whoever commits them.
        has_recorded: the step has made a call that the ledger keeps.
        message_began: when the message was answered that the step shares with others, on the local clock; None if it shares
            none.
        pid: the process that works for it; a child of it has the same lease in its memory, and no right to use it.
    """

    def __init__(
        self,
        runtime: Runtime,
        agent: Agent,
        run: Mapping[Any, Any],
        state: CheckpointState,
        known: list[Operation],
        slot: Slot | None,
    ) -> None:
        self.runtime, self.agent, self.state, self.slot = runtime, agent, state, slot
        self.run_id, self.line, self.line_start_seq = str(run["run_id"]), int(run["line"]), int(run["line_start_seq"])
        self.standing_line = standing_line(run)
        self.seq = int(run["seq"]) + 1
        self.step = str(run["next_step"])
        self.number, self.retries = int(run["attempts"]), int(run["retries"])
        self.fence, self.token, self.wakeups = int(run["fence"]), str(run["lease_token"]), int(run["wakeups"])
        self.priority = int(run["priority"])
        #: Claimed when its run was cancelled already: it runs no body, and its waits and questions are about doubts.
        self.settles_only = self.cancelled = is_cancelled(run)
        self.run = run
        self.known = {operation.operation_id: operation for operation in known}
        self.asked: dict[str, int | None] = {}
        self.together = Together()
        self.check = Check.of(state.metadata)
        self.resources = Resources(self)
        self.damage: CheckpointError | None = None
        self.doomed: Suspension | None = None
        self.held: list[Snapshot] = []
        self.holding = threading.Lock()
        self.has_recorded = False
        self.message_began: float | None = None
        self.failure: dict[str, Any] | None = None  # what the step raised, as the run will say it
        self.raised: BaseException | None = (
            None  # as it, or a body that is in doubt, raised it; for a caller in this process
        )
        self._claimed_at = runtime.clock.local()
        self.over, self.pid = False, os.getpid()
        self.deadline = runtime.clock.local() + runtime.settings.step_timeout_seconds
        self._home, self._closed = Home(), False
        self._unawaited: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self._ordinals: Counter[tuple[str, str]] = Counter()
        self._begun: set[str] = set()  # operations whose bodies ran in this attempt
        self._deadlines = (
            [] if slot is None else [slot.deadline]
        )  # the step's, and those of the bodies that are running
        self._calls, self._calls_under_way = threading.Condition(), 0
        self._keyed_under_way: set[str] = set()

    @property
    def messages(self) -> list[Any]:
        """The messages of the run's state."""
        return self.state.messages

    def now(self) -> int:
        """Return the database's time, as the claim read it and the local clock has carried it on, in microseconds."""
        return int(self.run["updated_at"]) + int((self.runtime.clock.local() - self._claimed_at) * MICROSECONDS)

    def note_raised(self, error: BaseException) -> None:
        """Keep what became a suspension, for a caller in this process, who must hear of Ctrl-C before anything else."""
        if is_a(error, KeyboardInterrupt) or (self.raised is None and not is_a(error, StepSuspended)):
            self.raised = error

    def stop_if_cancelled(self) -> None:
        """Begin no call of a run that somebody wants ended; a body under way ends with all that it calls.

        Raises:
            StepSuspended: so it is.
        """
        if self.cancelled and not bodies.get():
            self.suspend(Cancelled())

    def suspend(self, suspension: Suspension) -> NoReturn:
        """Doom the attempt: nobody acts on a doubt (I15).

        Raises:
            LeaseLost: the lease is another's.
            StepSuspended: anything else.
        """
        self.doomed = self.doomed or suspension
        self.raise_if_doomed()
        raise AssertionError("unreachable")

    def raise_if_doomed(self) -> None:
        """Raise again what ended the attempt."""
        if self.doomed is not None:
            raise self.suspended()

    def suspended(self) -> StepSuspended:
        """Return what is raised again and again in a doomed attempt."""
        assert self.doomed is not None  # noqa: S101 - the callers looked
        kind = LeaseLost if isinstance(self.doomed, Lost) else StepSuspended
        return kind(f"run {self.run_id!r} step {self.step!r}: {self.doomed.reason}")

    def check_process(self, what: str) -> None:
        """Refuse another process than the attempt's own, before it waits for a lock or sends a word of SQL (I2).

        An ``Exception``, since a child acts on no doubt: nothing was sent for it, nothing will be, and pools of processes
        hand on nothing else to the parent that waits for it.

        Args:
            what: was tried, for the message.

        Raises:
            InForkedProcess: the step has forked this process.
        """
        if os.getpid() != self.pid:
            raise InForkedProcess(
                f"run {self.run_id!r}: {what} in process {os.getpid()}, which step {self.step!r} has forked; only its own "
                f"process, {self.pid}, works for the run. Nothing was sent or written. Return from the child what the call "
                "needs, and call the tool in the step itself."
            )

    @contextmanager
    def call_under_way(self, *tools: Tool[..., Any], numbered: bool = False) -> Iterator[None]:
        """Let a call, or a batch of calls, be made now, or refuse it; the step's end waits for it.

        Args:
            tools: that are called.
            numbered: the call has its identity already, so that it may be made in any thread.

        Raises:
            InForkedProcess: this is a child of the step's process.
            StepSuspended: the attempt is doomed or over.
            UnguardedTool: the agent does not list the tool, so that nobody could ask about it after a crash.
            UnorderedCalls: the call comes from another thread or task, where calls have no order and so no identity.
            InsideTransaction: the call is made in the body of a transactional tool.
        """
        self.check_process(f"{tools[0].subject} was called")
        try:
            with self._calls:
                for tool in tools:
                    self._check(tool, numbered=numbered)
                self._calls_under_way += 1
            try:
                yield
            finally:
                with self._calls:
                    self._calls_under_way -= 1
                    self._calls.notify_all()
        except StepSuspended:
            for body in bodies.get():
                body.spoiled = True
            raise

    @contextmanager
    def one_at_a_time(self, request: Request) -> Iterator[None]:
        """Let calls with the same key follow each other, so that the second one finds what the first has recorded."""
        if request.call_key is None:
            yield
            return
        identifier = request.operation_id
        with self._calls:
            free = self._calls.wait_for(lambda: identifier not in self._keyed_under_way, timeout=self._seconds_left())
            self.raise_if_doomed()
            if not free:
                self.suspend(Lost(f"a call of {request.tool.name} with the same key outlasted the step's time limit"))
            self._keyed_under_way.add(identifier)
        try:
            yield
        finally:
            with self._calls:
                self._keyed_under_way.remove(identifier)
                self._calls.notify_all()

    def close(self) -> None:
        """End the step's own work: it begins no call any more, and those that threads make are waited for (I14).

        One that outlasts the step's time limit keeps the step from being committed. It is waited for a little longer all the
        same: a child of prefork keeps its slot until its parent has seen that it overstays, and has killed it.
        """
        with self._calls:
            self.over = True
            self._home.end()
            drained = self._calls.wait_for(lambda: self._calls_under_way == 0, timeout=self._seconds_left())
            if not drained and self.doomed is None:
                self.doomed = Lost("a call in another thread outlasted the step's time limit")
            if not drained and self.slot is not None:
                self._calls.wait_for(lambda: self._calls_under_way == 0, timeout=KILLED_WITHIN_SECONDS)
            self._closed = True

    def be_at_home(self) -> None:
        """Begin an async step: from now on its calls have their order in this task."""
        self._home = Home()

    def expect_await(self, token: object, subject: str, call: Coroutine[Any, Any, Any]) -> None:
        """Note a call that does nothing until it is awaited."""
        self._unawaited[token] = (subject, call)

    def awaits(self, token: object) -> None:
        """Note that it is awaited."""
        self._unawaited.pop(token, None)

    def check_awaited(self) -> None:
        """Refuse a step that ended although a call of it did nothing yet.

        Raises:
            NotAwaited: so it is; the call is closed and will do nothing.
        """
        left = list(self._unawaited.values())
        for _, call in left:
            with suppress(RuntimeError, ValueError):  # a task of the step's begins it this very moment
                call.close()
        if left:
            subject, _ = left[0]
            raise NotAwaited(
                f"run {self.run_id!r}: step {self.step!r} called {subject} and ended before that was awaited. Nothing was sent for "
                "it; write `await` before the call, and await the tasks that the step makes."
            )

    def _seconds_left(self) -> float:
        return max(0.0, self.deadline - self.runtime.clock.local())

    def _check(self, tool: Tool[..., Any], *, numbered: bool) -> None:
        self.raise_if_doomed()
        body = next(iter(bodies.get()[-1:]), None)
        belongs_to_a_call_under_way = body is not None and not body.ended
        if self._closed or (self.over and not belongs_to_a_call_under_way):
            raise LeaseLost(f"run {self.run_id!r}: {tool.subject} was called after step {self.step!r} had ended.")
        if tool.key is None and tool.guard.record and not numbered:
            self._check_order(tool, body)
        transactional = next((b for b in bodies.get() if b.request.tool.guard.effect is Effect.TRANSACTIONAL), None)
        if transactional is not None and tool.guard.record:
            raise InsideTransaction(
                f"run {self.run_id!r}: {tool.subject} was called in the body of transactional "
                f"{transactional.request.tool.subject}, whose transaction may still be rolled back while that call could not. "
                "Call it in the step, before or after."
            )
        if self.check is not None and tool.guard.effect is not Effect.READ:
            raise EffectInCheck(
                f"run {self.run_id!r}: {tool.subject} is {str(tool.guard.effect)!r} and was called in {self.step!r}, which is asked again "
                "and again whether the run may go on. Nothing was sent; a check calls 'read' tools only. Do it in the step that "
                "returns wait_until(…), or in the one that follows."
            )
        self.check_listed(tool)

    def _check_order(self, tool: Tool[..., Any], body: Body | None) -> None:
        unordered = (self._home if body is None else body.home).why_unordered()
        if unordered is None:
            return
        own = f"step {self.step!r}" if body is None else f"the body of {body.request.tool.subject}"
        raise UnorderedCalls(
            f"run {self.run_id!r}: {tool.subject} was called from {unordered} than the one in which {own} makes its "
            "calls, and has no key=, so that the order of its calls would be chance. Nothing was sent. Give the tool a "
            f"key=, or make its calls one after another in {own} itself."
        )

    def check_listed(self, tool: Tool[..., Any]) -> None:
        """Refuse a tool that the agent does not list.

        Raises:
            UnguardedTool: so it is.
        """
        listed = self.agent.tools.get(tool.name)
        if listed is tool:
            return
        said = (
            f"is not in tools= of {self.agent.subject}. Nothing was sent; add it there."
            if listed is None
            else f"is another tool than the one of this name in tools= of {self.agent.subject}. Nothing was sent; "
            "list the one that is called, or give one of the two name=."
        )
        raise UnguardedTool(f"run {self.run_id!r}: {tool.subject} was called in step {self.step!r} and {said}")

    def request(self, tool: Tool[..., Any], arguments: dict[str, Any]) -> Request:
        """Give a call its identity and note that this line asks for it.

        Raises:
            ArgumentsNotStorable: an argument cannot be stored; nothing was sent.
            UnorderedCalls: a call with this key is made in the body of the call that has it.
        """
        identity = identity_of(tool, arguments)
        try:
            with outside_run():
                encoded, digest = codec.dumps(arguments), codec.digest(identity)
        except CheckpointError as error:
            said = refused_argument(error, arguments, tool.subject, ", so nothing was sent")
            raise ArgumentsNotStorable(f"run {self.run_id!r}: {said}") from error
        key = None if tool.key is None else key_of(tool, arguments, self.run_id)
        return self._identified(tool, arguments, encoded, digest, key)

    def request_of(self, call: Call, batch: int) -> Request:
        """Give a call of a batch its identity, by its place in the list, and note that this line asks for it.

        Raises:
            UnorderedCalls: as :meth:`request`.
        """
        return self._identified(call.tool, call.arguments, call.encoded, call.digest, call.key, batch)

    def _identified(
        self,
        tool: Tool[..., Any],
        arguments: dict[str, Any],
        encoded: bytes,
        digest: str,
        key: str | None,
        batch: int | None = None,
    ) -> Request:
        if tool.guard.record:
            self._begin_to_record()
        outer = next((body.request.operation_id for body in reversed(bodies.get())), None)
        ordinal = -1
        if key is None:
            ordinal = self._ordinals[outer or "", tool.name]
            self._ordinals[outer or "", tool.name] += 1
        identifier = identify(self.run_id, self.seq, tool.name, ordinal, key=key, outer=outer)
        if key is not None:
            self._check_not_in_itself(tool, key, identifier)
        self._ask(identifier, batch)
        timeout = seconds_of(tool.guard.timeout, self.runtime.settings.step_timeout_seconds)
        return Request(identifier, tool, ordinal, key, arguments, encoded, digest, outer, timeout)

    def _begin_to_record(self) -> None:
        """What the ledger keeps of a step stands behind a checkpoint that it has (I4, I12)."""
        self.has_recorded = True
        if self.held:
            commit_held(self)
            self.stop_if_cancelled()

    def _check_not_in_itself(self, tool: Tool[..., Any], key: str, identifier: str) -> None:
        if any(body.request.operation_id == identifier for body in bodies.get()):
            raise UnorderedCalls(
                f"run {self.run_id!r}: {tool.subject} was called with key {key!r} in the body of the call that has "
                "this key, which would wait for itself. Nothing was sent; give the inner call another key."
            )

    def renew(self, request: Request) -> Request:
        """Return the call as the new operation that a person allowed for its arguments."""
        renewed = replace(request, operation_id=renewed_operation_id(request.operation_id, request.digest))
        self._ask(renewed.operation_id, self.asked.get(request.operation_id))
        return renewed

    def _ask(self, identifier: str, batch: int | None) -> None:
        self.asked.pop(identifier, None)
        self.asked[identifier] = batch

    @contextmanager
    def deadline_of(self, operation: Operation) -> Iterator[None]:
        """While the body of an operation runs, let the parent kill this process when the body overstays."""
        if self.slot is None or operation.deadline is None:
            yield
            return
        # The body stops itself at its deadline; the parent steps in before the horizon, when it did not.
        guard = self.agent.tools[operation.tool].guard
        grace = min(KILL_GRACE_SECONDS, guard.settle.total_seconds())
        deadline = operation.deadline + grace
        with self._calls:
            self._deadlines.append(deadline)
            self.slot.set_deadline(min(self._deadlines))
        try:
            yield
        finally:
            with self._calls:  # keyed calls of other threads end in any order
                self._deadlines.remove(deadline)
                self.slot.set_deadline(min(self._deadlines))

    @contextmanager
    def body_of(self, request: Request) -> Iterator[None]:
        """While the body of a call is running, calls made in it are nested; a body that runs anew numbers them anew.

        Raises:
            StepSuspended: a call made in it ended the attempt; should the body have caught that, it acted on a doubt,
                and neither what it returned nor what it raised is recorded (I15).
        """
        self._begun.add(request.operation_id)
        for outer, tool in list(self._ordinals):
            if outer == request.operation_id:
                del self._ordinals[outer, tool]
        body = Body(request)
        token = bodies.set((*bodies.get(), body))
        try:
            yield
        finally:
            bodies.reset(token)
            body.ended = True
            body.home.end()
            if body.spoiled:
                self.raise_if_doomed()

    def unasked(self) -> list[Operation]:
        """Return the known operations with an effect that this line did not ask for, in their order (I13)."""
        return [
            operation
            for operation in list(self.known.values())
            if operation.effect is not Effect.READ
            and operation.status not in (OperationStatus.FAILED, OperationStatus.DROPPED)
            and operation.row["orphan_reply"] is None
            and not self._was_asked(operation)
        ]

    def asked_for(self) -> set[str]:
        """Return the ids of all operations that this line asked for in this step, with those inside recorded bodies."""
        inside = {o.operation_id for o in list(self.known.values()) if self._was_asked(o)}
        return inside.union(self.asked)

    def may_come_in_any_order(self, operation: Operation) -> bool:
        """Tell whether an operation has a key of its own, or was called inside one that has."""
        outer = self.known.get(operation.row["parent_operation"])
        return operation.row["call_key"] is not None or (outer is not None and self.may_come_in_any_order(outer))

    def _was_asked(self, operation: Operation) -> bool:
        # A call made inside a recorded body is asked for with the outer one; a body that ran asks for its calls itself.
        if operation.operation_id in self.asked:
            return True
        parent = operation.row["parent_operation"]
        if parent is None or parent in self._begun:
            return False
        outer = self.known.get(parent)
        return parent in self.asked or (outer is not None and self._was_asked(outer))
