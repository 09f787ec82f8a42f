"""``AgentTask``: the base class that makes a plain Celery task safe."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from celery import signals
from celery.app.task import Context
from celery.exceptions import Ignore, Retry
from celery.utils.serialization import raise_with_context
from kombu.exceptions import EncodeError

from agent_tasks.answering import Answer, answer, answer_eagerly, tell_that_result_is_stored
from agent_tasks.around import call_body, is_from_own_call, keep_before_start, keep_call
from agent_tasks.errors import AgentTasksError, OutsideRun, RunNotFound, UnguardedTool
from agent_tasks.forgotten import warn_of_forgotten_bases
from agent_tasks.hosting import in_worker
from agent_tasks.limits import LONGEST_SECONDS
from agent_tasks.messages import show_run
from agent_tasks.observing import be_plain, mode_of, observe
from agent_tasks.plain import PlainJob, operation_of_this_context
from agent_tasks.plain_declaration import PlainDeclaration
from agent_tasks.progress import Progress
from agent_tasks.states import Effect, Mode, RunStatus
from agent_tasks.submitting import seconds_until, submit
from agent_tasks.suspensions import RetryLater
from agent_tasks.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from celery import Celery
    from celery.result import AsyncResult, EagerResult

    from agent_tasks.handle import RunHandle
    from agent_tasks.operations import Operation
    from agent_tasks.tools import Tool


#: Whether this context is in a call of ``.apply()`` whose body has not begun.
_applied: ContextVar[bool] = ContextVar("agent_tasks_applied", default=False)


class _RetryLater(RetryLater, Retry):
    """What ``self.retry`` raises: Celery's own class to whoever catches it."""

    def __init__(self, cause: Exception | None, when: float | datetime | None, seconds: float) -> None:
        Retry.__init__(self, exc=cause, when=when)
        self.cause, self.seconds = cause, seconds


