"""The commands that answer a question of the inbox, as a person can paste them."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from agent_tasks.states import REPLIES, Question, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Questions whose answer ``happened`` says what the call returned.
_WITH_RESULT = (Question.UNKNOWN, Question.RESULT)


def commands(program: str, item_id: str, question: Question) -> list[str]:
    """Return a command for each reply.

    Args:
        program: what they begin with: ``agent-tasks -A shop``.
        item_id: of the question.
        question: what is asked.

    Example:
        >>> commands("agent-tasks -A shop", "q_1", Question.ORPHAN)[0]
        'agent-tasks -A shop inbox resolve q_1 keep --why WHY'
    """
    return [
        f"{program} inbox resolve {shlex.quote(item_id)} {reply!s}"
        + (" --result JSON" if reply is Reply.HAPPENED and question in _WITH_RESULT else "")
        + " --why WHY"
        for reply in REPLIES[question]
    ]


def program_here(words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return what a command on this process's ledger begins with, as far as the call of its worker says.

    Args:
        words: of the call; those of this process if not given.
        environ: its environment, the same.

    Example:
        >>> program_here(["celery", "--app=shop", "worker"], {}), program_here(["celery", "worker"], {"CELERY_APP": "shop"})
        ('agent-tasks -A shop', 'agent-tasks -A shop')
        >>> program_here(["python", "web.py"], {})
        'agent-tasks -A yourapp'
    """
    words, environ = sys.argv if words is None else words, os.environ if environ is None else environ
    named = None
    if "worker" in words:
        named = environ.get("APP") or environ.get("CELERY_APP")  # Celery's own variables for -A
        for word, after in zip(words, [*words[1:], ""], strict=True):
            if word in ("-A", "--app"):
                named = after
            elif word.startswith("--app="):
                named = word.removeprefix("--app=")
            elif word.startswith("-A") and len(word) > 2:
                named = word.removeprefix("-A")
    return f"agent-tasks -A {shlex.quote(named or 'yourapp')}"
