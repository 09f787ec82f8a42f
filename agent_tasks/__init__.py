"""Durable agent jobs on the Celery fleet you have: kill any worker, and no side effect happens twice."""

from agent_tasks.agent import Agent
from agent_tasks.answers import AskAgain, CannotTell, Happened, NotHappened, PartlyHappened
from agent_tasks.batches import run_calls
from agent_tasks.carrying import carry_run
from agent_tasks.cleaning import cleanup
from agent_tasks.coalesce import Coalesce
from agent_tasks.current import current_run
from agent_tasks.errors import (
    AgentTasksError,
    AnswerNotAllowed,
    AnswerTooLate,
    BadBatch,
    CannotResume,
    CarriedElsewhere,
    DedupeConflict,
    EffectInCheck,
    InboxItemNotFound,
    InForkedProcess,
    LeaseLost,
    NotAwaited,
    NotKept,
    NotWritable,
    OutsideRun,
    RunCancelled,
    RunFailed,
    RunUnfinished,
    StepSuspended,
    ToolFailed,
    TransactionUnusable,
    UnguardedTool,
    UnorderedCalls,
)
from agent_tasks.handle import RunHandle
from agent_tasks.inbox import AuditEntry, InboxItem
from agent_tasks.inbox_client import InboxClient, open_inbox
from agent_tasks.operations import Operation
from agent_tasks.outcomes import calls, done, fail
from agent_tasks.plain_task import AgentTask
from agent_tasks.planned_calls import Call, FailedCall
from agent_tasks.resources import Resource
from agent_tasks.tools import Tool, tool
from agent_tasks.waits import sleep, sleep_until, wait_until

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - grouped by topic
    # defining
    "Agent",
    "AgentTask",
    "Coalesce",
    "Resource",
    "Tool",
    "tool",
    "done",
    "fail",
    "Call",
    "FailedCall",
    "calls",
    "run_calls",
    "sleep",
    "sleep_until",
    "wait_until",
    "current_run",
    "carry_run",
    # asking the outside world
    "Operation",
    "Happened",
    "NotHappened",
    "AskAgain",
    "PartlyHappened",
    "CannotTell",
    # running
    "RunHandle",
    "cleanup",
    # asking a person
    "open_inbox",
    "InboxClient",
    "InboxItem",
    "AuditEntry",
    # errors
    "AgentTasksError",
    "AnswerNotAllowed",
    "AnswerTooLate",
    "BadBatch",
    "CannotResume",
    "CarriedElsewhere",
    "DedupeConflict",
    "EffectInCheck",
    "InboxItemNotFound",
    "InForkedProcess",
    "LeaseLost",
    "NotAwaited",
    "NotKept",
    "NotWritable",
    "OutsideRun",
    "RunCancelled",
    "RunFailed",
    "RunUnfinished",
    "StepSuspended",
    "ToolFailed",
    "TransactionUnusable",
    "UnguardedTool",
    "UnorderedCalls",
]
