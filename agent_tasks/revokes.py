"""When a worker heard that an id was revoked: Celery's own memory of it says only that it was, some time, somewhere."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from celery import bootsteps
from celery.utils.functional import maybe_list
from celery.worker.state import REVOKES_MAX

from agent_tasks.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

#: The commands of Celery by which somebody revokes ids.
COMMANDS = ("revoke", "terminate")


class HeardRevokes(bootsteps.Step):
    """Notes when the commands of this worker's own mailbox came in; no command and no global setting is changed.

    Ids that Celery learns by another way, at its start or from a worker that starts, are not noted: they come with no time.
    """

    requires = ("celery.worker.consumer.control:Control",)

    #: When each id was revoked last, oldest first, in seconds of the host's clock.
    of_this_process: ClassVar[dict[str, float]] = {}

    def create(self, consumer: Any) -> None:
        """Listen to the mailbox, where there is one."""
        for box in [step.box for step in consumer.steps if hasattr(step, "box")]:
            handlers = box.node.handlers
            noted = {name: self._noting(handlers[name]) for name in COMMANDS if name in handlers}
            box.node.handlers = {**handlers, **noted}

    @classmethod
    def note(cls, run_id: str, at: float) -> None:
        """Note when an id was revoked; of too many, the oldest are forgotten, as Celery does."""
        heard = cls.of_this_process
        heard.pop(run_id, None)
        heard[run_id] = at
        while len(heard) > REVOKES_MAX:
            del heard[next(iter(heard))]

    def _noting(self, command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def noting(state: Any, *args: Any, **kwargs: Any) -> Any:
            for run_id in maybe_list(kwargs.get("task_id")) or ():  # before the command, which may kill for it
                self.note(str(run_id), Clock().local())
            return command(state, *args, **kwargs)

        return noting
