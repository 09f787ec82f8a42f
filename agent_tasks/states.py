"""The words for the lives of runs and operations."""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """A string enumeration that is shown as its value, as the database stores it and as people write it.

    Example:
        >>> Reply.HAPPENED, str(Reply.HAPPENED)
        ('happened', 'happened')
    """

    __str__ = str.__str__
    __repr__ = str.__repr__


class Mode(Word):
    """What ``AgentTask`` does for a plain task."""

    GUARD = "guard"
    OBSERVE = "observe"  # count what is done twice, and change nothing


class RunStatus(Word):
    """The life of a run."""

    QUEUED = "queued"  # claimable now
    RUNNING = "running"  # an attempt holds the lease; due_at is the lease's end
    WAITING = "waiting"  # for a due time
    NEEDS_ATTENTION = "needs_attention"  # for a person; the inbox names the questions
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})


class RunRequest(Word):
    """What a person may ask of a run, whoever works on it."""

    CANCEL = "cancel"


class OperationStatus(Word):
    """The life of an operation."""

    PENDING = "pending"  # planned, or known not to have happened
    EXECUTING = "executing"  # its intent is committed; its body may be running
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # known not to have happened, and said so to the step
    UNKNOWN = "unknown"  # nobody here can tell
    DROPPED = "dropped"  # planned, and its line never started it


#: The effect may or may not have happened.
IN_DOUBT = frozenset({OperationStatus.EXECUTING, OperationStatus.UNKNOWN})


class Effect(Word):
    """What a tool does to the world, and so what a crash in its middle means."""

    READ = "read"
    REPEATABLE = "repeatable"
    TRANSACTIONAL = "transactional"
    KEYED = "keyed"
    PROBED = "probed"
    MANUAL = "manual"


class Recovery(Word):
    """What becomes of a run that lost its worker."""

    AUTO = "auto"  # it goes on by itself, until its step has lost too many
    MANUAL = "manual"  # a person is asked at once


class Question(Word):
    """What the inbox can ask a person."""

    UNKNOWN = "unknown"  # did it happen?
    ORPHAN = "orphan"  # it happened, and the line that won does not ask for it
    CONFLICT = "conflict"  # asked for again with other arguments
    RESULT = "result"  # it happened, and its result could not be stored
    DOUBLED = "doubled"  # two requests of one operation succeeded
    CRASHES = "crashes"  # the step lost its worker, too often or in a run that is recovered by hand
    CHECKPOINT = "checkpoint"  # the latest checkpoint must not be used, and falling back is no way out
    STEPS = "steps"  # the run has taken as many steps as it may
    REFUSED = "refused"  # a probe or a person said that it happened, and then the vendor's refusal of it came in
    SENDS = "sends"  # sent too often, and each time it did not happen: send it again?


class Reply(Word):
    """What a person can answer."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did-not-happen"
    KEEP = "keep"
    IGNORE = "ignore"
    RECORDED = "recorded"
    NEW = "new"
    RETRY = "retry"
    GO_ON = "go-on"
    ABORT = "abort"


REPLIES: dict[Question, tuple[Reply, ...]] = {
    Question.UNKNOWN: (Reply.HAPPENED, Reply.DID_NOT_HAPPEN),
    Question.ORPHAN: (Reply.KEEP, Reply.IGNORE),
    Question.CONFLICT: (Reply.RECORDED, Reply.NEW, Reply.ABORT),
    Question.RESULT: (Reply.HAPPENED,),
    Question.DOUBLED: (Reply.KEEP,),
    Question.REFUSED: (Reply.KEEP,),
    Question.CRASHES: (Reply.RETRY, Reply.ABORT),
    Question.CHECKPOINT: (Reply.RETRY, Reply.ABORT),
    Question.STEPS: (Reply.GO_ON, Reply.ABORT),
    Question.SENDS: (Reply.RETRY, Reply.ABORT),
}

#: Questions that hold no run: it went on, and a person is told.
NOT_BLOCKING = (Question.DOUBLED, Question.REFUSED)
