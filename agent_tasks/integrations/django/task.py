"""``AgentTask`` for Django projects: Celery's ``delay_on_commit``, without the call that a crash after the commit loses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery.contrib.django.task import DjangoTask
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from agent_tasks import plain_task
from agent_tasks.integration import AppState

if TYPE_CHECKING:
    from celery.result import AsyncResult


class AgentTask(plain_task.AgentTask, DjangoTask):
    """:class:`agent_tasks.AgentTask` with Celery's shortcuts for Django.

    Celery's own ``delay_on_commit`` keeps the call in memory until the commit, and loses it with the process. Where the
    ledger is in the database of the transaction, the call is written in that transaction, and only the doorbell waits.
    """

    abstract = True

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> AsyncResult | None:
        """Call the task when the present transaction is committed; see :meth:`apply_async_on_commit`."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, using: str | None = None, **options: Any) -> AsyncResult | None:
        """Call the task when a transaction is committed; at once if there is none.

        Args:
            *args: as for ``apply_async``.
            using: alias of the transaction's database; the ledger's own if not given, or else Django's default.
            **options: as for ``apply_async``.

        Returns:
            The result, whose ``get()`` says before the commit that there is none yet. None where the call is only kept in
            memory until then: in eager mode, or with a database that the ledger is not in.
        """
        app, ledger = self._get_app(), None
        if self.job is not None and not app.conf.task_always_eager:
            ledger = AppState.of(app).runtime.settings.django_database
        alias = using or ledger or DEFAULT_DB_ALIAS
        if ledger == alias and connections[alias].in_atomic_block:
            result: AsyncResult = self.apply_async(*args, ledger_connection=connections[alias], **options)
            return result
        transaction.on_commit(partial(self.apply_async, *args, **options), using=alias)
        return None
