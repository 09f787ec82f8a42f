"""The recovery decision table: what a call does about the operation it finds, as a pure function (I4-I6, I14)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from agent_tasks.states import IN_DOUBT, Effect, OperationStatus

#: A request is sent this often at the most before a person is asked: in doubt with its key, since a vendor that stored
#: an error for a key says it for ever, or because its probe said each time that it had not happened.
MAX_SENDS = 8


class Decision(Enum):
    """What to do."""

    EXECUTE = auto()  # commit the intent of a new request and run the body
    RETURN = auto()  # hand out the recorded result
    RAISE = auto()  # raise the recorded failure
    WAIT = auto()  # nobody may ask yet: suspend until the horizon, or until the probe's own date
    PAUSE = auto()  # whoever answered last named a date: suspend until then, and send again
    PROBE = auto()  # ask the outside world
    ASK = auto()  # a person decides whether it happened
    ASK_RESULT = auto()  # it happened, and a person must say what its result was
    CONFLICT = auto()  # other arguments: a person decides
    ASK_SENDS = auto()  # it was sent often, and never happened: a person decides whether it is sent again


@dataclass(frozen=True)
class Promise:
    """The part of a tool's declaration that decides.

    Args:
        effect: of the tool.
        has_probe: a probe is declared.
        waits: a horizon counts although the effect may be repeated (``repeatable`` with a ``timeout=``).
    """

    effect: Effect
    has_probe: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Recorded:
    """The part of an operation's row that decides.

    Args:
        status: of the operation.
        attempts: requests begun.
        same_args: the arguments asked for now are the recorded ones.
        same_effect: the newest request was sent under the effect that the tool declares now.
        asked: the line of this attempt asks for the operation. False at a commit that finds a doubt left behind.
        horizon_passed: the newest request can no longer happen by itself.
        may_ask: the date that the last probe, or the vendor's ``retry_after_seconds``, named has passed.
        key_lives: the idempotency key outlives one more request.
        result_missing: it succeeded, and its result could not be stored.
        probe_said_no: a probe, and nobody else, said that the newest request did not happen.
    """

    status: OperationStatus
    attempts: int = 1
    same_args: bool = True
    same_effect: bool = True
    asked: bool = True
    horizon_passed: bool = True
    may_ask: bool = True
    key_lives: bool = False
    result_missing: bool = False
    probe_said_no: bool = False


def decide(operation: Recorded | None, promise: Promise) -> Decision:
    """Decide what a call does, given what the ledger holds.

    Args:
        operation: the recorded operation, or None if there is none.
        promise: what the tool declares.

    Example:
        >>> decide(None, Promise(Effect.MANUAL)).name
        'EXECUTE'
        >>> decide(Recorded(OperationStatus.EXECUTING), Promise(Effect.MANUAL)).name
        'ASK'
    """
    if operation is None:
        return Decision.EXECUTE
    if operation.status in IN_DOUBT:
        return _settle(operation, promise)
    if not operation.same_args:
        return _other_arguments(operation, promise)
    if operation.status is OperationStatus.SUCCEEDED:
        return Decision.ASK_RESULT if operation.result_missing else Decision.RETURN
    if operation.status is OperationStatus.FAILED:
        return Decision.RAISE if operation.horizon_passed or not _may_land_late(promise) else Decision.WAIT
    if not operation.horizon_passed and _may_land_late(promise):
        return Decision.WAIT
    if not operation.may_ask:
        return Decision.PAUSE
    if operation.probe_said_no and operation.attempts >= MAX_SENDS:
        return Decision.ASK_SENDS
    return Decision.EXECUTE  # pending: planned, or known not to have happened; dropped: never begun


def _other_arguments(operation: Recorded, promise: Promise) -> Decision:
    never_begun = operation.attempts == 0
    if promise.effect is Effect.READ or never_begun:
        return Decision.EXECUTE
    return Decision.CONFLICT


def _settle(operation: Recorded, promise: Promise) -> Decision:
    """Nobody here can tell whether the newest request happened."""
    as_before = operation.same_args and operation.same_effect
    if operation.asked and as_before and _may_send_again(operation, promise):
        return Decision.EXECUTE if operation.may_ask else Decision.PAUSE
    if not operation.horizon_passed:
        return Decision.WAIT
    if not promise.has_probe:
        return Decision.ASK
    return Decision.PROBE if operation.may_ask else Decision.WAIT


def _may_send_again(operation: Recorded, promise: Promise) -> bool:
    if promise.effect in (Effect.READ, Effect.TRANSACTIONAL):
        return True
    if promise.effect is Effect.REPEATABLE:
        return operation.horizon_passed or not _may_land_late(promise)
    return promise.effect is Effect.KEYED and operation.key_lives and operation.attempts < MAX_SENDS


def _may_land_late(promise: Promise) -> bool:
    """Tell whether an old copy must be waited for although the effect may be repeated."""
    return promise.effect is Effect.REPEATABLE and promise.waits
