"""Waits that a step returns: written with its checkpoint, and what a check's answer makes of its run (I7-I9, I12).

A wait for a time is the run's due time and a note in the checkpoint, so that a run which is woken too early, for whatever
else came in, waits again. A wait for a check is the step that asks, as the run's next one, and a note of what follows it.
A no moves the run's due time and nothing else; a yes is a checkpoint, which holds the answer. So a crash before it repeats
the question, and one behind it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_tasks.clock import MICROSECONDS, moment
from agent_tasks.current import outside_run
from agent_tasks.errors import BadOutcome
from agent_tasks.limits import LONGEST_SECONDS
from agent_tasks.next_calls import named_step
from agent_tasks.outcomes import Calls, Done, Fail, Next
from agent_tasks.refusals import refusal
from agent_tasks.steps import Step
from agent_tasks.suspensions import Wait
from agent_tasks.waits import GIVEN, NEXT_WAIT, Check, NotYet, Sleep, WaitUntil
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from agent_tasks.attempt import Attempt

#: What a check may return instead of an answer.
_OUTCOMES = (Done, Fail, Calls, Sleep, WaitUntil, Step)


def next_with_wait(attempt: Attempt, returned: Sleep | WaitUntil) -> Next:
    """Return where a run goes whose step returned a wait.

    Raises:
        BadOutcome: a step that is named takes another number of arguments than it will get, or a moment is too far away.
        UnknownStep: one is none of the agent.
    """
    if isinstance(returned, Sleep):
        word = "sleep" if returned.until is None else "sleep_until"
        name = _step(attempt, returned.then, word, "then")
        now, until = attempt.now(), returned.until
        if until is None:
            until = now + int((returned.seconds or 0.0) * MICROSECONDS)
        elif until > now + int(LONGEST_SECONDS * MICROSECONDS):  # said by the database's clock, and so only here (I10)
            raise BadOutcome(
                f"run {attempt.run_id!r}: step {attempt.step!r} returned sleep_until(…) for {moment(until)}, and a run sleeps for a "
                "hundred years at most. Give it a nearer moment, or end the run with done(…)."
            )
        return Next(name, until=until)
    check = _step(attempt, returned.check, "wait_until", "check")
    then = named_step(attempt, returned.then, "wait_until", "then")
    follows = None if returned.on_timeout is None else _step(attempt, returned.on_timeout, "wait_until", "on_timeout")
    timeout = None if returned.timeout is None else int(returned.timeout * MICROSECONDS)
    deadline = None if timeout is None else attempt.now() + timeout
    return Next(check, check=Check(then, int(returned.every * MICROSECONDS), timeout, deadline, follows))


def noted_wait(outcome: object) -> dict[str, Any]:
    """Return what a checkpoint's metadata say of the wait that follows it, and of the answer that came before it."""
    if not isinstance(outcome, Next):
        return {}
    given = {} if outcome.given is None else {GIVEN: outcome.given}
    if outcome.until is not None:
        return {NEXT_WAIT: {"until": outcome.until}}
    if outcome.check is not None:
        return {NEXT_WAIT: vars(outcome.check)}
    return given


def reason_to_sleep(outcome: Next) -> str:
    """Return what a run waits for that sleeps, in words."""
    return f"to go on with step {outcome.step}"


def sleep_on(attempt: Attempt) -> None:
    """Doom an attempt whose run was woken before its time, so that it waits again.

    A person who resumes it wants it to wait no longer, and begins a new line by that.
    """
    noted = attempt.state.metadata.get(NEXT_WAIT)
    until = noted.get("until") if isinstance(noted, dict) else None
    if until is not None and attempt.state.line == attempt.line and attempt.now() < until:
        attempt.doomed = Wait(f"to go on with step {attempt.step}", until=until)


def is_answer(attempt: Attempt, returned: Any) -> bool:
    """Tell whether what a step returned is the answer of a check."""
    return attempt.check is not None and not isinstance(returned, _OUTCOMES)


def after_answer(attempt: Attempt, answer: Any) -> Next | NotYet | Fail:
    """Return what the answer of a check makes of its run.

    Raises:
        BadOutcome: the answer cannot be stored.
    """
    check = attempt.check
    assert check is not None  # noqa: S101 - the caller looked
    if answer:
        try:
            with outside_run():
                return Next(check.then, given=codec.dumps(answer, "answer"))
        except CheckpointError as error:
            said = refusal(error, f"the answer of check {attempt.step!r}")
            raise BadOutcome(f"run {attempt.run_id!r}: {said}") from error
    now = attempt.now()
    if check.deadline is None or now < check.deadline:
        until, latest = now + check.every, ""
        if check.deadline is not None:
            until, latest = min(until, check.deadline), f", at the latest until {moment(check.deadline)}"
        return NotYet(until, f"to ask {attempt.step} again{latest}")
    if check.on_timeout is not None:
        return Next(check.on_timeout)
    return Fail(
        f"{attempt.step} said no for {(check.timeout or 0) / MICROSECONDS:g} s, the timeout= of its wait_until(…)"
    )


def _step(attempt: Attempt, given: Any, call: str, word: str) -> str:
    """Return the name of a step that gets the state and nothing else."""
    name = named_step(attempt, given, call, word)
    if attempt.agent.steps[name].needs_results:
        raise BadOutcome(
            f"run {attempt.run_id!r}: step {attempt.step!r} returned {call}(…, {word}={name}), and step {name!r} needs a second "
            "argument, which there is none of here. Give it a default."
        )
    return name
