"""Every error this package raises: what happened, with the ids, and what to do next.

Each class keeps its constructor arguments in ``args``, so that it survives pickling, which Celery does to
exceptions. ``StepSuspended`` is the one that is not an ``Exception``: see its docstring.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

E = TypeVar("E", bound=BaseException)


def is_a(error: object, kinds: type[E] | tuple[type[E], ...]) -> TypeGuard[E]:
    """Tell whether something is an exception of such a class, whatever it says of its class itself: ``isinstance`` asks it.

    Example:
        >>> is_a(KeyError("id"), LookupError), is_a(None, LookupError)
        (True, False)
    """
    return issubclass(type(error), kinds)


#: How much of two words must be the same, of 1, for one to be a slip of the other. At 0.6, difflib's own, 'exchange' is nearly
#: 'chain'.
_NEAR = 0.75


def nearest(word: str, known: Iterable[str], near_from: float = _NEAR) -> str | None:
    """Return the word of ``known`` that this one is a slip of the pen for, or None.

    Args:
        word: as it was written.
        known: the words that it may have been.
        near_from: how much of two words must be the same, of 1.

    Example:
        >>> nearest("keyd", ["read", "keyed"]), nearest("pya", ["pay"]), nearest("exchange", ["chain"])
        ('keyed', 'pay', None)
    """
    known = list(known)
    near = get_close_matches(word, known, n=1, cutoff=near_from)
    near += [
        other for other in known if sorted(other) == sorted(word)
    ]  # neighbours that changed places in a short word
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for a near miss among ``known``, else the empty string."""
    near = nearest(word, known)
    return f" Did you mean {near!r}?" if near else ""


class AgentTasksError(Exception):
    """Base of every error of this package."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigurationError(AgentTasksError):
    """A setting, or a combination of settings, cannot keep the promise of this package."""

    #: What mends it, where that is something else than another value of the setting that the message begins with.
    cure: str | None = None

    def __init__(self, message: str | None = None, cure: str | None = None) -> None:
        super().__init__(message)
        if cure is not None:
            self.cure = cure
            self.args = (str(self), cure)

    def __str__(self) -> str:
        return str(self.args[0])


def install(extra: str) -> str:
    """Return the command that installs what an extra of this package brings.

    Example:
        >>> install("postgres")
        "pip install 'celery-agent-tasks[postgres]', or in a clone of it: pip install '.[postgres]'"
    """
    return f"pip install 'celery-agent-tasks[{extra}]', or in a clone of it: pip install '.[{extra}]'"


class SingleHostOnly(ConfigurationError):
    """A network broker needs a database that every host reaches."""


class SchemaMissing(ConfigurationError):
    """The ledger's tables are missing or older than this release."""


class AgentNameTaken(ConfigurationError):
    """Two agents of one Celery app have the same name."""


class UnguardedTool(ConfigurationError):
    """A tool's declaration does not say how its effect is guarded, or the agent that calls it does not list it."""


class UnknownStep(AgentTasksError):
    """An outcome, a run or a caller names a step that the agent does not have."""


class BadOutcome(AgentTasksError):
    """A step returned something that is not an outcome."""


class BadBatch(AgentTasksError):
    """What was given as a batch of calls cannot be one; nothing of it was recorded or sent."""


class RunNotFound(AgentTasksError):
    """No run has this id."""


class DedupeConflict(AgentTasksError):
    """The dedupe key belongs to a run with another input."""


class LedgerUnavailable(AgentTasksError):
    """The ledger's database did not answer."""

    #: True if the transaction may have been committed although no answer came.
    ambiguous: bool = False

    def __init__(self, message: str | None = None, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.args = (str(self), ambiguous)

    def __str__(self) -> str:
        return str(self.args[0])


class TransactionUnusable(AgentTasksError):
    """A run cannot be written in the caller's transaction: it leads elsewhere, has failed, has ended, or is none."""


class OutsideRun(AgentTasksError):
    """A tool with an effect was called outside a run."""


class UnorderedCalls(AgentTasksError):
    """A tool without a key was called from another thread or asyncio task than its step's own: its calls have no order."""


class NotAwaited(AgentTasksError):
    """An async tool was called and not awaited, or where nothing can be; or a plain one where it would stop the event loop."""


class CarriedElsewhere(AgentTasksError):
    """A function that carries a run was called after the step that made it, or in the step of another run."""


class InForkedProcess(AgentTasksError):
    """A tool was called, or the ledger used, in a process that a step has forked; only the step's own process works for its run."""


class InsideTransaction(AgentTasksError):
    """The body of a transactional tool did what its transaction cannot hold or undo."""


class ArgumentsNotStorable(AgentTasksError):
    """The arguments of a tool call cannot be stored; nothing was sent."""


class NotWritable(AgentTasksError):
    """The ledger's database refused a value, such as a number out of its range; nothing was written."""


class EffectInCheck(AgentTasksError):
    """A check, which is asked again and again, called a tool that has an effect."""


class NotKept(AgentTasksError):
    """Progress, or the vendor's id of an effect, cannot be kept: what it is, or where a body said it, is wrong."""


class ToolFailed(AgentTasksError):
    """A tool call failed.

    Raised in place of an exception whose class neither the tool's ``refused=`` nor Python's built-ins name, so that
    the attempt that saw the failure and every later one, which reads it from the ledger, see the same class.

    Attributes:
        tool: name of the tool, or of the plain task whose body failed.
        error_type: qualified name of the exception that the body raised.
        error_text: its text.
        kind: what messages call it, ``tool`` or ``task``.
    """

    def __init__(self, tool: str, error_type: str, error_text: str, kind: str = "tool") -> None:
        super().__init__(f"{kind} {tool!r} failed: {error_type}: {error_text}")
        self.tool, self.error_type, self.error_text, self.kind = tool, error_type, error_text, kind
        self.args = (tool, error_type, error_text, kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.tool!r} failed: {self.error_type}: {self.error_text}"


class ToolOverran(AgentTasksError):
    """A transactional tool was still at work when its timeout had passed; its transaction was rolled back."""


class RunFailed(AgentTasksError):
    """The run ended as failed or cancelled."""


class RunCancelled(RunFailed):
    """Somebody cancelled the run; the message says who and why."""


class RunUnfinished(AgentTasksError, TimeoutError):
    """The run had not ended when the time-out of ``get`` passed."""


class CannotResume(AgentTasksError):
    """The run cannot be resumed, or not from this step; nothing was changed."""


class InboxItemNotFound(AgentTasksError):
    """No open inbox item fits."""


class AnswerNotAllowed(AgentTasksError):
    """This answer does not fit this kind of inbox item."""


class AnswerTooLate(AgentTasksError):
    """The question was settled before the answer came."""


class StepSuspended(BaseException):
    """The attempt is over although its step is not: nobody may act on a doubt (I15).

    Raised at a tool call whose outcome nobody can tell yet, at a lost lease, and at every later call of the same
    attempt. A ``BaseException``, so that ``except Exception`` in a step cannot take a doubt for a failure. Do not
    catch it; should a step do so, the engine looks at the attempt itself, and nothing more of it is executed.
    """


class LeaseLost(StepSuspended):
    """Another attempt owns the run now; this one changes no state any more (I2)."""