class AgentTask(LedgerTask):
    """Base class of a plain Celery task that survives any crash without repeating what it did.

    Each call is a run of one step in the ledger. With ``effect=`` the body is one operation, guarded as a tool of that
    effect is; with ``tools=`` it is a step, which may call these tools and no others.

    Attributes:
        effect: ``read``, ``repeatable``, ``transactional``, ``keyed``, ``probed`` or ``manual``.
        tools: what the body calls, instead of ``effect``; may be empty.
        dedupe_on: names of the parameters that make two calls the same job; the second returns the first one's result.
        timeout, settle, visible_after, key_lifetime, refused, why: with ``effect``, as for :func:`agent_tasks.tool`.
        agent_mode: ``observe`` leaves the task to plain Celery, and counts what is done twice; it then needs neither
            ``effect`` nor ``tools``.

    Example:
        >>> from celery import Celery
        >>> from datetime import timedelta
        >>> app = Celery("shop", broker="memory://")
        >>> @app.task(base=AgentTask, bind=True, effect="keyed", key_lifetime=timedelta(hours=24), shared=False)
        ... def pay(self, order_id, cents):
        ...     return {"order": order_id, "key": len(self.operation.idempotency_key)}
        >>> pay.apply(("o-1", 300)).get()
        {'order': 'o-1', 'key': 35}
        >>> pay("o-1", 300)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        agent_tasks.errors.OutsideRun: task ... was called as a function, ...
    """

    abstract = True

    effect: ClassVar[str | None] = None
    tools: ClassVar[Iterable[Tool[..., Any]] | None] = None
    dedupe_on: ClassVar[tuple[str, ...]] = ()
    timeout: ClassVar[timedelta | None] = None
    settle: ClassVar[timedelta | None] = None
    visible_after: ClassVar[timedelta | None] = None
    key_lifetime: ClassVar[timedelta | None] = None
    refused: ClassVar[tuple[type[Exception], ...] | None] = None
    why: ClassVar[str | None] = None

    #: ``guard`` or ``observe``; the app's ``agent_mode`` if not given.
    agent_mode: ClassVar[str | None] = None

    #: A ``__call__`` that the user's own base class has.
    _users_call: ClassVar[Callable[..., Any] | None] = None

    job: ClassVar[PlainJob | None] = None
    is_observed: ClassVar[bool] = False

    #: Of one task: Celery binds it more than once, and its declaration is read at the first.
    _was_read: ClassVar[bool] = False

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the declaration and register it with the app's ledger.

        Raises:
            UnguardedTool: it does not say how the effects of the body are guarded.
            ConfigurationError: an option is misspelt, or allows retries without an end.
        """
        # The base class itself has no name; with Celery(task_cls=AgentTask) Celery's own tasks come here, too.
        if cls.name is None or str(cls.name).startswith("celery.") or "_was_read" in cls.__dict__:
            return
        if mode_of(cls, app) is Mode.OBSERVE:
            PlainDeclaration.of(cls, observed=True)
            be_plain(cls, AgentTask, app)
            keep_call(cls, AgentTask)
            cls.is_observed = cls._was_read = True
            return
        cls.job, cls.hears_of_revokes, cls._was_read = PlainJob(cls, app), True, True
        keep_call(cls, AgentTask)
        keep_before_start(cls)
        # Whatever a user's hooks do, and whether or not they call super(), the ledger hears that the result is stored.
        cls.on_success = _after_telling(cls.on_success)
        cls.on_failure = _after_telling(cls.on_failure, _is_the_runs_own)

    # -- calling -------------------------------------------------------------------------------------------------------

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        *,
        ledger_connection: object = None,
        **options: Any,
    ) -> AsyncResult:
        """Write the call down as a run, then ring for it.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            task_id: of the Celery task, and of the run.
            ledger_connection: whose transaction the call is written in; see the ``connection`` of
                :meth:`agent_tasks.Agent.enqueue`. Celery's own ``connection`` is one to the broker. In eager mode the
                call is made at once, and is part of no transaction.
            **options: those of Celery's own ``apply_async``.

        Returns:
            The result of the run: of this call, or of the earlier one that ``dedupe_on`` finds.

        Raises:
            AgentTasksError: an option cannot be honoured; nothing was sent.
            DedupeConflict: the id, or what ``dedupe_on`` names, belongs to a call with other arguments.
            LedgerUnavailable: the database did not answer; call again with the same task_id, or with dedupe_on.
            TransactionUnusable: ``ledger_connection`` has no transaction, a failed one, or one on another database.
            TypeError: the arguments do not fit the task.
        """
        if self.job is None or self._get_app().conf.task_always_eager:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        return submit(self, self.job, args or (), kwargs or {}, task_id, options, ledger_connection)

    def apply(self, *args: Any, **options: Any) -> EagerResult:
        """Run a call to its end here and now, on a ledger of its own: for tests and scripts.

        Args:
            *args: those of Celery's own ``apply``.
            **options: the same.

        Returns:
            The result.

        Raises:
            OutsideRun: this is a worker and not in eager mode, and the task has an effect or tools that have one.
        """
        if self.job is None:
            return super().apply(*args, **options)
        if self.job.has_effects and in_worker() and not self._get_app().conf.task_always_eager:
            raise OutsideRun(
                f"task {self.name!r} has effects and was called by .apply() in a worker, on a ledger of its own: when the "
                f"process dies, that ledger is lost, and what was done is done again. Nothing was done; call "
                f"{self.__name__}.delay(…), or {self.__name__}.unguarded(…) to run the body without any promise."
            )
        token = _applied.set(True)
        try:
            return super().apply(*args, **options)
        finally:
            _applied.reset(token)

    def run_handle(self, task_id: str | AsyncResult) -> RunHandle:
        """Return the handle of the run that a call of this task became: its status, operations, inbox, ``cancel``, ``resume``.

        Args:
            task_id: the id of the call, or the result that ``delay`` or ``apply_async`` returned.

        Raises:
            RunNotFound: this task has no such run in this ledger. A message of ``send_task`` becomes a run when a worker
                receives it.

        Example:
            >>> from celery import Celery
            >>> app = Celery("shop", broker="memory://")
            >>> app.conf.agent_database_url = f"sqlite:///{directory}/handles.db"
            >>> @app.task(base=AgentTask, tools=[], shared=False)
            ... def greet(name):
            ...     return f"hello {name}"
            >>> run = greet.run_handle(greet.delay("kim"))
            >>> str(run.status)
            'queued'
            >>> run.cancel(who="kim", why="not needed any more")
            True
        """
        if self.job is None:
            raise RunNotFound(f"task {self.name!r} stays plain Celery, and its calls are no runs.")
        return self.job.run(getattr(task_id, "id", task_id))

    def unguarded(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body here and now, with no record and no promise.

        Raises:
            OutsideRun: the body asks for ``self.operation``, or calls a tool with an effect; neither works outside a run.
        """
        return call_body(self, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a doorbell in a worker; as a function, do what needs no record, or refuse.

        Raises:
            OutsideRun: the task has an effect and was called as a function.
        """
        request = self.request
        if is_from_own_call(self):
            return self.run(*args, **kwargs)
        if self.job is None:
            if self.is_observed and not request.called_directly and not request.is_eager:
                return observe(self, args, kwargs, lambda: self._call_plain(args, kwargs))
            return self._call_plain(args, kwargs)
        progress = Progress.of(request)
        if request.called_directly or progress.answered:
            if self.effect in (None, Effect.READ):
                return call_body(self, args, kwargs)
            raise OutsideRun(
                f"task {self.name!r} was called as a function, where nothing is recorded, and has the effect "
                f"{self.effect!r}. Call {self.__name__}.delay(…), or {self.__name__}.unguarded(…) to run the body without any "
                "promise, where self.operation does not exist."
            )
        # Not request.is_eager, which a message can say.
        progress.answered, progress.eager = True, _applied.get()
        if not progress.eager:
            return self._said(answer(self, self.job))
        token = _applied.set(False)
        try:
            return answer_eagerly(self, self.job, args, kwargs)
        finally:
            _applied.reset(token)

    def _call_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().__call__(*args, **kwargs) if self._users_call is None else call_body(self, args, kwargs)

    def _said(self, answered: Answer) -> Any:
        """Tell Celery how the run ended, or that it has not."""
        if answered.error is not None:
            raise answered.error
        if answered.revoked is not None:
            self.backend.mark_as_revoked(
                self.request.id, answered.revoked, request=self.request, store_result=not self.request.ignore_result
            )
            tell_that_result_is_stored(self)
            raise Ignore
        if not answered.ended:
            later = Progress.of(self.request).retry
            raise Ignore if later is None or not answered.retried else Retry(exc=later.cause, when=later.seconds)
        return answered.output

    # -- in the body ---------------------------------------------------------------------------------------------------

    @property
    def operation(self) -> Operation:
        """The operation that the body is: ``.operation_id``, ``.idempotency_key``, ``.remaining()``, ``.connection``.

        Raises:
            OutsideRun: this is no body of a task with ``effect=``.
        """
        if self.is_observed:
            raise OutsideRun(
                f"task {self.name!r} is only observed, and its body is no operation: agent_mode='guard' makes it one."
            )
        found = operation_of_this_context()
        if found is None:
            raise OutsideRun(
                f"self.operation of task {self.name!r} exists only while its body runs in a worker or by .apply(), and only "
                "with effect=; .unguarded(…) has none. In a unit test pass a stand-in as self to .run.__func__, or use .apply()."
            )
        return found

    def retry(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: Exception | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> NoReturn:
        """Let the run wait, and run the body again; what it did so far is judged as if it had raised ``exc``.

        Args:
            args: the call's own, if given at all; a call with others is another run.
            kwargs: the same.
            exc: why; raised in the end, when the retries are used up.
            throw: True; the body cannot go on after it.
            eta: when to run again.
            countdown: the same in seconds from now; ``default_retry_delay`` if neither is given.
            max_retries: how many there may be; the task's own ``max_retries`` if not given.
            **options: none.

        Raises:
            Retry: always, as long as there are retries left.
            MaxRetriesExceededError: there are none, and there is no ``exc``.
            AgentTasksError: something was asked for that a retry cannot do.
        """
        request = self.request
        if self.job is None:
            super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if request.called_directly:
            raise_with_context(exc or Retry("Task can be retried", None))
        if isinstance(exc, type) and issubclass(exc, Exception):
            exc = exc()  # as raise does
        self._check_retry(args, kwargs, exc, throw, options)
        if max_retries is not None:
            self.override_max_retries = max_retries  # read by Celery's wrapper for autoretry_for
        most = self.max_retries if max_retries is None else max_retries
        if request.retries >= most:
            if exc is not None:
                raise_with_context(exc)
            raise self.MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        default = self.default_retry_delay if countdown is None else countdown
        when: float | datetime = default if eta is None else eta
        try:
            seconds = seconds_until(self.app, when)
            pause = min(max(0.0, seconds), LONGEST_SECONDS) if not isnan(seconds) else None
        except (TypeError, ValueError, AttributeError, OverflowError):
            pause = None
        if pause is None:
            raise AgentTasksError(
                f"run {request.id!r}: task {self.name!r} cannot be retried at {when!r}: countdown= must be a number of "
                "seconds, eta= a date and time."
            )
        later = _RetryLater(exc or _raised_now(), when, pause)
        Progress.of(request).retry = later
        raise later

    def replace(self, sig: Any) -> NoReturn:
        """Refuse: what follows a run is said when it is made.

        Raises:
            AgentTasksError: always.
        """
        if self.job is None:
            super().replace(sig)
        raise AgentTasksError(
            f"run {self.request.id!r}: task {self.name!r} cannot replace itself, since its result is the run's. Nothing was "
            "sent; return a value, and let a chain or link= go on with it."
        )

    def _check_retry(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        exc: object,
        throw: bool,
        options: dict[str, Any],
    ) -> None:
        request, wrong = self.request, ""
        if (args is not None and list(args) != list(request.args)) or (kwargs is not None and kwargs != request.kwargs):
            wrong = "with other arguments, which is another run: call .delay(…) for it"
        elif exc is not None and not isinstance(exc, Exception):
            wrong = f"with an exc= of {type(exc).__name__}: it must be an exception, or a class of one"
        elif not throw:
            wrong = "with throw=False: the body would go on after it had given its run back"
        elif options:
            wrong = f"with {', '.join(f'{name}=' for name in options)}: it goes to the same queue with the same options"
        if wrong:
            raise AgentTasksError(f"run {request.id!r}: task {self.name!r} cannot be retried {wrong}.")

    @contextmanager
    def answering(self, run: Mapping[Any, Any], args: list[Any], kwargs: dict[str, Any]) -> Iterator[None]:
        """Let the request be that of a run: what was called, what follows it, and how often it was retried."""
        request = self.request_stack.top
        known = request is not None and request.id == run["run_id"]
        if not known:
            request = Context(id=run["run_id"], args=[], kwargs={}, called_directly=False, is_eager=False)
            self.push_request(**vars(request))
            request = self.request_stack.top
        show_run(request, run, args, kwargs)
        try:
            yield
        finally:
            if not known:
                self.pop_request()

    # -- asking the world ----------------------------------------------------------------------------------------------

    def probe(self, function: Callable[[Operation], Any] | None = None, /, *, timeout: timedelta | None = None) -> Any:
        """Declare the function that asks the world whether the task's effect happened; see :meth:`agent_tasks.Tool.probe`.

        Args:
            function: gets the operation and answers.
            timeout: of one question; the task's own ``timeout=`` if not given.

        Raises:
            UnguardedTool: the task has no effect to ask about, or neither it nor the probe has a timeout.
        """
        if self.is_observed:  # nobody asks it until the task is guarded
            return (lambda declared: declared) if function is None else function
        if self.job is None or self.job.tool is None:
            raise UnguardedTool(
                f"task {self.name!r} has no effect= that a probe could be asked about; the probes of its tools are theirs."
            )
        return self.job.tool.probe(timeout=timeout) if function is None else self.job.tool.probe(function)

    # -- in the worker's parent ----------------------------------------------------------------------------------------

    def doorbell(self) -> tuple[str, int] | None:
        """See :class:`LedgerTask`."""
        return None if self.job is None or not self.request.id else (str(self.request.id), 1)


def _after_telling(
    hook: Callable[..., Any], is_final: Callable[[AgentTask, Any], bool] = lambda _task, _said: True
) -> Callable[..., Any]:
    def hooked(self: AgentTask, said: Any, *args: Any, **kwargs: Any) -> Any:
        progress = Progress.of(self.request)
        if progress.answered and not progress.eager and is_final(self, said):
            tell_that_result_is_stored(self)
        return hook(self, said, *args, **kwargs)

    return hooked


def _is_the_runs_own(task: AgentTask, error: BaseException) -> bool:
    """Tell a failure that the run ended on, or a result that no backend will ever take, from a broker that was away."""
    return Progress.of(task.request).ended == RunStatus.FAILED or isinstance(error, EncodeError)


def _raised_now() -> Exception | None:
    error = sys.exc_info()[1]
    return error if isinstance(error, Exception) else None


signals.celeryd_after_setup.connect(warn_of_forgotten_bases)  # not of a bootstep, which only apps with a ledger have
