"""The inbox as a program reads and answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from agent_tasks.errors import AnswerNotAllowed, ArgumentsNotStorable, InboxItemNotFound
from agent_tasks.signing import check_signed
from agent_tasks.states import Reply
from agent_tasks.troubles import first_line
from agent_tasks.unwritable import is_of_values
from checkpoint import codec
from checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from celery import Celery
    from sqlalchemy import Connection

    from agent_tasks.inbox import InboxItem
    from agent_tasks.runtime import Runtime


class _NotGiven:
    """Stands for a ``result=`` that nobody gave, since None is a result too."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN: Any = _NotGiven()


class InboxClient:
    """The questions of one ledger that wait for a person; made by :func:`open_inbox`.

    Args:
        runtime: of this process.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def items(self, run_id: str | None = None) -> list[InboxItem]:
        """Return the open questions, oldest first.

        Args:
            run_id: only those about this run.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        runtime = self._runtime
        return runtime.boundary.read(runtime.engine, lambda connection: runtime.inbox.items(connection, run_id))

    def item(self, item_id: str) -> InboxItem:
        """Return one question, open or answered.

        Raises:
            InboxItemNotFound: there is none.
        """
        found = self._find(item_id)
        if found is None:
            raise InboxItemNotFound(f"no inbox item {item_id!r}. `agent-tasks inbox list` shows the open ones.")
        return found

    def _find(self, item_id: str) -> InboxItem | None:
        runtime = self._runtime
        return runtime.boundary.read(runtime.engine, lambda connection: runtime.inbox.find(connection, item_id))

    def resolve(
        self, item_id: str, reply: str, *, who: str, why: str, result: Any = NOT_GIVEN, run_id: str | None = None
    ) -> bool:
        """Answer a question, and ring for its run if nothing else holds it.

        Args:
            item_id: of the question.
            reply: one of the item's ``replies``: ``happened``, ``did-not-happen``, ``keep``, ``ignore``, ``recorded``,
                ``new``, ``retry``, ``go-on`` or ``abort``.
            who: the person who decides, of at most 200 characters.
            why: the reason, of at most 4,000 characters; kept in the audit trail.
            result: with ``happened``, and required there, what the tool would have returned: the step gets it as the
                tool's result, and goes on with it. None if it returns nothing.
            run_id: of the run that the question must be about; any if not given.

        Returns:
            True if the run goes on now; False if it ended, runs already or waits for another answer.

        Raises:
            InboxItemNotFound: there is no such question.
            AnswerNotAllowed: this cannot be answered to it, or ``who``, ``why`` or the ``result`` of ``happened`` is missing.
            AnswerTooLate: it was answered already, or the operation moved on.
            ArgumentsNotStorable: no ledger stores the ``result``, or its database refuses it. Whatever is raised, nothing was written.

        Example:
            >>> from celery import Celery
            >>> app = Celery("shop", broker="memory://")
            >>> app.conf.agent_database_url = f"sqlite:///{directory}/agent.db"
            >>> open_inbox(app).resolve("q_1", "happened", who="kim", why="it is in the mail server's log")
            Traceback (most recent call last):
            agent_tasks.errors.InboxItemNotFound: no inbox item 'q_1'. `agent-tasks inbox list` shows the open ones.
        """
        check_signed(who, why, AnswerNotAllowed)
        if result is NOT_GIVEN:
            self._check_result_is_needless(item_id, reply, run_id)
            result = None
        elif (
            result is not None and reply != Reply.HAPPENED and reply in list(Reply)
        ):  # of no reply at all the inbox says more
            raise AnswerNotAllowed(
                f"result= belongs to the answer 'happened', got it with {reply!r} for inbox item {item_id!r}. Nothing was changed."
            )
        try:
            encoded = None if result is None else codec.dumps(result, "result")
        except CheckpointError as error:
            raise ArgumentsNotStorable(
                f"the answer to inbox item {item_id!r} cannot be recorded, nothing was changed: {error}"
            ) from error
        runtime = self._runtime

        def work(connection: Connection) -> tuple[str, bool]:
            return runtime.inbox.resolve(connection, item_id, reply, who=who, why=why, result=encoded, run_id=run_id)

        try:
            answered, queued = runtime.boundary.commit("resolve", runtime.engine, work)
        except SQLAlchemyError as error:
            if not is_of_values(error):
                raise
            raise ArgumentsNotStorable(
                f"the answer to inbox item {item_id!r} cannot be recorded, nothing was changed: {first_line(error)}"
            ) from error
        if queued:
            runtime.ring(answered)
        return queued

    def _check_result_is_needless(self, item_id: str, reply: str, run_id: str | None) -> None:
        """A step that goes on with None where its tool returns a charge fails later, and far from here."""
        if reply != Reply.HAPPENED:
            return
        item = self._find(item_id)
        if item is None or item.replied_by is not None or run_id not in (None, item.run_id):
            return  # which the answer itself is refused for
        if Reply.HAPPENED in item.replies:
            tool = str(item.detail.get("tool", "the tool"))
            raise AnswerNotAllowed(
                f"the answer 'happened' to inbox item {item_id!r} needs result=, which the step gets as what {tool} returned: "
                "give what the call would have returned, or result=None if that is nothing. Nothing was changed."
            )


def open_inbox(app: Celery) -> InboxClient:
    """Return the inbox of a Celery app's ledger.

    Args:
        app: the one that the agents are made for.

    Raises:
        ConfigurationError: the app's settings cannot be used.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="memory://")
        >>> app.conf.agent_database_url = f"sqlite:///{directory}/agent.db"
        >>> open_inbox(app).items()
        []
    """
    from agent_tasks.integration import AppState  # which knows agents, and they know this module

    return InboxClient(AppState.of(app).runtime)
