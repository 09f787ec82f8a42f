"""The outside world of a test: a vendor that counts what reached it, and a person who looks."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from agent_tasks.states import Question, Reply

if TYPE_CHECKING:
    from agent_tasks.inbox import InboxItem


class World(Protocol):
    """What the crash explorer needs of an outside world."""

    def reset(self) -> None:
        """Forget everything; a new schedule begins."""
        ...

    def effects(self) -> Counter[str]:
        """Return how often each operation's effect happened, by operation id (or idempotency key)."""
        ...

    def person(self, item: InboxItem) -> tuple[Reply, Any]:
        """Answer a question as a person who looks at the outside world would, with a result where one is asked for."""
        ...


class VendorWorld:
    """A vendor in memory, which outlives every crash of the agent.

    Example:
        >>> world = VendorWorld()
        >>> world.act("op_1"), world.act("op_1", key="op_1"), world.act("op_1", key="op_1")
        (1, 2, 2)
        >>> world.effects()["op_1"]
        2
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._effects: Counter[str] = Counter()
        self._answers: dict[str, Any] = {}
        self._keys: dict[str, int] = {}

    def reset(self) -> None:
        """See :class:`World`."""
        with self._lock:
            self._effects.clear()
            self._answers.clear()
            self._keys.clear()

    def act(self, reference: str, *, key: str | None = None) -> int:
        """Let an effect happen, and return the vendor's number of it; a known ``key`` makes nothing happen again."""
        with self._lock:
            if key is not None and key in self._keys:
                return self._keys[key]
            self._effects[reference] += 1
            number = sum(self._effects.values())
            self._answers[reference] = number
            if key is not None:
                self._keys[key] = number
            return number

    def look_up(self, reference: str) -> int | None:
        """Return the vendor's number of an effect, or None if it did not happen."""
        with self._lock:
            return self._answers.get(reference)

    def effects(self) -> Counter[str]:
        """See :class:`World`."""
        with self._lock:
            return Counter(self._effects)

    def person(self, item: InboxItem) -> tuple[Reply, Any]:
        """See :class:`World`: looks whether it happened, keeps orphans, goes on after crashes and many steps."""
        if item.question is Question.UNKNOWN:
            number = self.look_up(item.operation_id or "")
            return (Reply.DID_NOT_HAPPEN, None) if number is None else (Reply.HAPPENED, number)
        if item.question is Question.RESULT:
            return Reply.HAPPENED, self.look_up(item.operation_id or "")
        if item.question is Question.CONFLICT:
            return Reply.RECORDED, None
        return next((r for r in (Reply.KEEP, Reply.GO_ON) if r in item.replies), Reply.RETRY), None
